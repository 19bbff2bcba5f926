//! A line of the access log for each connection.

use std::time::SystemTime;

use handoff::Client;
use handoff_command::access_log::{self, Line};
use handoff_net::listening::Target;
use serde::ser::{Serialize, SerializeStruct as _, Serializer};

/// A connection that is over.
#[derive(Debug)]
pub(super) struct Ended<'a> {
    pub(super) began: SystemTime,
    pub(super) client: Client,
    /// `None` if it was not reached.
    pub(super) target: Option<&'a Target>,
    /// Bytes from the client.
    pub(super) up: u64,
    pub(super) down: u64,
    pub(super) seconds: f64,
    /// `well`, or why not.
    pub(super) end: &'a str,
}

impl Serialize for Ended<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut line = to.serialize_struct("Ended", 7)?;
        line.serialize_field("time", &access_log::time(self.began))?;
        line.serialize_field("client", &self.client.to_string())?;
        line.serialize_field("target", &self.target.map(Target::to_string))?;
        line.serialize_field("bytes_up", &self.up)?;
        line.serialize_field("bytes_down", &self.down)?;
        line.serialize_field("seconds", &self.seconds)?;
        line.serialize_field("end", self.end)?;
        line.end()
    }
}

impl Line for Ended<'_> {
    fn text(&self) -> String {
        let target = self.target.map_or("-".to_owned(), |target| target.to_string());
        format!(
            "{} - - [{}] {target} {} up {} down {:.3} s: {}",
            self.client,
            access_log::date(self.began),
            self.up,
            self.down,
            self.seconds,
            self.end,
        )
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_connection_is_a_line() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let target = Target::Tcp(address("192.0.2.1:80"));
        let entry = Ended {
            began: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
            client: address("192.0.2.7:4000").into(),
            target: Some(&target),
            up: 1,
            down: 2,
            seconds: 0.5,
            end: "well",
        };
        assert_eq!(
            entry.text(),
            "192.0.2.7:4000 - - [09/Sep/2001:01:46:40 +0000] 192.0.2.1:80 1 up 2 down 0.500 s: well"
        );
        let json = serde_json::to_value(&entry).expect("is JSON");
        assert_eq!(json["client"], "192.0.2.7:4000");
        assert_eq!((&json["bytes_up"], &json["bytes_down"]), (&1.into(), &2.into()));
    }
}
