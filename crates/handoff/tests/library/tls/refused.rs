//! What cannot be done on a TLS connection, and peers that speak something else.

use std::io::{Read as _, Write as _};
use std::thread;

use handoff::tls::{Ciphering, TlsAcceptor};
use handoff::{Buffer, Driver, Engine, Error, Region, Route, RouteEngine, UnixKind};

use super::fixture::{BOTH, Echo, Identity, Side, connection, localhost};
use crate::traffic::{drivers, tcp};

#[test]
fn what_would_bypass_the_cipher_is_refused() {
    let driver = Driver::new().expect("a driver");
    let how = Echo::default();
    let (socket, _, peer) = connection(&driver, Side::Client, Ciphering::User, BOTH, how);
    let region = Region::anonymous(1 << 16).unwrap();
    let refused = |error: Error| assert!(matches!(error, Error::Invalid(_)), "{error}");
    refused(socket.set_engine(Engine::UringZc).expect_err("in the clear"));
    refused(socket.lane(&region, 4).expect_err("in the clear"));
    let window = driver.window(4, 1 << 16).unwrap();
    refused(socket.receive_mapped(&window).map(drop).expect_err("ciphered bytes"));
    let pool = driver.pool(region, 4096).unwrap();
    refused(socket.receive_mapped(window.or(&pool)).map(drop).expect_err("ciphered bytes"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "in the clear").unwrap();
    let file = driver.file(std::fs::File::open(&path).unwrap()).unwrap();
    socket.never_block().unwrap();
    let mut to = Route::new(&driver, (&file, 0..12), &socket);
    assert!(!to.run_at_once(), "in the clear");
    // It has the socket, too.
    drop(to);
    for engine in RouteEngine::ALL {
        if matches!(engine, RouteEngine::Memory | RouteEngine::Copy) {
            continue;
        }
        let mut to = Route::new(&driver, (&file, 0..12), &socket).only(engine);
        let error = driver.block_on(to.run()).unwrap().result.expect_err("in the clear");
        assert!(matches!(error, Error::EngineUnavailable { .. }), "{error}");
        let mut from = Route::new(&driver, &socket, (&file, 0)).only(engine);
        let error = driver.block_on(from.run()).unwrap().result.expect_err("ciphered bytes");
        assert!(matches!(error, Error::EngineUnavailable { .. }), "{error}");
    }
    let again = Identity::new().connector(Ciphering::User);
    refused(
        driver.block_on(again.connect(socket, localhost())).unwrap().map(drop).expect_err("twice"),
    );
    peer.join().expect("the peer is content");
}

#[test]
fn a_peer_that_speaks_something_else_is_told_from_one_that_ends() {
    for driver in drivers() {
        let identity = Identity::new();
        for (says, expected) in
            [(&b"SSH-2.0-OpenSSH_9.2\r\n"[..], "does not speak TLS"), (b"", "ended during")]
        {
            let (near, mut far) = tcp("127.0.0.1");
            far.write_all(says).unwrap();
            far.shutdown(std::net::Shutdown::Write).unwrap();
            let socket = driver.socket(near).unwrap();
            let connector = identity.connector(Ciphering::User);
            let made = driver.block_on(connector.connect(socket, localhost())).unwrap();
            let error = made.map(drop).expect_err("no handshake").to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

/// A record that is too long, and one of a type that there is not.
#[test]
fn a_peer_that_speaks_something_else_hears_so_in_an_alert() {
    for driver in drivers() {
        let identity = Identity::new();
        for says in [[22, 3, 1, 0xff, 0xff], [99, 3, 1, 0, 5]] {
            let (near, mut far) = tcp("127.0.0.1");
            far.write_all(&says).unwrap();
            let socket = driver.socket(near).unwrap();
            let acceptor = identity.acceptor(Ciphering::User);
            let made = driver.block_on(acceptor.accept(socket)).unwrap();
            let error = made.map(drop).expect_err("no handshake").to_string();
            assert!(error.contains("does not speak TLS"), "{error}");
            let mut told = Vec::new();
            far.read_to_end(&mut told).unwrap();
            assert_eq!((told.len(), told[0], told[5]), (7, 21, 2), "{told:?}");
        }
    }
}

/// TLS 1.3 says this behind the server's answer, and ciphers it.
#[test]
fn a_client_of_another_protocol_hears_so() {
    for (version, driver) in
        BOTH.iter().flat_map(|version| drivers().into_iter().map(move |driver| (*version, driver)))
    {
        let identity = Identity::new();
        let (near, mut far) = tcp("127.0.0.1");
        let mut config = identity.client(&[version]);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let peer = thread::spawn(move || {
            let mut keys = rustls::ClientConnection::new(config.into(), localhost()).unwrap();
            keys.complete_io(&mut far).map(drop).expect_err("no handshake").to_string()
        });
        let mut config = identity.server(BOTH);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let socket = driver.socket(near).unwrap();
        let made = driver.block_on(TlsAcceptor::new(config).accept(socket)).unwrap();
        made.map(drop).expect_err("nothing in common");
        let heard = peer.join().unwrap();
        assert!(heard.contains("NoApplicationProtocol"), "{version:?}: {heard}");
    }
}

#[test]
fn a_certificate_of_somebody_else_is_refused_and_the_peer_hears_why() {
    let driver = Driver::new().expect("a driver");
    let (near, mut far) = tcp("127.0.0.1");
    let server = Identity::new().server(BOTH);
    let peer = thread::spawn(move || {
        let mut keys = rustls::ServerConnection::new(server.into()).unwrap();
        let ended = keys.complete_io(&mut far).map(drop).expect_err("no handshake");
        let _ = far.read(&mut [0]);
        ended.to_string()
    });
    let connector = Identity::new().connector(Ciphering::User);
    let socket = driver.socket(near).unwrap();
    let made = driver.block_on(connector.connect(socket, localhost())).unwrap();
    let error = made.map(drop).expect_err("an unknown certificate").to_string();
    assert!(error.contains("certificate"), "{error}");
    let heard = peer.join().unwrap();
    assert!(heard.contains("alert"), "{heard}");
}

#[test]
fn tls_begins_behind_what_is_under_way() {
    let driver = Driver::new().expect("a driver");
    let (near, _far) = tcp("127.0.0.1");
    let socket = driver.socket(near).unwrap();
    let receiving = socket.receive_into(Buffer::from(vec![0; 10])).expect("accepted");
    let connector = Identity::new().connector(Ciphering::User);
    let made = driver.block_on(connector.connect(socket, localhost())).unwrap();
    let error = made.map(drop).expect_err("a receive would take the handshake").to_string();
    assert!(error.contains("receive"), "{error}");
    drop(receiving);
}

#[test]
fn nobody_may_go_on_in_the_clear() {
    let driver = Driver::new().expect("a driver");
    let (near, _far) = tcp("127.0.0.1");
    let socket = driver.socket(near).unwrap();
    let other = socket.clone();
    let connector = Identity::new().connector(Ciphering::User);
    let made = driver.block_on(connector.connect(socket, localhost())).unwrap();
    let error = made.map(drop).expect_err("another handle").to_string();
    assert!(error.contains("handle"), "{error}");
    drop(other);
}

#[test]
fn a_unix_socket_passes_nothing_beside_tls() {
    let driver = Driver::new().expect("a driver");
    let identity = Identity::new();
    let (near, far) = driver.unix_pair(UnixKind::Stream).unwrap();
    let connector = identity.connector(Ciphering::User);
    let acceptor = identity.acceptor(Ciphering::User);
    let both = driver.block_on(futures_lite::future::try_zip(
        connector.connect(near, localhost()),
        acceptor.accept(far),
    ));
    let ((near, _), (far, _)) = both.expect("driven").expect("a handshake");
    let refused = |error: Error| assert!(error.to_string().contains("TLS"), "{error}");
    let file = std::fs::File::open("/dev/null").unwrap();
    let borrowed = [std::os::fd::AsFd::as_fd(&file)];
    let message = near.message(Buffer::from(vec![1])).descriptors(&borrowed);
    refused(message.send().map(drop).expect_err("a descriptor").error);
    let receiving = far.receive_message(Buffer::from(vec![0; 10]), 1);
    refused(receiving.map(drop).expect_err("ciphered bytes").error);
}

/// A peer that shakes hands properly, and then sends a record that nobody has sealed.
#[test]
fn in_user_space_a_record_that_is_not_what_its_sender_ciphered_ends_the_connection() {
    for side in [Side::Client, Side::Server] {
        let driver = Driver::new().expect("a driver");
        let identity = Identity::new();
        let (near, far) = tcp("127.0.0.1");
        let (client, server) = (identity.client(BOTH), identity.server(BOTH));
        let peer = thread::spawn(move || {
            let mut far = far;
            match side {
                Side::Client => {
                    let mut keys = rustls::ServerConnection::new(server.into()).unwrap();
                    keys.complete_io(&mut far).unwrap();
                }
                Side::Server => {
                    let mut keys =
                        rustls::ClientConnection::new(client.into(), localhost()).unwrap();
                    keys.complete_io(&mut far).unwrap();
                }
            }
            let changed = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
            far.write_all(&[&changed[..], &changed].concat()).unwrap();
            let mut told = Vec::new();
            far.read_to_end(&mut told).unwrap_or_default();
            told
        });
        let socket = driver.socket(near).unwrap();
        let ended = driver.block_on(async {
            let made = match side {
                Side::Client => {
                    identity.connector(Ciphering::User).connect(socket, localhost()).await
                }
                Side::Server => identity.acceptor(Ciphering::User).accept(socket).await,
            };
            let (socket, _) = made?;
            let receive = async || {
                let into = Buffer::from(vec![0; 10]);
                socket.receive_into(into).expect("accepted").await?.result
            };
            for _ in 0..2 {
                let error = receive().await.expect_err("it was changed");
                assert!(matches!(error, Error::Tls { .. }), "{error}");
            }
            let sending = socket.send(Buffer::from(vec![1])).expect("accepted");
            assert!(sending.await?.sent.is_err(), "nothing follows");
            Ok::<_, Error>(())
        });
        ended.expect("driven").expect("a handshake");
        assert!(!peer.join().expect("ends").is_empty(), "it is told");
    }
}

/// The same in the midst of a handshake.
#[test]
fn a_record_that_is_changed_ends_the_handshake() {
    let driver = Driver::new().expect("a driver");
    let identity = Identity::new();
    let (near, mut far) = tcp("127.0.0.1");
    let client = identity.client(&[&rustls::version::TLS13]);
    let peer = thread::spawn(move || {
        let mut keys = rustls::ClientConnection::new(client.into(), localhost()).unwrap();
        keys.write_tls(&mut far).unwrap();
        // The listener has answered, and waits for what is sealed.
        far.read_exact(&mut [0; 5]).unwrap();
        far.write_all(&[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()).unwrap();
        let _ = far.read_to_end(&mut Vec::new());
    });
    let socket = driver.socket(near).unwrap();
    let made = driver.block_on(identity.acceptor(Ciphering::User).accept(socket)).unwrap();
    let error = made.map(drop).expect_err("no handshake");
    assert!(matches!(error, Error::Tls { .. }), "{error}");
    peer.join().expect("ends");
}
