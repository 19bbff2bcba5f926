//! OpenSSL at the other end: each version and cipher, in both roles.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use handoff::tls::Ciphering;
use handoff::{Buffer, Driver, Engine, Socket};

use super::fixture::{Identity, Side, localhost};
use crate::traffic::{assert_same, drivers, pattern};

/// Bytes each way.
const LEN: usize = 300_001;

/// What OpenSSL calls the ciphers and groups, with the version.
const CIPHERS: [[&str; 3]; 7] = [
    ["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"],
    ["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"],
    ["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
    ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256"],
    ["-tls1_3", "-groups", "P-256"],
    ["-tls1_3", "-groups", "X25519"],
    // The certificate has a key of the second.
    ["-tls1_2", "-groups", "X25519:P-256"],
];

/// Sends and receives, and waits for the end.
async fn exchange(socket: &Socket, bytes: Vec<u8>) -> handoff::Result<Vec<u8>> {
    let sending = socket.send(Buffer::from(bytes)).expect("accepted");
    let receiving = socket.receive_exact(Buffer::from(vec![0; LEN])).expect("accepted");
    sending.await?.sent?;
    let received = receiving.await?;
    received.result?;
    socket.shutdown(Shutdown::Write)?;
    let end = socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted").await?;
    assert_eq!(end.result?, 0, "a proper end");
    Ok(received.buffer.to_vec())
}

fn started(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("openssl starts")
}

/// Its client to us.
fn its_client(driver: &Driver, cipher: [&str; 3], place: &Path) -> (Child, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
    let address = listener.local_addr().expect("an address").to_string();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &address]).args(cipher);
    command.args(["-verify_return_error", "-verify_hostname", "localhost", "-CAfile"]);
    command.arg(place.join("certificate"));
    let child = started(command);
    let socket = driver.socket(listener.accept().expect("a connection").0).expect("attached");
    (child, socket)
}

/// Its server, and our connection to it.
fn its_server(driver: &Driver, cipher: [&str; 3], place: &Path) -> (Child, Socket) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-naccept", "1", "-accept", &free.to_string()]);
    command.args(cipher).arg("-cert").arg(place.join("certificate"));
    command.arg("-key").arg(place.join("key"));
    let child = started(command);
    (child, driver.socket(connected(free)).expect("attached"))
}

/// A connection to a program that may still have to listen.
fn connected(to: SocketAddr) -> TcpStream {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(to) {
            Ok(connection) => return connection,
            Err(error) if begun.elapsed() > Duration::from_secs(20) => panic!("{error}"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Everything arrives at a peer that somebody else wrote, and from it.
pub(super) fn openssl_understands_us(ciphering: Ciphering, engine: Engine) {
    let place = tempfile::tempdir().expect("a directory");
    let identity = Identity::new();
    let input = pattern(7, LEN);
    fs::write(place.path().join("certificate"), &identity.pem.0).expect("written");
    fs::write(place.path().join("key"), &identity.pem.1).expect("written");
    for driver in drivers() {
        for (cipher, side) in
            CIPHERS.into_iter().flat_map(|it| [(it, Side::Client), (it, Side::Server)])
        {
            let what = format!("{cipher:?}, {side:?}");
            let (mut peer, socket) = match side {
                Side::Client => its_server(&driver, cipher, place.path()),
                Side::Server => its_client(&driver, cipher, place.path()),
            };
            let mut stdout = peer.stdout.take().expect("a pipe");
            // It ends when its input does, whatever is under way.
            let mut stdin = peer.stdin.take().expect("a pipe");
            let input_of_peer = input.clone();
            let writing = thread::spawn(move || stdin.write_all(&input_of_peer).map(|()| stdin));
            let reading = thread::spawn(move || {
                let mut bytes = Vec::new();
                stdout.read_to_end(&mut bytes).map(|_| bytes)
            });
            let done = driver.block_on(async {
                let (socket, session) = match side {
                    Side::Client => {
                        identity.connector(ciphering).connect(socket, localhost()).await?
                    }
                    Side::Server => identity.acceptor(ciphering).accept(socket).await?,
                };
                assert_eq!(session.engine, engine, "{what}: {}", session.reason);
                exchange(&socket, pattern(9, LEN)).await
            });
            let received = done.expect("driven").unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_same(&received, &input);
            let at_peer = reading.join().expect("joins").expect("reads");
            assert_same(&at_peer, &pattern(9, LEN));
            drop(writing.join().expect("joins").expect("written"));
            peer.kill().expect("it may have ended");
            peer.wait().expect("it ends");
        }
    }
}

#[test]
fn openssl_understands_what_user_space_ciphers() {
    if Command::new("openssl").arg("version").output().is_err() {
        handoff_testbed::skip!("openssl is not installed");
    }
    openssl_understands_us(Ciphering::User, Engine::UserTls);
}

/// TLS 1.2 has handshakes within a connection, which nobody makes here. Who asks for one has its answer although nothing is
/// sent to it.
#[test]
fn a_client_that_wants_another_handshake_hears_at_once_that_there_is_none() {
    if Command::new("openssl").arg("version").output().is_err() {
        handoff_testbed::skip!("openssl is not installed");
    }
    let identity = Identity::new();
    for driver in drivers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address").to_string();
        let mut command = Command::new("openssl");
        command.args(["s_client", "-tls1_2", "-connect", &address]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut peer = command.spawn().expect("openssl starts");
        let socket = driver.socket(listener.accept().expect("a connection").0).expect("attached");
        let done = driver.block_on(async {
            let (socket, _) = identity.acceptor(Ciphering::User).accept(socket).await?;
            // It takes R for a word to itself, since it stands alone.
            peer.stdin.as_ref().expect("a pipe").write_all(b"R\n").expect("it reads");
            let receiving = socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted");
            driver.timeout(Duration::from_secs(20), receiving).await
        });
        let _ended = done.expect("driven").expect("it ends by itself, and in time");
        drop(peer.stdin.take());
        let mut said = String::new();
        peer.stderr.take().expect("a pipe").read_to_string(&mut said).expect("reads");
        peer.wait().expect("it ends");
        assert!(said.contains("no renegotiation"), "{said}");
    }
}

/// We come back with what its server gave us, in both versions.
#[test]
fn our_client_resumes_a_session_with_openssl() {
    if Command::new("openssl").arg("version").output().is_err() {
        handoff_testbed::skip!("openssl is not installed");
    }
    let place = tempfile::tempdir().expect("a directory");
    let identity = Identity::new();
    fs::write(place.path().join("certificate"), &identity.pem.0).expect("written");
    fs::write(place.path().join("key"), &identity.pem.1).expect("written");
    for (driver, version) in drivers()
        .into_iter()
        .flat_map(|driver| ["-tls1_3", "-tls1_2"].map(|it| (driver.clone(), it)))
    {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
        let mut command = Command::new("openssl");
        command.args(["s_server", "-naccept", "3", "-accept", &free.to_string(), version]);
        command.arg("-cert").arg(place.path().join("certificate"));
        command.arg("-key").arg(place.path().join("key"));
        let mut peer = started(command);
        // The first of all only finds out that it listens.
        drop(connected(free));
        let connector = identity.connector(Ciphering::User);
        for _ in 0..2 {
            let socket = driver.socket(connected(free)).expect("attached");
            let done = driver.block_on(async {
                let (socket, _) = connector.connect(socket, localhost()).await?;
                peer.stdin.as_ref().expect("a pipe").write_all(b"hello\n").expect("it reads");
                // Tickets come before it.
                let receiving = socket.receive_exact(Buffer::from(vec![0; 6])).expect("accepted");
                receiving.await?.result?;
                socket.shutdown(Shutdown::Write)?;
                let end = socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted").await?;
                end.result
            });
            assert_eq!(done.expect("driven").expect("a session"), 0, "a proper end");
        }
        drop(peer.stdin.take());
        let mut said = String::new();
        peer.stdout.take().expect("a pipe").read_to_string(&mut said).expect("reads");
        peer.wait().expect("it ends");
        assert_eq!(said.matches("Reused session-id").count(), 1, "{version}: {said}");
    }
}
