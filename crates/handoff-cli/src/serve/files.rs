//! The service: answers requests for files.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::task::{Context, Poll};

use handoff_command::descriptors::{Lent, Reserve};
use handoff_command::output;
use handoff_command::rate_limit::RateLimit;
use handoff_http::{LentBody, RequestBody};
use http::header::{ALLOW, CONTENT_RANGE, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{Extensions, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tower_service::Service;

use super::conditions::Wanted;
use super::header_cache::{FileHeaders, HeaderCache};
use super::root::{Found, Missing, Root};

/// Answers requests for the files of a directory. Clones serve the same one.
#[derive(Clone)]
pub(super) struct Files(Rc<Shared>);

struct Shared {
    root: Root,
    headers: HeaderCache,
    /// What is said of files that can't be opened.
    unopened: RateLimit,
    /// For the files, if connections could take all descriptors.
    reserve: Option<Reserve>,
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

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        // The existing map takes the answer's body, which saves making another.
        let extensions = std::mem::take(request.extensions_mut());
        let response = self.answer(&request, extensions);
        let status = response.status().as_u16();
        *self.0.statuses.borrow_mut().entry(status).or_default() += 1;
        tracing::info!(method = %request.method(), target = %request.uri(), status, "answered");
        ready(Ok(response))
    }
}

impl Files {
    pub(super) fn new(root: Root, unopened: RateLimit, reserve: Option<Reserve>) -> Self {
        let (headers, statuses) = Default::default();
        Self(Rc::new(Shared { root, headers, unopened, reserve, statuses }))
    }

    /// Answers so far, by their status.
    pub(super) fn statuses(&self) -> BTreeMap<u16, u64> {
        self.0.statuses.borrow().clone()
    }

    fn answer(&self, request: &Request<RequestBody>, extensions: Extensions) -> Response<String> {
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let response = plain(StatusCode::METHOD_NOT_ALLOWED, "files are read by GET and HEAD");
            return with(response, ALLOW, "GET, HEAD");
        }
        // Dropped after the file is closed.
        let room = self.0.reserve.as_ref().map(|reserve| reserve.lend(1));
        match self.0.root.find(request.uri().path()) {
            Found::File { file, stat, name } => {
                let headers = self.0.headers.get(&name, &file, &stat);
                of_file(room, file, &headers, request, extensions)
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
                let line = || format!("{} can't be opened: {error}", request.uri().path());
                if let Some(line) = self.0.unopened.now(line) {
                    output::say(line);
                }
                plain(StatusCode::SERVICE_UNAVAILABLE, "the file can't be opened now")
            }
        }
    }
}

fn of_file(
    room: Option<Lent>,
    file: File,
    headers: &FileHeaders,
    request: &Request<RequestBody>,
    extensions: Extensions,
) -> Response<String> {
    let size = headers.state.size;
    let lent = |status, range| {
        let mut response = answer(status, headers);
        *response.extensions_mut() = extensions;
        let body = LentBody::file(file, range);
        response.extensions_mut().insert(match room {
            Some(room) => body.guarded_by(room),
            None => body,
        });
        response
    };
    match headers.state.wanted(request.method(), request.headers()) {
        Wanted::Whole => lent(StatusCode::OK, 0..size),
        Wanted::Part(range) => {
            let part = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            with(lent(StatusCode::PARTIAL_CONTENT, range), CONTENT_RANGE, &part)
        }
        Wanted::Unchanged => {
            let mut response = answer(StatusCode::NOT_MODIFIED, headers);
            // The client's copy identifies it.
            response.headers_mut().remove(CONTENT_TYPE);
            response.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
            response
        }
        Wanted::NotThis => plain(StatusCode::PRECONDITION_FAILED, "the file is in another state"),
        Wanted::NoSuchPart => {
            let response = plain(StatusCode::RANGE_NOT_SATISFIABLE, "the file is shorter");
            with(response, CONTENT_RANGE, &format!("bytes */{size}"))
        }
    }
}

fn answer(status: StatusCode, headers: &FileHeaders) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = status;
    response.headers_mut().clone_from(&headers.fields);
    response
}

/// The target with a slash behind its path, on this server whatever the path begins with.
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
    // A value that no field can have is left out; of these values, only a target is not ours.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
    response
}
