//! Answers: what the service returns, as bytes on the connection.
//!
//! Contracts:
//! - this module decides how a body ends, whatever fields the service has set; a body of another length than
//!   promised ends the connection;
//! - once the head has begun, that request gets no other answer.

use std::cell::Cell;
use std::fmt::Display;
use std::future::poll_fn;
use std::io::Write as _;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, HeaderName, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use http_body::Body;

use crate::common::Common;
use crate::cut::Cut;
use crate::field_name;
use crate::lent_body::{Lent, LentBody};
use crate::output::Output;
use crate::wire::{self, Head, Refusal};

/// Fields that cannot be trailers.
const NO_TRAILERS: [HeaderName; 7] =
    [CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];

/// Fields about the connection and the body's end, which a service does not decide.
const OURS: [&str; 5] =
    ["connection", "content-length", "keep-alive", "proxy-connection", "transfer-encoding"];

/// Bytes that suffice for most heads.
const HEAD: usize = 512;

/// What an answer must know of its request.
pub(crate) struct Terms<'a> {
    pub(crate) common: &'a Common,
    /// The connection ends behind this answer, since the server is stopping.
    stopping: &'a Cell<bool>,
    /// The request was for a head alone.
    pub(crate) head_only: bool,
    pub(crate) version: Version,
    pub(crate) takes_trailers: bool,
    /// Whether the connection may go on behind the answer.
    pub(crate) keeps_alive: Cell<bool>,
    /// Whether an answer is on its way.
    pub(crate) begun: Cell<bool>,
    /// Its status.
    pub(crate) status: Cell<Option<StatusCode>>,
    /// The client waits for permission to send its body.
    pub(crate) awaits_continue: Cell<bool>,
}

impl<'a> Terms<'a> {
    pub(crate) fn new(common: &'a Common, stopping: &'a Cell<bool>, head: &Head) -> Self {
        Self {
            common,
            stopping,
            head_only: head.request.method() == http::Method::HEAD,
            version: head.request.version(),
            takes_trailers: head.takes_trailers,
            keeps_alive: Cell::new(head.keeps_alive),
            begun: Cell::new(false),
            status: Cell::new(None),
            awaits_continue: Cell::new(head.awaits_continue),
        }
    }

    /// For something that is no request.
    pub(crate) fn of_none(common: &'a Common, stopping: &'a Cell<bool>) -> Self {
        Self {
            common,
            stopping,
            head_only: false,
            version: Version::HTTP_11,
            takes_trailers: false,
            keeps_alive: Cell::new(false),
            begun: Cell::new(false),
            status: Cell::new(None),
            awaits_continue: Cell::new(false),
        }
    }
}

/// How the body's end is marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// There is none, and no length is sent.
    Without,
    After(u64),
    ByChunk,
    WithConnection,
}

/// Tells the client that its request is not served, and why.
pub(crate) async fn refuse(
    refusal: Refusal,
    output: &mut Output,
    terms: &Terms<'_>,
) -> Result<(), Cut> {
    terms.keeps_alive.set(false);
    let mut response = Response::new(format!("{}: {}\n", refusal.status, refusal.why));
    *response.status_mut() = refusal.status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    respond(response, output, terms).await
}

/// Sends an answer. When this returns, the kernel may not have taken all of it.
pub(crate) async fn respond<B>(
    response: Response<B>,
    output: &mut Output,
    terms: &Terms<'_>,
) -> Result<(), Cut>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let (mut parts, body) = response.into_parts();
    let lent = parts.extensions.remove::<LentBody>();
    let ends = ends(&parts, lent.as_ref(), &body, terms);
    let goes_on = terms.keeps_alive.get()
        && !terms.stopping.get()
        && ends != Ends::WithConnection
        && !terms.awaits_continue.get()
        && !wire::has_token(&parts.headers, &CONNECTION, "close");
    terms.keeps_alive.set(goes_on);
    terms.begun.set(true);
    terms.status.set(Some(parts.status));
    put_head(&parts, ends, terms, &mut output.gathered);
    if !terms.head_only && may_have_body(parts.status) {
        match lent {
            Some(LentBody { lent: Lent::Frozen(frozen), guard: _guard }) => {
                output.put_frozen(&frozen).await?;
            }
            Some(LentBody { lent: Lent::File(file, range), guard: _guard }) => {
                put_file(file, range, output, terms).await?;
            }
            None if ends == Ends::WithConnection => {
                // A premature end must not look like the end of the body.
                output.ends_by_reset(true);
                put_body(body, ends, output, terms).await?;
                output.finish().await?;
                output.ends_by_reset(false);
            }
            None => put_body(body, ends, output, terms).await?,
        }
    }
    output.flush().await
}

fn may_have_body(status: StatusCode) -> bool {
    status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED
}

fn ends<B: Body>(parts: &Parts, lent: Option<&LentBody>, body: &B, terms: &Terms<'_>) -> Ends {
    let declared = parts.headers.get(CONTENT_LENGTH);
    let declared = declared.and_then(|len| len.to_str().ok()).and_then(|len| len.parse().ok());
    let exact = lent.map(LentBody::len).or_else(|| body.size_hint().exact());
    if !may_have_body(parts.status) {
        return Ends::Without;
    }
    if terms.head_only {
        // The length that a request for the whole would get. An empty body does not tell it.
        let len = lent.map(LentBody::len).or(declared).or(exact.filter(|len| *len > 0));
        return len.map_or(Ends::Without, Ends::After);
    }
    match exact.or(declared) {
        Some(len) => Ends::After(len),
        None if terms.version == Version::HTTP_11 => Ends::ByChunk,
        None => Ends::WithConnection,
    }
}

fn put_head(parts: &Parts, ends: Ends, terms: &Terms<'_>, to: &mut Vec<u8>) {
    to.reserve(HEAD);
    let reason = parts.status.canonical_reason().unwrap_or_default();
    put_line(to, &[b"HTTP/1.1 ", parts.status.as_str().as_bytes(), b" ", reason.as_bytes()]);
    if !parts.headers.contains_key(DATE) {
        to.extend_from_slice(b"Date: ");
        terms.common.dates.append(to);
        to.extend_from_slice(b"\r\n");
    }
    put_fields(to, &parts.headers, |name| OURS.contains(&name.as_str()));
    match ends {
        Ends::After(len) => put_line(to, &[b"Content-Length: ", len.to_string().as_bytes()]),
        Ends::ByChunk => put_line(to, &[b"Transfer-Encoding: chunked"]),
        Ends::Without | Ends::WithConnection => {}
    }
    match (terms.keeps_alive.get(), terms.version) {
        (false, _) => put_line(to, &[b"Connection: close"]),
        (true, Version::HTTP_10) => put_line(to, &[b"Connection: keep-alive"]),
        (true, _) => {}
    }
    to.extend_from_slice(b"\r\n");
}

/// Appends fields but those that are left out; frequent ones never are.
#[inline]
fn put_fields(to: &mut Vec<u8>, fields: &HeaderMap, is_left_out: impl Fn(&HeaderName) -> bool) {
    for (name, value) in fields {
        match field_name::frequent(name) {
            Some(written) => to.extend_from_slice(written.as_bytes()),
            None if is_left_out(name) => continue,
            None => field_name::put_capitalised(to, name),
        }
        put_line(to, &[b": ", value.as_bytes()]);
    }
}

#[inline]
fn put_line(to: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        to.extend_from_slice(part);
    }
    to.extend_from_slice(b"\r\n");
}

async fn put_file(
    file: Arc<std::fs::File>,
    range: Range<u64>,
    output: &mut Output,
    terms: &Terms<'_>,
) -> Result<(), Cut> {
    if range.is_empty() || output.put_cached(&file, &range).await? {
        return Ok(());
    }
    let file = Arc::try_unwrap(file).or_else(|shared| shared.try_clone());
    let file =
        file.map_err(|error| Cut::Body(format!("a file can't be had once more: {error}")))?;
    let file = terms.common.driver.file(file)?;
    output.put_file(&file, range).await
}

async fn put_body<B>(body: B, ends: Ends, output: &mut Output, terms: &Terms<'_>) -> Result<(), Cut>
where
    B: Body<Data = Bytes>,
    B::Error: Display,
{
    let mut body = pin!(body);
    let mut left = match ends {
        Ends::After(len) => Some(len),
        _ => None,
    };
    let mut trailers = HeaderMap::new();
    while !body.is_end_stream() {
        let at_once = poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await;
        let frame = match at_once {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                // Finished parts go out while more are made.
                output.flush().await?;
                poll_fn(|context| body.as_mut().poll_frame(context)).await
            }
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|error| Cut::Body(error.to_string()))?;
        let data = match frame.into_data() {
            Ok(data) if data.is_empty() => continue,
            Ok(data) => data,
            Err(frame) => {
                trailers.extend(frame.into_trailers().unwrap_or_default());
                continue;
            }
        };
        if let Some(left) = &mut left {
            *left = left.checked_sub(data.len() as u64).ok_or(Cut::Length("more"))?;
        }
        if ends == Ends::ByChunk {
            // A vector takes everything.
            let _ = write!(output.gathered, "{:x}\r\n", data.len());
            output.put(data).await?;
            output.gathered.extend_from_slice(b"\r\n");
        } else {
            output.put(data).await?;
        }
    }
    if left.is_some_and(|left| left > 0) {
        return Err(Cut::Length("fewer"));
    }
    if ends == Ends::ByChunk {
        put_line(&mut output.gathered, &[b"0"]);
        if terms.takes_trailers {
            put_fields(&mut output.gathered, &trailers, |name| NO_TRAILERS.contains(name));
        }
        output.gathered.extend_from_slice(b"\r\n");
    }
    Ok(())
}
