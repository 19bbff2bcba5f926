//! A line of the access log for each request.

use std::time::SystemTime;

use handoff::Client;
use handoff_command::access_log::{self, Line};
use handoff_http::Answered;
use http::header::{HOST, HeaderName, REFERER, USER_AGENT};
use serde::Serialize;

/// A request that is over; its fields are those of a line of JSON.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    time: String,
    client: String,
    method: Option<String>,
    target: Option<String>,
    version: Option<String>,
    host: Option<String>,
    status: Option<u16>,
    /// Of the body.
    bytes: u64,
    seconds: f64,
    referer: Option<String>,
    user_agent: Option<String>,
    /// Why the answer ended early.
    cut: Option<String>,
    #[serde(skip)]
    date: String,
}

impl Entry {
    pub(super) fn new(answered: &Answered<'_>, now: SystemTime) -> Self {
        let request = answered.request;
        let field = |name: HeaderName| {
            let value = request?.headers().get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let began = now.checked_sub(answered.time).unwrap_or(now);
        Self {
            time: access_log::time(began),
            client: match answered.peer {
                Client::Tcp(address) => address.ip().to_canonical().to_string(),
                process => process.to_string(),
            },
            method: request.map(|it| it.method().to_string()),
            target: request.map(|it| it.uri().to_string()),
            version: request.map(|it| format!("{:?}", it.version())),
            host: field(HOST),
            status: answered.status.map(|status| status.as_u16()),
            bytes: answered.bytes,
            seconds: answered.time.as_secs_f64(),
            referer: field(REFERER),
            user_agent: field(USER_AGENT),
            cut: answered.cut.map(str::to_owned),
            date: access_log::date(began),
        }
    }
}

impl Line for Entry {
    /// The combined format.
    fn text(&self) -> String {
        let line = match (&self.method, &self.target, &self.version) {
            (Some(method), Some(target), Some(version)) => format!("{method} {target} {version}"),
            _ => "-".to_owned(),
        };
        let quoted = |text: &Option<String>| escaped(text.as_deref().unwrap_or("-"));
        format!(
            "{} - - [{}] \"{}\" {} {} \"{}\" \"{}\"",
            self.client,
            self.date,
            escaped(&line),
            self.status.map_or("-".to_owned(), |status| status.to_string()),
            self.bytes,
            quoted(&self.referer),
            quoted(&self.user_agent),
        )
    }
}

/// What a client sends does not end a line or a word.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '"' | '\\' => escaped.extend(['\\', letter]),
            letter if letter.is_control() => escaped.extend(letter.escape_default()),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use http::{Request, StatusCode};

    use super::*;

    #[test]
    fn a_request_is_a_line() {
        let request = Request::builder()
            .uri("/a?b")
            .header(REFERER, "http://h/\"x\"")
            .header(USER_AGENT, "a\tb")
            .body(())
            .expect("a request");
        let answered = Answered {
            peer: "[::ffff:192.0.2.7]:4000".parse::<SocketAddr>().expect("an address").into(),
            request: Some(&request),
            status: Some(StatusCode::OK),
            bytes: 12,
            time: Duration::from_secs(1),
            cut: None,
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_001);
        let entry = Entry::new(&answered, now);
        assert_eq!(
            entry.text(),
            "192.0.2.7 - - [09/Sep/2001:01:46:40 +0000] \"GET /a?b HTTP/1.1\" 200 12 \
             \"http://h/\\\"x\\\"\" \"a\\tb\""
        );
        let json = serde_json::to_value(&entry).expect("is JSON");
        assert_eq!((&json["seconds"], &json["cut"]), (&1.0.into(), &serde_json::Value::Null));
        assert_eq!((&json["target"], &json["bytes"]), (&"/a?b".into(), &12.into()));
        let refused = Answered { request: None, status: None, ..answered };
        let line = Entry::new(&refused, now).text();
        assert!(line.ends_with("\"-\" - 12 \"-\" \"-\""), "{line}");
    }
}
