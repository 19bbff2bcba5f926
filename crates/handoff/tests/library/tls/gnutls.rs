//! GnuTLS at the other end, in both roles: versions, groups and protocols, keys that it changes, sessions that it resumes.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use handoff::tls::{Ciphering, TlsAcceptor, TlsConnector, TlsSession};
use handoff::{Buffer, Driver, Socket};
use handoff_testbed::running::is_long;
use rustls::{ProtocolVersion, ServerConfig};
use tempfile::TempDir;

use super::fixture::{BOTH, Identity, Side, localhost};
use crate::traffic::{assert_same, drivers};

/// Bytes each way.
const LEN: usize = 300_000;

/// Between two changes of keys, and how many there are.
const BETWEEN: usize = 1 << 20;
const CHANGES: usize = 6;

const PROTOCOL: &str = "handoff";

/// What it may agree on, in its own words; and the version.
const WAYS: [(&str, ProtocolVersion); 5] = [
    ("-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-X25519", ProtocolVersion::TLSv1_3),
    (
        "-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-SECP256R1:-CIPHER-ALL:+CHACHA20-POLY1305",
        ProtocolVersion::TLSv1_3,
    ),
    (
        "-VERS-ALL:+VERS-TLS1.3:-GROUP-ALL:+GROUP-SECP384R1:-CIPHER-ALL:+AES-128-GCM",
        ProtocolVersion::TLSv1_3,
    ),
    ("-VERS-ALL:+VERS-TLS1.2:-GROUP-ALL:+GROUP-X25519", ProtocolVersion::TLSv1_2),
    (
        "-VERS-ALL:+VERS-TLS1.2:-GROUP-ALL:+GROUP-SECP256R1:-CIPHER-ALL:+AES-128-GCM",
        ProtocolVersion::TLSv1_2,
    ),
];

fn is_missing() -> bool {
    Command::new("gnutls-cli").arg("--version").output().is_err()
}

/// Lines, since its server echoes nothing else.
fn lines(len: usize) -> Vec<u8> {
    (0..len).map(|at| if at % 64 == 63 { b'\n' } else { b'a' + (at * 7 % 26) as u8 }).collect()
}

/// Files for it, and what we are.
struct Place {
    directory: TempDir,
    identity: Identity,
}

impl Place {
    fn new() -> Self {
        let (directory, identity) = (tempfile::tempdir().expect("a directory"), Identity::new());
        fs::write(directory.path().join("certificate"), &identity.pem.0).expect("written");
        fs::write(directory.path().join("key"), &identity.pem.1).expect("written");
        Self { directory, identity }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Its client, to this listener; what it says of itself is in the file `log`.
    fn client(&self, listener: &TcpListener, options: &[&str]) -> Child {
        let port = listener.local_addr().expect("an address").port().to_string();
        let mut command = Command::new("gnutls-cli");
        command.args(["--verify-hostname=localhost", "--port", &port]).args(options);
        command.arg("--x509cafile").arg(self.path("certificate"));
        command.arg("--logfile").arg(self.path("log")).arg("127.0.0.1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().expect("starts")
    }

    /// Its server, which echoes, and a connection to it.
    fn server(&self, options: &[&str]) -> (Child, TcpStream) {
        let free = TcpListener::bind("0.0.0.0:0").and_then(|it| it.local_addr()).expect("a port");
        let mut command = Command::new("gnutls-serv");
        command.args(["--echo", "--disable-client-cert", "--port", &free.port().to_string()]);
        command.args(options).arg("--x509certfile").arg(self.path("certificate"));
        command.arg("--x509keyfile").arg(self.path("key"));
        let log = File::create(self.path("log")).expect("made");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a file")).stdout(log);
        let child = command.spawn().expect("starts");
        let begun = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", free.port())) {
                Ok(connection) => return (child, connection),
                Err(error) if begun.elapsed() > Duration::from_secs(20) => panic!("{error}"),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn acceptor(&self, change: impl FnOnce(&mut ServerConfig)) -> TlsAcceptor {
        let mut config = self.identity.server(BOTH);
        config.alpn_protocols = vec![PROTOCOL.into()];
        config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().expect("random bits");
        change(&mut config);
        TlsAcceptor::new(config).ciphering(Ciphering::User)
    }

    fn connector(&self) -> TlsConnector {
        let mut config = self.identity.client(BOTH);
        config.alpn_protocols = vec![PROTOCOL.into()];
        TlsConnector::new(config).ciphering(Ciphering::User)
    }
}

fn ends(mut peer: Child) {
    let _ = peer.kill();
    peer.wait().expect("it ends");
}

/// Writes to its standard input, which stays open until that is dropped.
fn feed(peer: &mut Child, bytes: Vec<u8>) -> JoinHandle<std::process::ChildStdin> {
    let mut stdin = peer.stdin.take().expect("a pipe");
    thread::spawn(move || {
        stdin.write_all(&bytes).expect("it reads");
        stdin
    })
}

/// All bytes of its standard output.
fn output(peer: &mut Child) -> JoinHandle<Vec<u8>> {
    let mut stdout = peer.stdout.take().expect("a pipe");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).expect("reads");
        bytes
    })
}

/// Sends and receives as much, and ends properly. Its programs then end, and need not say so.
async fn exchange(socket: &Socket, bytes: Vec<u8>) -> handoff::Result<Vec<u8>> {
    let len = bytes.len();
    let sending = socket.send(Buffer::from(bytes)).expect("accepted");
    let receiving = socket.receive_exact(Buffer::from(vec![0; len])).expect("accepted");
    let (sent, received) =
        futures_lite::future::zip(std::future::IntoFuture::into_future(sending), receiving).await;
    sent?.sent?;
    let received = received?;
    received.result?;
    socket.shutdown(Shutdown::Write)?;
    socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted").await?;
    Ok(received.buffer.to_vec())
}

fn assert_agreed(session: &TlsSession, version: ProtocolVersion) {
    assert_eq!(session.version, version);
    assert_eq!(session.protocol.as_deref(), Some(PROTOCOL.as_bytes()));
}

fn one(driver: &Driver, place: &Place, side: Side, (way, version): (&str, ProtocolVersion)) {
    let priority = format!("--priority=NORMAL:{way}");
    let options = [&priority, "--alpn", PROTOCOL];
    let bytes = lines(LEN);
    let received = match side {
        Side::Client => {
            let (peer, connection) = place.server(&options);
            let socket = driver.socket(connection).expect("attached");
            let done = driver.block_on(async {
                let (socket, session) = place.connector().connect(socket, localhost()).await?;
                assert_agreed(&session, version);
                exchange(&socket, bytes.clone()).await
            });
            ends(peer);
            done
        }
        Side::Server => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
            let mut peer = place.client(&listener, &options);
            let (stdin, stdout) = (feed(&mut peer, bytes.clone()), output(&mut peer));
            let socket = driver.socket(listener.accept().expect("a connection").0);
            let socket = socket.expect("attached");
            let done = driver.block_on(async {
                let (socket, session) = place.acceptor(|_| {}).accept(socket).await?;
                assert_agreed(&session, version);
                exchange(&socket, bytes.clone()).await
            });
            drop(stdin.join().expect("written"));
            assert_same(&stdout.join().expect("read"), &bytes);
            ends(peer);
            done
        }
    };
    let received = received.expect("driven").unwrap_or_else(|error| panic!("{way}: {error}"));
    assert_same(&received, &bytes);
}

#[test]
fn gnutls_agrees_with_what_user_space_ciphers() {
    if is_missing() {
        handoff_testbed::skip!("gnutls-bin is not installed");
    }
    let place = Place::new();
    for driver in drivers() {
        for (way, side) in WAYS.into_iter().flat_map(|it| [(it, Side::Client), (it, Side::Server)])
        {
            one(&driver, &place, side, way);
        }
    }
}

/// It asks for ours to be changed, too. In the long form a key is good for 16 MiB of 1 GiB.
#[test]
fn gnutls_changes_keys_as_often_as_it_likes() {
    if is_missing() {
        handoff_testbed::skip!("gnutls-bin is not installed");
    }
    let (between, changes) = if is_long() { (16 << 20, 64) } else { (BETWEEN, CHANGES) };
    let place = Place::new();
    for driver in drivers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let options = ["--inline-commands", "--priority=NORMAL:-VERS-ALL:+VERS-TLS1.3"];
        let mut peer = place.client(&listener, &options);
        let piece = lines(between);
        let (mut stdin, stdout) = (peer.stdin.take().expect("a pipe"), output(&mut peer));
        let writing = thread::spawn(move || {
            for _ in 0..changes {
                stdin
                    .write_all(&piece)
                    .and_then(|()| stdin.write_all(b"^rekey^\n"))
                    .expect("it reads");
            }
            stdin
        });
        let socket = driver.socket(listener.accept().expect("a connection").0).expect("attached");
        let piece = lines(between);
        let done = driver.block_on(async {
            let acceptor = place.acceptor(|config| config.alpn_protocols.clear());
            let (socket, _) = acceptor.accept(socket).await?;
            for _ in 0..changes {
                let receiving = socket.receive_exact(Buffer::from(vec![0; between]));
                let received = receiving.expect("accepted").await?;
                received.result?;
                assert_same(&received.buffer, &piece);
                socket.send(Buffer::from(lines(LEN))).expect("accepted").await?.sent?;
            }
            socket.shutdown(Shutdown::Write)?;
            Ok::<_, handoff::Error>(socket)
        });
        let socket = done.expect("driven").expect("every key fits");
        drop(writing.join().expect("written"));
        assert_same(&stdout.join().expect("read"), &lines(LEN).repeat(changes));
        drop(socket);
        ends(peer);
        let log = fs::read_to_string(place.path("log")).expect("a log");
        assert!(log.matches("Rekey was completed").count() == changes, "{log}");
    }
}

fn log_says(place: &Path, words: &str) -> bool {
    fs::read_to_string(place).expect("a log").contains(words)
}

#[test]
fn gnutls_resumes_its_sessions() {
    if is_missing() {
        handoff_testbed::skip!("gnutls-bin is not installed");
    }
    let place = Place::new();
    for driver in drivers() {
        for version in ["TLS1.3", "TLS1.2"] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
            let priority = format!("--priority=NORMAL:-VERS-ALL:+VERS-{version}");
            let mut peer = place.client(&listener, &[&priority, "--resume"]);
            let stdout = output(&mut peer);
            let acceptor = place.acceptor(|config| config.alpn_protocols.clear());
            for _ in 0..2 {
                let connection = listener.accept().expect("a connection").0;
                let socket = driver.socket(connection).expect("attached");
                let done = driver.block_on(async {
                    let (socket, _) = acceptor.accept(socket).await?;
                    socket.send(Buffer::from(b"hello\n".to_vec())).expect("accepted").await?.sent?;
                    socket.shutdown(Shutdown::Write)?;
                    let end = socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted");
                    let _ = end.await?.result;
                    Ok::<_, handoff::Error>(())
                });
                done.expect("driven").expect("a session");
            }
            drop(peer.stdin.take());
            stdout.join().expect("read");
            ends(peer);
            assert!(log_says(&place.path("log"), "This is a resumed session"), "{version}");
        }
    }
}
