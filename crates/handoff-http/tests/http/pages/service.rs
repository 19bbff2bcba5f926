use std::convert::Infallible;
use std::fs::File;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use handoff_http::{LentBody, RequestBody};
use http::{Request, Response};
use tower_service::Service;

/// Answers every request with a file.
#[derive(Clone)]
pub struct OneFile(pub Arc<File>);

impl Service<Request<RequestBody>> for OneFile {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody>) -> Self::Future {
        let len = self.0.metadata().map_or(0, |metadata| metadata.len());
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(LentBody::file(Arc::clone(&self.0), 0..len));
        ready(Ok(response))
    }
}
