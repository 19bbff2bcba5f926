//! HTTPS: pages and files over TLS that this process ciphers, or the kernel.

use std::convert::Infallible;
use std::fs::{self, File};
use std::future::{Ready, ready};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use handoff::Driver;
use handoff::tls::{Ciphering, TlsAcceptor};
use handoff_http::{LentBody, Limits, RequestBody, Server};
use http::{Request, Response};
use rcgen::Certificate;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tower_service::Service;

use crate::curl::curl;
use crate::serving::RINGS;

const LEN: usize = 3_000_001;

/// `/page` is a page, everything else a file.
#[derive(Clone)]
struct Site(Arc<File>);

impl Service<Request<RequestBody>> for Site {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        if request.uri().path() == "/page" {
            return ready(Ok(Response::new("hello".to_owned())));
        }
        let mut response = Response::new(String::new());
        response.extensions_mut().insert(LentBody::file(Arc::clone(&self.0), 0..LEN as u64));
        ready(Ok(response))
    }
}

fn content() -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 % 251) as u8).collect()
}

/// An answer's head and body.
fn answer(stream: &mut impl Read, body: usize) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let mut bytes = vec![0; body];
    stream.read_exact(&mut bytes).expect("a body");
    (String::from_utf8(head).expect("text"), bytes)
}

/// A site, while somebody asks it: the address, the certificate, and the file that it has.
fn asked(ciphering: Ciphering, ask: impl Fn(SocketAddr, &Certificate, &Path) + Sync) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("they belong together");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("file");
    fs::write(&path, content()).expect("written");
    for ring in RINGS {
        let driver = Driver::builder().ring(ring).build().expect("a driver");
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let stopped = driver.socket(stopped).expect("attached");
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                // It ends with the asking, also where that fails.
                let _stop = stop;
                ask(address, &made.cert, &path);
            });
            let limits = Limits { head_time: Duration::from_secs(2), ..Limits::default() };
            let acceptor = TlsAcceptor::new(Arc::clone(&config)).ciphering(ciphering);
            let server = Server::new(&driver, limits).over_tls(acceptor);
            let site = Site(Arc::new(File::open(&path).expect("opened")));
            let served = driver.block_on(async {
                let listener = driver.listen(listener).expect("listens");
                let stop = pin!(async {
                    let _ = stopped.readable().expect("attached").await;
                });
                server.serve(listener, site, stop).await;
            });
            served.expect("driven");
            asking.join().expect("the client is content");
        });
    }
}

/// In the clear nobody is served, nor is one that says nothing for longer than it may.
fn pages_and_files_come(ciphering: Ciphering) {
    asked(ciphering, |address, certificate, _| {
        let mut silent = TcpStream::connect(address).expect("connected");
        let mut plain = TcpStream::connect(address).expect("connected");
        plain.write_all(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
        let mut said = String::new();
        plain.read_to_string(&mut said).expect("is told, in the clear");
        assert!(said.starts_with("HTTP/1.1 400") && said.ends_with("https://\n"), "{said}");
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).expect("a certificate");
        let mut config =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = "localhost".try_into().expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("one");
        let socket = TcpStream::connect(address).expect("connected");
        let mut stream = StreamOwned::new(connection, socket);
        for (path, body) in [("/page", &b"hello"[..]), ("/file", &content()), ("/page", b"hello")] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("sent");
            let (head, got) = answer(&mut stream, body.len());
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert!(got == body, "the body of {path} differs");
        }
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        let last = b"GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(last).expect("sent");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("a proper end");
        assert!(rest.ends_with(b"hello"));
        let begun = Instant::now();
        let _ = silent.read(&mut [0]);
        assert!(begun.elapsed() < Duration::from_secs(30), "it keeps its place");
    });
}

#[test]
fn pages_and_files_go_over_tls_and_so_does_the_end() {
    pages_and_files_come(Ciphering::User);
}

/// curl has a TLS of its own, and no end without close-notify.
#[test]
fn curl_gets_pages_and_files() {
    if curl(&["--version"]).is_none() {
        handoff_testbed::skip!("there is no curl here");
    }
    asked(Ciphering::User, |address, certificate, path| {
        let authority = path.with_extension("pem");
        fs::write(&authority, certificate.pem()).expect("written");
        let authority = authority.to_str().expect("UTF-8");
        let (port, to) = (address.port(), format!("localhost:{}:127.0.0.1", address.port()));
        let url = |name: &str| format!("https://localhost:{port}/{name}");
        let asking = ["--cacert", authority, "--resolve", &to];
        let got = |more: &[&str]| curl(&[&asking[..], more].concat()).expect("is there");
        assert!(got(&[&url("file"), &url("page")]) == [&content()[..], b"hello"].concat());
        assert!(got(&["--tls-max", "1.2", &url("file")]) == content());
    });
}

mod guest {
    use super::*;

    #[test]
    fn pages_and_files_go_over_kernel_tls_and_so_does_the_end() {
        pages_and_files_come(Ciphering::Kernel);
    }
}
