//! hyper's own server, on a thread of tokio's runtime.

use std::{
    convert::Infallible,
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Response, header::CONTENT_LENGTH};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, runtime::Runtime};

use super::{
    ours::Source,
    served::{Copies, Server},
    testbed::{Port, Testbed},
};

/// Bytes of a file that are read at a time.
const READ: u64 = 64 << 10;

/// A service that answers all requests alike.
#[derive(Clone)]
enum Answers {
    File(Arc<File>, u64),
    Bytes(Bytes),
}

impl Answers {
    fn answer(&self) -> Response<BoxBody<Bytes, io::Error>> {
        match self {
            Self::File(file, size) => {
                let mut response = Response::new(BoxBody::new(of_file(Arc::clone(file), *size)));
                response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(*size));
                response
            }
            Self::Bytes(bytes) => {
                Response::new(Full::new(bytes.clone()).map_err(|never| match never {}).boxed())
            }
        }
    }
}

/// A body that is read from the file when it is polled, without another thread, since the page cache has the file.
fn of_file(file: Arc<File>, size: u64) -> impl http_body::Body<Data = Bytes, Error = io::Error> {
    let pieces = (0..size).step_by(READ as usize).map(move |at| {
        let mut piece = vec![0; READ.min(size - at) as usize];
        file.read_exact_at(&mut piece, at)?;
        Ok(Frame::data(Bytes::from(piece)))
    });
    StreamBody::new(stream::iter(pieces))
}

pub(super) struct Hyper {
    runtime: Runtime,
    copies: u64,
}

impl Hyper {
    /// Makes a server that listens at the port.
    ///
    /// # Errors
    ///
    /// One line with the error.
    pub(super) fn new(
        testbed: &Testbed,
        port: &Port<'_>,
        source: Source,
        size: u64,
    ) -> Result<Self, String> {
        let path = testbed.path(size);
        let line = |error: io::Error| format!("{}: {error}", path.display());
        let answers = match source {
            Source::File => Answers::File(Arc::new(File::open(&path).map_err(line)?), size),
            Source::Bytes => Answers::Bytes(fs::read(&path).map_err(line)?.into()),
        };
        let listener = port.listen()?;
        let make = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            listener.set_nonblocking(true)?;
            let _entered = runtime.enter();
            let listener = TcpListener::from_std(listener)?;
            runtime.spawn(serve(listener, answers));
            drop(_entered);
            Ok(runtime)
        };
        let runtime = make().map_err(|error: io::Error| format!("no runtime: {error}"))?;
        // A file's bytes are copied out of the file and into the socket; other bytes only into the socket.
        Ok(Self { runtime, copies: if source == Source::File { 2 } else { 1 } })
    }
}

async fn serve(listener: TcpListener, answers: Answers) {
    // The client reports what does not work.
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let answers = answers.clone();
        let service = service_fn(move |_| {
            let answer = answers.answer();
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

impl Server for Hyper {
    fn serve_for(&mut self, time: Duration) -> Result<(), String> {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
        Ok(())
    }

    fn copies(&self) -> Copies {
        Copies::OfEach(self.copies)
    }
}
