//! A server on a thread of its own, and a client that sees each byte.

use std::convert::Infallible;
use std::fmt::Display;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use bytes::Bytes;
use futures_util::future::select;
use handoff::{Driver, DriverBuilder, RingUse};
use handoff_http::{Limits, RequestBody, Served, Server};
use handoff_testbed::helpers::eventually;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

/// Longer than anything here takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// With io_uring, and without.
pub(crate) const RINGS: [RingUse; 2] = [RingUse::Prefer, RingUse::Avoid];

pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    /// Dropping it stops the server.
    stop: UnixStream,
    thread: JoinHandle<Served>,
    /// Its counts a moment ago.
    served: Arc<Mutex<Served>>,
}

impl Serving {
    pub(crate) fn start(ring: RingUse, limits: Limits, router: Router) -> Self {
        Self::start_service(ring, limits, move || router)
    }

    pub(crate) fn start_service<S, B>(
        ring: RingUse,
        limits: Limits,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Self
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
        S::Error: Display,
        B: Body<Data = Bytes> + 'static,
        B::Error: Display,
    {
        Self::start_on(Driver::builder().ring(ring).in_flight(16_384), limits, make)
    }

    pub(crate) fn start_on<S, B>(
        driver: DriverBuilder,
        limits: Limits,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Self
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
        S::Error: Display,
        B: Body<Data = Bytes> + 'static,
        B::Error: Display,
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        // Crowds come faster than they are accepted, and the standard library's backlog is 128.
        rustix::net::listen(&listener, 4096).expect("listens");
        Self::start_at(listener, driver, limits, make)
    }

    /// On a socket that listens.
    pub(crate) fn start_at<S, B>(
        listener: TcpListener,
        driver: DriverBuilder,
        limits: Limits,
        make: impl FnOnce() -> S + Send + 'static,
    ) -> Self
    where
        S: Service<Request<RequestBody>, Response = Response<B>> + Clone + 'static,
        S::Error: Display,
        B: Body<Data = Bytes> + 'static,
        B::Error: Display,
    {
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = UnixStream::pair().expect("a pair");
        let served = Arc::<Mutex<Served>>::default();
        let tell = Arc::clone(&served);
        let thread = std::thread::spawn(move || {
            let driver = driver.build().expect("a driver");
            let listener = driver.listen(listener).expect("listens");
            let server = Server::new(&driver, limits);
            let stopped = driver.file(stopped).expect("attaches");
            let stop = async {
                // It is closed, if nothing else.
                let _ = stopped.readable().expect("has room").await;
            };
            let serving = pin!(server.serve(listener, make(), stop));
            let telling = pin!(async {
                loop {
                    *tell.lock().expect("nobody panics") = server.served();
                    driver.sleep(Duration::from_millis(20)).await.expect("it is driven");
                }
            });
            let both = async {
                select(serving, telling).await;
            };
            driver.block_on(both).expect("the kernel goes on");
            server.served()
        });
        Self { address, stop, thread, served }
    }

    /// Waits until its counts match.
    pub(crate) fn until(&self, mut so: impl FnMut(&Served) -> bool) {
        let begin = Instant::now();
        loop {
            let served = *self.served.lock().expect("nobody panics");
            if so(&served) {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "it stays at {served:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::to(self.address)
    }

    /// From another address of this machine.
    pub(crate) fn connect_from(&self, source: [u8; 4]) -> Client {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&stream, &SocketAddr::from((source, 0))).expect("binds");
        connect(&stream, &self.address).expect("connects");
        Client::of(stream.into())
    }

    /// By a client that has hardly any room, until it reads.
    pub(crate) fn connect_without_room(&self) -> Client {
        use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
        let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_recv_buffer_size(&stream, 4096).expect("has a size");
        connect(&stream, &self.address).expect("connects");
        Client::of(stream.into())
    }

    /// One request on its own connection.
    pub(crate) fn ask(&self, request: &[u8]) -> Answer {
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }

    pub(crate) fn stop(self) -> Served {
        drop(self.stop);
        self.thread.join().expect("the server ends well")
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// A client's answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in small letters.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(has, _)| has == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn is_last(&self) -> bool {
        self.field("connection") == Some("close")
    }
}

fn fields(parsed: &[httparse::Header<'_>]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    parsed.iter().map(|it| (it.name.to_ascii_lowercase(), text(it.value))).collect()
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::of(TcpStream::connect(address).expect("connects"))
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).expect("can wait");
        stream.set_nodelay(true).expect("is of TCP");
        Self { stream, received: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sends");
    }

    /// Sends what it can; the server may have ended the connection.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn end(&self) {
        self.stream.shutdown(Shutdown::Write).expect("ends");
    }

    /// More bytes; false at the end.
    fn more(&mut self) -> bool {
        let mut piece = vec![0; 1 << 16];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(len) => {
                self.received.extend_from_slice(&piece[..len]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("receives: {error}, after {:?}", self.received),
        }
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        while self.received.len() < len {
            assert!(self.more(), "ended after {} of {len} bytes", self.received.len());
        }
        self.received.drain(..len).collect()
    }

    fn take_line(&mut self) -> String {
        loop {
            if let Some(at) = self.received.windows(2).position(|it| it == b"\r\n") {
                let line = self.take(at + 2);
                return String::from_utf8(line[..at].to_vec()).expect("text");
            }
            assert!(self.more(), "ended within a line: {:?}", self.received);
        }
    }

    fn take_head(&mut self) -> (u16, Vec<(String, String)>) {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut response = httparse::Response::new(&mut headers);
            if let httparse::Status::Complete(len) = response.parse(&self.received).expect("a head")
            {
                let head = (response.code.expect("a status"), fields(response.headers));
                self.received.drain(..len);
                return head;
            }
            assert!(self.more(), "ended within a head: {:?}", self.received);
        }
    }

    /// An interim answer.
    pub(crate) fn interim(&mut self) -> u16 {
        self.take_head().0
    }

    /// The answer to a request for a head alone.
    pub(crate) fn head(&mut self) -> Answer {
        let (status, fields) = self.take_head();
        Answer { status, fields, body: Vec::new(), trailers: Vec::new() }
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let mut answer = self.head();
        if matches!(answer.status, 204 | 304) {
            return answer;
        }
        let length = answer.field("content-length").map(|len| len.parse().expect("a number"));
        if answer.field("transfer-encoding") == Some("chunked") {
            assert_eq!(length, None, "both");
            loop {
                let size = usize::from_str_radix(&self.take_line(), 16).expect("a size");
                if size == 0 {
                    break;
                }
                answer.body.extend(self.take(size));
                assert_eq!(self.take_line(), "");
            }
            loop {
                let line = self.take_line();
                let Some((name, value)) = line.split_once(": ") else { break };
                answer.trailers.push((name.to_owned(), value.to_owned()));
            }
        } else if let Some(length) = length {
            answer.body = self.take(length);
        } else {
            answer.body = self.rest();
        }
        answer
    }

    /// Everything up to the end.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.more() {}
        std::mem::take(&mut self.received)
    }

    /// The connection ends, and nothing comes before.
    pub(crate) fn ends(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "more came: {}", String::from_utf8_lossy(&rest));
    }
}

/// Waits until something has come for each of these clients, and no more has room: it has not grown between two looks.
pub(crate) fn until_full(clients: &[Client]) {
    const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
    let unread = |client: &Client| rustix::io::ioctl_fionread(&client.stream).expect("tells");
    let mut before = Vec::new();
    eventually("no more has room", || {
        std::thread::sleep(BETWEEN_LOOKS);
        let now: Vec<_> = clients.iter().map(unread).collect();
        let are_full = now == before && !now.contains(&0);
        before = now;
        are_full.then_some(())
    });
}

/// Bytes that show their place.
pub(crate) fn content(len: usize) -> Vec<u8> {
    handoff_testbed::helpers::bytes_at(0, len)
}

/// A service made of a function that no router would make.
#[derive(Clone)]
pub(crate) struct Of<F>(pub(crate) F);

impl<F, R, B> Service<Request<RequestBody>> for Of<F>
where
    F: FnMut(Request<RequestBody>) -> R,
    R: Future<Output = Response<B>>,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answering<R>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Answering<R> {
        Answering(Box::pin((self.0)(request)))
    }
}

pub(crate) struct Answering<R>(std::pin::Pin<Box<R>>);

impl<R: Future> Future for Answering<R> {
    type Output = Result<R::Output, Infallible>;

    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}
