//! The service: requests for files, answered.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::File;
use std::future::{Ready, ready};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use handoff_http::{LentBody, RequestBody};
use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, LOCATION,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tower_service::Service;

use super::conditions::{State, Wanted};
use super::root::{Found, Missing, Root};

/// Answers requests for the files of a directory. Clones are of the same.
#[derive(Clone)]
pub(super) struct Files(Rc<Shared>);

struct Shared {
    root: Root,
    /// Answers, by their status.
    statuses: RefCell<BTreeMap<u16, u64>>,
}

impl Service<Request<RequestBody>> for Files {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let response = self.answer(&request);
        let status = response.status().as_u16();
        *self.0.statuses.borrow_mut().entry(status).or_default() += 1;
        tracing::info!(method = %request.method(), target = %request.uri(), status, "answered");
        ready(Ok(response))
    }
}

impl Files {
    pub(super) fn new(root: Root) -> Self {
        Self(Rc::new(Shared { root, statuses: RefCell::default() }))
    }

    /// Answers so far, by their status.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.0.statuses.borrow().clone()
    }

    fn answer(&self, request: &Request<RequestBody>) -> Response<String> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let response = plain(StatusCode::METHOD_NOT_ALLOWED, "files are read by GET and HEAD");
            return with(response, ALLOW, "GET, HEAD");
        }
        match self.0.root.find(request.uri().path()) {
            Found::File { file, stat, name } => {
                let state = State::new(
                    stat.st_size as u64,
                    (stat.st_mtime, stat.st_mtime_nsec),
                    (stat.st_ctime, stat.st_ctime_nsec),
                    stat.st_ino,
                );
                of_file(file, &state, &name, request)
            }
            Found::Directory => {
                let response = plain(StatusCode::MOVED_PERMANENTLY, "this is a directory");
                with(response, LOCATION, &behind_slash(request.uri()))
            }
            Found::Nothing(Missing::NoName) => plain(StatusCode::BAD_REQUEST, "this is no path"),
            Found::Nothing(Missing::NotThere) => {
                plain(StatusCode::NOT_FOUND, "there is no such file")
            }
            Found::Nothing(Missing::NotAllowed) => {
                plain(StatusCode::FORBIDDEN, "the server may not read this file")
            }
            Found::Nothing(Missing::NotNow(error)) => {
                tracing::warn!(target = %request.uri(), %error, "a file can't be opened");
                plain(StatusCode::SERVICE_UNAVAILABLE, "the file can't be opened now")
            }
        }
    }
}

fn of_file(
    file: File,
    state: &State,
    name: &[u8],
    request: &Request<RequestBody>,
) -> Response<String> {
    let now = SystemTime::now();
    let response = match state.wanted(request.method(), request.headers(), now) {
        Wanted::Whole => lent(StatusCode::OK, file, 0..state.size, name),
        Wanted::Part(range) => {
            let told = format!("bytes {}-{}/{}", range.start, range.end - 1, state.size);
            with(lent(StatusCode::PARTIAL_CONTENT, file, range, name), CONTENT_RANGE, &told)
        }
        Wanted::Unchanged => {
            let mut response = Response::new(String::new());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        Wanted::NotThis => {
            return plain(StatusCode::PRECONDITION_FAILED, "the file is in another state");
        }
        Wanted::NoSuchPart => {
            let response = plain(StatusCode::RANGE_NOT_SATISFIABLE, "the file is shorter");
            return with(response, CONTENT_RANGE, &format!("bytes */{}", state.size));
        }
    };
    let response = with(response, ETAG, &state.etag);
    let response = with(response, ACCEPT_RANGES, "bytes");
    match state.modified {
        Some(modified) => {
            // None is later than the answer (RFC 9110, 8.8.2.1).
            with(response, LAST_MODIFIED, &httpdate::fmt_http_date(modified.min(now)))
        }
        None => response,
    }
}

fn lent(status: StatusCode, file: File, range: Range<u64>, name: &[u8]) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = status;
    response.extensions_mut().insert(LentBody::file(file, range));
    let response = with(response, CONTENT_TYPE, &content_type(name));
    with(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// What the name says of what is in a file.
fn content_type(name: &[u8]) -> String {
    let kind = mime_guess::from_path(Path::new(OsStr::from_bytes(name))).first_or_octet_stream();
    match kind.type_() {
        mime_guess::mime::TEXT => format!("{kind}; charset=utf-8"),
        _ => kind.to_string(),
    }
}

/// The target with a slash behind its path, of this server whatever the path begins with.
fn behind_slash(target: &Uri) -> String {
    let path = target.path().trim_matches('/');
    let query = target.query().map_or(String::new(), |query| format!("?{query}"));
    format!("/{path}/{query}")
}

fn plain(status: StatusCode, why: &str) -> Response<String> {
    let mut response = Response::new(format!("{status}: {why}\n"));
    *response.status_mut() = status;
    with(response, CONTENT_TYPE, "text/plain; charset=utf-8")
}

fn with(mut response: Response<String>, name: HeaderName, value: &str) -> Response<String> {
    // What is none is not said: of these, a target alone is not ours.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}
