//! A request's head: its line, its fields, and what they say about the body and the connection.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};

use super::host::{is_host, is_host_with_port};
use super::{LONG_TARGET, Refusal, TOO_LONG, TOO_MANY_FIELDS};
use crate::limits::Limits;

/// Fields parsed without an allocation, for usual requests and limits.
const FEW: usize = 128;

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After so many bytes; 0 if there is none.
    Length(u64),
    /// By a chunk without bytes.
    Chunked,
}

/// What a head asks for.
///
/// ```
/// use bytes::Bytes;
/// use handoff_http::Limits;
/// use handoff_http::wire::{Head, Lines};
///
/// let (limits, received) = (Limits::default(), b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n");
/// let (begin, end) = Lines::default().find(received, &limits).unwrap().expect("a whole head");
/// let head = Head::parse(&Bytes::copy_from_slice(&received[begin..end]), &limits).unwrap();
/// assert_eq!((head.request.uri().path(), head.keeps_alive), ("/page", true));
/// ```
#[derive(Debug)]
pub struct Head {
    /// The request, without its body.
    pub request: Request<()>,
    /// How its body ends.
    pub framing: Framing,
    /// Whether the client wants to keep the connection.
    pub keeps_alive: bool,
    /// Whether the client waits for permission to send its body.
    pub awaits_continue: bool,
    /// Whether the client accepts trailers behind a chunked answer.
    pub takes_trailers: bool,
}

impl Head {
    /// Reads a head; [`Lines`](super::Lines) has found its end.
    ///
    /// # Errors
    ///
    /// Status 400 for something that is no request or an ambiguous one; 413; 414; 417 for an expectation
    /// other than `100-continue`; 431; 501 for an unsupported method or coding; 505.
    pub fn parse(head: &Bytes, limits: &Limits) -> Result<Self, Refusal> {
        // On the stack if they fit there.
        let mut few = [const { MaybeUninit::uninit() }; FEW];
        let mut many = Vec::new();
        let room = few.get_mut(..limits.fields).unwrap_or_else(|| {
            many.resize_with(limits.fields, MaybeUninit::uninit);
            &mut many
        });
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(head, room) {
            Ok(httparse::Status::Complete(len)) if len == head.len() => {}
            Ok(_) => return Err(Refusal::bad("the request has no end, or more than one")),
            Err(error) => return Err(refusal(error, head)),
        }
        let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let method = parsed.method.unwrap_or_default();
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Refusal::bad("the method is no token"))?;
        let target = target(head, parsed.path.unwrap_or_default(), &method, limits)?;
        let mut fields = fields_of(head, parsed.headers)?;
        let has = Has::of(&fields);
        check_host(&fields, version)?;
        take_host(&mut fields, &target)?;
        let framing = match has.body {
            true => framing(&fields, version, limits)?,
            false => Framing::Length(0),
        };
        let says = |token| has.connection && has_token(&fields, &CONNECTION, token);
        let keeps_alive = version == Version::HTTP_11 || says("keep-alive");
        let keeps_alive = keeps_alive && !says("close");
        let awaits_continue = has.expect && awaits_continue(&fields, version)?;
        let awaits_continue = awaits_continue && framing != Framing::Length(0);
        let takes_trailers =
            version == Version::HTTP_11 && has.te && has_token(&fields, &TE, "trailers");
        let mut request = Request::new(());
        (*request.method_mut(), *request.uri_mut()) = (method, target);
        (*request.version_mut(), *request.headers_mut()) = (version, fields);
        Ok(Self { request, framing, keeps_alive, awaits_continue, takes_trailers })
    }
}

/// Which of the rare fields are there: one look at each costs less than a search for all of these.
#[derive(Default)]
struct Has {
    /// The fields that announce a body.
    body: bool,
    connection: bool,
    expect: bool,
    te: bool,
}

impl Has {
    fn of(fields: &HeaderMap) -> Self {
        let mut has = Self::default();
        for name in fields.keys() {
            has.body |= *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING;
            has.connection |= *name == CONNECTION;
            has.expect |= *name == EXPECT;
            has.te |= *name == TE;
        }
        has
    }
}

fn refusal(error: httparse::Error, head: &[u8]) -> Refusal {
    use httparse::Error;
    match error {
        Error::TooManyHeaders => TOO_MANY_FIELDS,
        Error::Version if names_a_version(head) => Refusal::new(
            StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            "this server speaks HTTP/1.1 and HTTP/1.0",
        ),
        Error::HeaderName => Refusal::bad("a field's name has bytes that no name has"),
        Error::HeaderValue => Refusal::bad("a field's value has bytes that no value has"),
        _ => Refusal::bad("the request line is none of HTTP/1.1"),
    }
}

/// Whether the request line ends as one of some version of HTTP does.
fn names_a_version(head: &[u8]) -> bool {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let version = words.next().unwrap_or_default();
    let is_version = matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit());
    is_version && words.next().is_none()
}

/// The target, in one of the forms that its method has.
fn target(head: &Bytes, target: &str, method: &Method, limits: &Limits) -> Result<Uri, Refusal> {
    if *method == Method::CONNECT {
        // RFC 9110, 9.3.6: an invalid port is refused as such.
        return Err(match is_host_with_port(target.as_bytes()) {
            true => Refusal::new(StatusCode::NOT_IMPLEMENTED, "this server is no proxy"),
            false => Refusal::bad("the target of CONNECT is no host with a port"),
        });
    }
    if target.len() > limits.target {
        return Err(LONG_TARGET);
    }
    let bad = Refusal::bad("the request's target is no URI");
    // A fragment would be dropped silently.
    if !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(bad);
    }
    let uri = Uri::from_maybe_shared(head.slice_ref(target.as_bytes())).map_err(|_| bad)?;
    let fits = match target.as_bytes() {
        [b'/', ..] => true,
        b"*" => *method == Method::OPTIONS,
        _ => uri.scheme().is_some() && uri.authority().is_some(),
    };
    if fits { Ok(uri) } else { Err(bad) }
}

/// Fields, whose values share the head's memory.
pub(super) fn fields_of(
    head: &Bytes,
    fields: &[httparse::Header<'_>],
) -> Result<HeaderMap, Refusal> {
    let mut map = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes())
            .map_err(|_| Refusal::bad("a field's name has bytes that no name has"))?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value))
            .map_err(|_| Refusal::bad("a field's value has bytes that no value has"))?;
        map.append(name, value);
    }
    Ok(map)
}

fn check_host(fields: &HeaderMap, version: Version) -> Result<(), Refusal> {
    let mut hosts = fields.get_all(HOST).iter();
    let Some(host) = hosts.next() else {
        return match version {
            Version::HTTP_10 => Ok(()),
            _ => Err(Refusal::bad("a request of HTTP/1.1 has a field Host")),
        };
    };
    if hosts.next().is_some() {
        return Err(Refusal::bad("the request has several fields Host"));
    }
    if host.is_empty() || is_host(host.as_bytes()) {
        Ok(())
    } else {
        Err(Refusal::bad("the field Host names no host"))
    }
}

/// The host of an absolute target counts, whatever the field Host says (RFC 9112, 3.2.2): the service sees one host.
fn take_host(fields: &mut HeaderMap, target: &Uri) -> Result<(), Refusal> {
    let Some(authority) = target.authority() else { return Ok(()) };
    let authority = authority.as_str();
    // RFC 9110, 4.2.4: it may mislead whoever reads it.
    if authority.contains('@') {
        return Err(Refusal::bad("the request's target names a user"));
    }
    let no_host = Refusal::bad("the request's target names no host");
    if !is_host(authority.as_bytes()) {
        return Err(no_host);
    }
    fields.insert(HOST, HeaderValue::from_str(authority).map_err(|_| no_host)?);
    Ok(())
}

fn framing(fields: &HeaderMap, version: Version, limits: &Limits) -> Result<Framing, Refusal> {
    let mut lengths = fields.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(Refusal::bad("the request has several fields Content-Length"));
    }
    if fields.contains_key(TRANSFER_ENCODING) {
        if length.is_some() {
            return Err(Refusal::bad("the request has both Content-Length and Transfer-Encoding"));
        }
        if version == Version::HTTP_10 {
            return Err(Refusal::bad("HTTP/1.0 has no Transfer-Encoding"));
        }
        return check_codings(fields).map(|()| Framing::Chunked);
    }
    let Some(length) = length else { return Ok(Framing::Length(0)) };
    let digits = length.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Refusal::bad("the field Content-Length is no number"));
    }
    // All digits: if it is no number, it has too many.
    let length = length.to_str().ok().and_then(|digits| digits.parse::<u64>().ok());
    match length {
        Some(length) if length <= limits.body => Ok(Framing::Length(length)),
        _ => Err(TOO_LONG),
    }
}

/// Whether the one coding is `chunked`.
fn check_codings(fields: &HeaderMap) -> Result<(), Refusal> {
    let codings: Vec<&[u8]> = fields
        .get_all(TRANSFER_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .collect();
    let is_chunked = |coding: &&[u8]| coding.eq_ignore_ascii_case(b"chunked");
    match codings.split_last() {
        Some((last, [])) if is_chunked(last) => Ok(()),
        Some((last, others)) if is_chunked(last) && !others.iter().any(is_chunked) => {
            Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "this server knows no transfer coding but chunked",
            ))
        }
        _ => Err(Refusal::bad("the last transfer coding is chunked, and is there once")),
    }
}

fn awaits_continue(fields: &HeaderMap, version: Version) -> Result<bool, Refusal> {
    let mut awaits = false;
    // HTTP/1.0 has none, and whatever it says about one is ignored.
    for value in fields.get_all(EXPECT).iter().filter(|_| version == Version::HTTP_11) {
        if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") {
            return Err(Refusal::new(
                StatusCode::EXPECTATION_FAILED,
                "this server meets no expectation but 100-continue",
            ));
        }
        awaits = true;
    }
    Ok(awaits)
}

/// Whether a list has this token.
pub(crate) fn has_token(fields: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = fields.get_all(name).iter();
    let mut tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.any(|it| it.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}
