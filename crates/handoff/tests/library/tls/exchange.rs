//! Messages there and back, in both versions and both roles.

use std::future::IntoFuture as _;
use std::io::ErrorKind;
use std::net::Shutdown;

use handoff::tls::Ciphering;
use handoff::{Buffer, Driver, Engine, Error, Outcome, Socket};
use rustls::SupportedProtocolVersion;

use super::fixture::{BOTH, Echo, HEAD, Identity, Side, connection, localhost, message};
use crate::traffic::{assert_same, drivers, tcp};

/// Lengths around those of records, and some that no socket takes at once.
pub(super) const LENGTHS: [usize; 9] =
    [1, 64, 5_000, 16_379, 16_380, 16_381, 65_536, 300_001, 1 << 20];

const VERSIONS: [&[&SupportedProtocolVersion]; 2] =
    [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];

/// Sends messages to a peer that sends them back.
pub(super) async fn exchange(socket: &Socket, outcome: Outcome) -> handoff::Result<()> {
    for (number, len) in LENGTHS.into_iter().enumerate() {
        let bytes = message(number, len);
        let sending = socket.send(Buffer::from(bytes.clone())).expect("accepted");
        let back = Buffer::from(vec![0; HEAD + len]);
        let receiving = socket.receive_exact(back).expect("accepted");
        let (sent, received) = futures_lite::future::zip(sending.into_future(), receiving).await;
        let (sent, received) = (sent?, received?);
        assert_eq!(sent.sent?, HEAD + len);
        assert_eq!(sent.receipt.outcome(), outcome, "{:?}", sent.receipt);
        assert_eq!(received.result?, HEAD + len);
        assert_same(&received.buffer, &bytes);
    }
    Ok(())
}

/// Ends our direction, and waits for the peer's end.
pub(super) async fn end(socket: &Socket) -> handoff::Result<usize> {
    socket.shutdown(Shutdown::Write)?;
    let buffer = Buffer::from(vec![0; 10]);
    socket.receive_into(buffer).expect("accepted").await?.result
}

/// Both roles and versions of one way to cipher.
pub(super) fn everything_arrives(driver: &Driver, ciphering: Ciphering, by: (Engine, Outcome)) {
    for (side, versions) in
        [Side::Client, Side::Server].into_iter().flat_map(|side| VERSIONS.map(|it| (side, it)))
    {
        let (socket, session, peer) =
            connection(driver, side, ciphering, versions, Echo::default());
        assert_eq!((session.engine, session.version), (by.0, versions[0].version));
        let ended = driver.block_on(async {
            exchange(&socket, by.1).await?;
            end(&socket).await
        });
        assert_eq!(ended.expect("driven").expect("a proper end"), 0, "{side:?}");
        drop(socket);
        peer.join().expect("the peer is content");
    }
}

/// A peer that changes its keys and asks for ours to be changed, and one that ends without a word.
pub(super) fn keys_change_and_cuts_are_told(driver: &Driver, ciphering: Ciphering, by: Outcome) {
    for side in [Side::Client, Side::Server] {
        let how = Echo { changes_keys: true, cuts_off: true };
        let (socket, _, peer) = connection(driver, side, ciphering, VERSIONS[1], how);
        let ended = driver.block_on(async {
            exchange(&socket, by).await?;
            end(&socket).await
        });
        let error = ended.expect("driven").expect_err("no proper end");
        assert!(
            matches!(&error, Error::Tls { reason } if reason.contains("close-notify")),
            "{error}"
        );
        drop(socket);
        peer.join().expect("the peer is content");
    }
}

/// A peer that reads nothing has a send end midway: what it then reads is no whole stream.
pub(super) fn a_cut_send_is_no_end(driver: &Driver, ciphering: Ciphering) {
    let identity = Identity::new();
    let (near, far) = tcp("127.0.0.1");
    let (go_on, read) = std::sync::mpsc::channel::<()>();
    let mut config = identity.server(BOTH);
    // With tickets unread, the connection would be reset at its end, and nobody would see what was said before.
    config.send_tls13_tickets = 0;
    let config = std::sync::Arc::new(config);
    let peer = std::thread::spawn(move || {
        let keys = rustls::ServerConnection::new(config).expect("one");
        let mut stream = rustls::StreamOwned::new(keys, far);
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        read.recv().expect("told");
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut bytes).map_err(|error| error.kind())
    });
    let socket = driver.socket(near).expect("attached");
    let ended = driver.block_on(async {
        let (socket, _) = identity.connector(ciphering).connect(socket, localhost()).await?;
        let mut sending =
            Box::pin(socket.send(Buffer::from(vec![7; 64 << 20])).expect("accepted").into_future());
        // It fills what the kernel takes, and waits.
        assert!(futures_lite::future::poll_once(&mut sending).await.is_none());
        driver.sleep(std::time::Duration::from_millis(50)).await?;
        assert!(futures_lite::future::poll_once(&mut sending).await.is_none());
        socket.shutdown(Shutdown::Write)?;
        go_on.send(()).expect("it waits");
        let cut = sending.await?;
        assert!(cut.sent.is_err(), "it ended midway");
        Ok::<_, Error>(socket)
    });
    let _socket = ended.expect("driven").expect("a handshake");
    let seen = peer.join().expect("the peer is content").expect_err("no whole stream");
    assert_eq!(seen, ErrorKind::UnexpectedEof);
}

#[test]
fn in_user_space_a_cut_send_is_no_end() {
    for driver in drivers() {
        a_cut_send_is_no_end(&driver, Ciphering::User);
    }
}

#[test]
fn in_user_space_everything_arrives_and_is_copied() {
    for driver in drivers() {
        everything_arrives(&driver, Ciphering::User, (Engine::UserTls, Outcome::Copied));
    }
}

#[test]
fn in_user_space_keys_change_and_cuts_are_told() {
    for driver in drivers() {
        keys_change_and_cuts_are_told(&driver, Ciphering::User, Outcome::Copied);
    }
}

#[test]
fn both_ends_export_the_same_secret_and_see_each_others_protocol() {
    let identity = Identity::new();
    let driver = Driver::new().expect("a driver");
    let (near, far) = tcp("127.0.0.1");
    let (near, far) = (driver.socket(near).unwrap(), driver.socket(far).unwrap());
    let mut client = identity.client(BOTH);
    let mut server = identity.server(BOTH);
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    let connector = handoff::tls::TlsConnector::new(client).exporting(b"test of handoff");
    let acceptor = handoff::tls::TlsAcceptor::new(server).exporting(b"test of handoff");
    let both = driver.block_on(futures_lite::future::try_zip(
        connector.connect(near, localhost()),
        acceptor.accept(far),
    ));
    let ((near, ours), (far, theirs)) = both.expect("driven").expect("a handshake");
    assert!(ours.exported.is_some() && ours.exported == theirs.exported);
    assert_eq!(ours.protocol.as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(ours.protocol, theirs.protocol);
    assert_eq!(ours.certificates, std::slice::from_ref(&identity.certificate));
    drop((near, far));
}
