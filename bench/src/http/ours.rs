//! The library's own server, with a tower service.

use std::{
    convert::Infallible,
    fs::{self, File},
    future::{Future, Ready, pending, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::{Either, select};
use handoff::{Driver, RingUse};
use handoff_http::{LentBody, Limits, RequestBody, Server as HttpServer};
use http::{Request, Response};
use http_body_util::Full;
use tower_service::Service;

use super::{
    Job,
    served::{Copies, Counts, Server},
    testbed::{Port, Testbed},
};

/// The most connections that the server takes.
const CONNECTIONS: usize = 1024;

/// The kind of an answer's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    File,
    Bytes,
}

/// A service that answers all requests alike.
#[derive(Clone)]
enum Answers {
    File(Arc<File>, u64),
    Bytes(Bytes),
}

impl Service<Request<RequestBody>> for Answers {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<RequestBody>) -> Self::Future {
        ready(Ok(match self {
            Self::File(file, size) => {
                let mut response = Response::new(Full::default());
                let body = LentBody::file(Arc::clone(file), 0..*size);
                response.extensions_mut().insert(body);
                response
            }
            Self::Bytes(bytes) => Response::new(Full::new(bytes.clone())),
        }))
    }
}

pub(super) struct Ours {
    driver: Driver,
    server: HttpServer,
    serving: Pin<Box<dyn Future<Output = ()>>>,
}

impl Ours {
    /// Makes a server that listens at the port.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        testbed: &Testbed,
        port: &Port<'_>,
        source: Source,
        job: Job,
    ) -> Result<Self, String> {
        let path = testbed.path(job.size);
        let line = |error: std::io::Error| format!("{}: {error}", path.display());
        let answers = match source {
            Source::File => Answers::File(Arc::new(File::open(&path).map_err(line)?), job.size),
            Source::Bytes => Answers::Bytes(fs::read(&path).map_err(line)?.into()),
        };
        let listener = port.listen()?;
        let make = || -> handoff::Result<Self> {
            let driver = Driver::builder()
                .ring(RingUse::Require)
                .entries(1024)
                // The driver has the same room as the one of `handoff serve` by default.
                .in_flight(64 + CONNECTIONS * 24)
                .registered_buffers(16_384)
                .registered_files(64 + CONNECTIONS as u32 * 4)
                .build()?;
            let limits = Limits { connections: CONNECTIONS, ..Limits::default() };
            let server = HttpServer::new(&driver, limits);
            let (serving, listener) = (server.clone(), driver.listen(listener)?);
            let serving = async move { serving.serve(listener, answers, pending()).await };
            Ok(Self { driver, server, serving: Box::pin(serving) })
        };
        make().map_err(|error| error.to_string())
    }
}

impl Server for Ours {
    fn serve_for(&mut self, time: Duration) -> Result<(), String> {
        let Self { driver, serving, .. } = self;
        let over = std::pin::pin!(driver.sleep(time));
        match driver.block_on(select(serving, over)) {
            Ok(Either::Right((Ok(()), _))) => Ok(()),
            Ok(Either::Right((Err(error), _))) | Err(error) => Err(error.to_string()),
            Ok(Either::Left(_)) => Err("the server has ended".to_owned()),
        }
    }

    fn copies(&self) -> Copies {
        let served = self.server.served();
        Copies::Counted(Counts {
            sent: served.sent.total(),
            copied: served.sent.copied + served.read.copied,
            unknown: served.sent.unknown + served.read.unknown,
        })
    }
}
