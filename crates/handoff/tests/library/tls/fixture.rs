//! Certificates, and a peer that is rustls alone.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use handoff::tls::{Ciphering, TlsAcceptor, TlsConnector, TlsSession};
use handoff::{Driver, Socket};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};

use crate::traffic::{pattern, tcp};

/// A name with a certificate that those who have this believe.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: PrivateKeyDer<'static>,
    /// The same as text.
    pub(super) pem: (String, String),
}

pub(super) const BOTH: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS12, &rustls::version::TLS13];

impl Identity {
    pub(super) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let key = made.signing_key.serialize_der();
        Self {
            certificate: made.cert.der().clone(),
            key: PrivateKeyDer::Pkcs8(key.into()),
            pem: (made.cert.pem(), made.signing_key.serialize_pem()),
        }
    }

    pub(super) fn server(&self, versions: &[&'static SupportedProtocolVersion]) -> ServerConfig {
        let config = ServerConfig::builder_with_protocol_versions(versions).with_no_client_auth();
        config
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .expect("they belong together")
    }

    pub(super) fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        ClientConfig::builder_with_protocol_versions(versions)
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    pub(super) fn connector(&self, ciphering: Ciphering) -> TlsConnector {
        TlsConnector::new(self.client(BOTH)).ciphering(ciphering)
    }

    pub(super) fn acceptor(&self, ciphering: Ciphering) -> TlsAcceptor {
        TlsAcceptor::new(self.server(BOTH)).ciphering(ciphering)
    }
}

pub(super) fn localhost() -> ServerName<'static> {
    "localhost".try_into().expect("a name")
}

/// Bytes that a peer sends back, in each message: the message's first four are its length.
pub(super) const HEAD: usize = 4;

/// How the peer behaves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// It changes its keys behind each message.
    pub(super) changes_keys: bool,
    /// It ends without close-notify.
    pub(super) cuts_off: bool,
}

/// Sends each message back, until the other end closes.
fn echo<C, D>(mut stream: StreamOwned<C, TcpStream>, how: Echo, change: impl Fn(&mut C))
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<D>>,
    D: rustls::SideData,
{
    let mut head = [0; HEAD];
    while stream.read_exact(&mut head).is_ok() {
        let mut bytes = vec![0; u32::from_le_bytes(head) as usize];
        stream.read_exact(&mut bytes).expect("a whole message");
        stream.write_all(&head).expect("sent");
        stream.write_all(&bytes).expect("sent");
        if how.changes_keys {
            change(&mut stream.conn);
        }
    }
    if how.cuts_off {
        let _ = stream.sock.shutdown(Shutdown::Both);
        return;
    }
    stream.conn.send_close_notify();
    let _ = stream.flush();
    let _ = stream.sock.shutdown(Shutdown::Write);
    let _ = stream.sock.read(&mut [0]);
}

pub(super) fn serve(peer: TcpStream, config: ServerConfig, how: Echo) -> JoinHandle<()> {
    thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        echo(StreamOwned::new(connection, peer), how, |connection| {
            connection.refresh_traffic_keys().expect("TLS 1.3");
        });
    })
}

pub(super) fn call(peer: TcpStream, config: ClientConfig, how: Echo) -> JoinHandle<()> {
    thread::spawn(move || {
        let connection = ClientConnection::new(Arc::new(config), localhost()).expect("one");
        echo(StreamOwned::new(connection, peer), how, |connection| {
            connection.refresh_traffic_keys().expect("TLS 1.3");
        });
    })
}

/// Which side is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// A TLS connection of ours to such a peer.
pub(super) fn connection(
    driver: &Driver,
    side: Side,
    ciphering: Ciphering,
    versions: &[&'static SupportedProtocolVersion],
    how: Echo,
) -> (Socket, TlsSession, JoinHandle<()>) {
    let identity = Identity::new();
    let (near, far) = tcp("127.0.0.1");
    let socket = driver.socket(near).expect("attached");
    let (peer, made) = match side {
        Side::Client => {
            let peer = serve(far, identity.server(versions), how);
            let connector = identity.connector(ciphering);
            (peer, driver.block_on(connector.connect(socket, localhost())))
        }
        Side::Server => {
            let peer = call(far, identity.client(versions), how);
            (peer, driver.block_on(identity.acceptor(ciphering).accept(socket)))
        }
    };
    let (socket, session) = made.expect("driven").expect("a handshake");
    (socket, session, peer)
}

/// A message with its length before it.
pub(super) fn message(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = (len as u32).to_le_bytes().to_vec();
    bytes.extend(pattern(number, len));
    bytes
}

/// Two TLS connections of ours to each other.
pub(crate) fn pair(driver: &Driver, ciphering: Ciphering) -> (Socket, Socket) {
    let identity = Identity::new();
    let (near, far) = tcp("127.0.0.1");
    let (near, far) =
        (driver.socket(near).expect("attached"), driver.socket(far).expect("attached"));
    let (connector, acceptor) = (identity.connector(ciphering), identity.acceptor(ciphering));
    let both = driver.block_on(futures_lite::future::try_zip(
        connector.connect(near, localhost()),
        acceptor.accept(far),
    ));
    let ((near, _), (far, _)) = both.expect("driven").expect("a handshake");
    (near, far)
}

/// A peer in a thread that reads to the end; what it read, or the kind of error that was the end.
pub(super) fn reader(identity: &Identity, peer: TcpStream) -> JoinHandle<std::io::Result<Vec<u8>>> {
    let mut config = identity.server(BOTH);
    // With tickets unread, the connection would be reset at its end, and nobody would see what was said before.
    config.send_tls13_tickets = 0;
    thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        let mut bytes = Vec::new();
        StreamOwned::new(connection, peer).read_to_end(&mut bytes).map(|_| bytes)
    })
}

/// A peer in a thread that sends this, and ends properly or not.
pub(super) fn writer(
    identity: &Identity,
    peer: TcpStream,
    bytes: Vec<u8>,
    cuts_off: bool,
) -> JoinHandle<()> {
    let config = identity.server(BOTH);
    thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        let mut stream = StreamOwned::new(connection, peer);
        stream.write_all(&bytes).expect("sent");
        if !cuts_off {
            stream.conn.send_close_notify();
        }
        stream.flush().expect("sent");
        let _ = stream.sock.shutdown(Shutdown::Write);
        let _ = stream.sock.read(&mut [0]);
    })
}

/// A TLS connection of ours to a peer in a thread.
pub(super) fn to_peer<T>(
    driver: &Driver,
    ciphering: Ciphering,
    peer: impl FnOnce(&Identity, TcpStream) -> T,
) -> (Socket, T) {
    to_peer_over(driver, ciphering, tcp("127.0.0.1"), peer)
}

pub(super) fn to_peer_over<T>(
    driver: &Driver,
    ciphering: Ciphering,
    (near, far): (TcpStream, TcpStream),
    peer: impl FnOnce(&Identity, TcpStream) -> T,
) -> (Socket, T) {
    let identity = Identity::new();
    let peer = peer(&identity, far);
    let socket = driver.socket(near).expect("attached");
    let made = driver.block_on(identity.connector(ciphering).connect(socket, localhost()));
    let (socket, _) = made.expect("driven").expect("a handshake");
    (socket, peer)
}

/// Ends our direction as soon as there is room to say so.
pub(super) async fn end_in_time(socket: &Socket) -> handoff::Result<()> {
    loop {
        let ended = socket.shutdown(Shutdown::Write);
        match &ended {
            Err(handoff::Error::Io { source, .. })
                if source.kind() == std::io::ErrorKind::WouldBlock =>
            {
                socket.writable()?.await?;
            }
            _ => return ended,
        }
    }
}

/// What a peer read to the end, or the kind of error that was the end.
pub(super) type Reading = JoinHandle<Result<Vec<u8>, std::io::ErrorKind>>;

/// As [`reader`], but behind its handshake it reads when it is told to.
pub(super) fn slow_reader(identity: &Identity, peer: TcpStream) -> (Sender<()>, Reading) {
    let (go_on, wait) = channel();
    let mut config = identity.server(BOTH);
    config.send_tls13_tickets = 0;
    let reading = thread::spawn(move || {
        let connection = ServerConnection::new(Arc::new(config)).expect("a connection");
        let mut stream = StreamOwned::new(connection, peer);
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
        wait.recv().expect("told");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).map(|_| bytes).map_err(|error| error.kind())
    });
    (go_on, reading)
}
