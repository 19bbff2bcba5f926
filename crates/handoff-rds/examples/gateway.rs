//! Our engine for programs that know only sockets: `gateway ADDRESS:PORT PATH`.
//!
//! The engine has ADDRESS and listens at PORT. A program connects to PATH (`AF_UNIX`, `SOCK_SEQPACKET`) and names the
//! port that it wants; 0 takes a free one. The answer is what it got; if that port is taken, the connection ends. From
//! then on each packet is a message. Every packet begins with an address, four bytes and a port in network byte order:
//! where the message goes, or where it comes from.
//!
//! `scripts/peers` runs rds-stress of rds-tools on it.

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;

use futures_lite::future::or;
use handoff::Buffer;
use handoff_rds::End;
use handoff_rds::own::{Engine, Socket};
use handoff_rds::protocol::Limits;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_local;

/// Bytes of an address.
const ADDRESS: usize = 6;
/// Bytes of the longest message.
const LONGEST: usize = 1 << 20;

fn encode(address: SocketAddr) -> Result<[u8; ADDRESS]> {
    let SocketAddr::V4(address) = address else { return Err(ErrorKind::Unsupported.into()) };
    let ([a, b, c, d], [high, low]) = (address.ip().octets(), address.port().to_be_bytes());
    Ok([a, b, c, d, high, low])
}

fn decode(packet: &[u8]) -> Result<(SocketAddr, &[u8])> {
    let Some((&[a, b, c, d, high, low], message)) = packet.split_first_chunk::<ADDRESS>() else {
        return Err(Error::new(ErrorKind::InvalidData, "a packet is shorter than an address"));
    };
    let port = u16::from_be_bytes([high, low]);
    Ok((SocketAddrV4::new([a, b, c, d].into(), port).into(), message))
}

fn watched(socket: OwnedFd) -> Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is one descriptor, open until it is dropped, and the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// Whether this is how a connection fails whose program has ended.
fn ended(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// The connection of a program.
struct Program(AsyncFd<OwnedFd>);

impl Program {
    /// The address and the message of the next packet; `None` once the program has ended.
    async fn receive<'a>(&self, packet: &'a mut [u8]) -> Result<Option<(SocketAddr, &'a [u8])>> {
        let read = |fd: &OwnedFd| Ok(recv(fd, &mut *packet, RecvFlags::empty())?.0);
        match self.0.async_io(Interest::READABLE, read).await? {
            0 => Ok(None),
            length => decode(&packet[..length]).map(Some),
        }
    }

    async fn send(&self, packet: &[u8]) -> Result<()> {
        let write = |fd: &OwnedFd| Ok(send(fd, packet, SendFlags::NOSIGNAL)?);
        self.0.async_io(Interest::WRITABLE, write).await.map(drop)
    }
}

/// The socket that a program asks for.
fn bound(engine: &Engine, port: u16) -> Option<Socket> {
    match port {
        0 => (1024..=u16::MAX).rev().find_map(|port| engine.bind(port).ok()),
        port => engine.bind(port).ok(),
    }
}

async fn send_all(program: &Program, socket: &Socket, packet: &mut [u8]) -> Result<()> {
    while let Some((to, message)) = program.receive(packet).await? {
        let sent = socket.send_when_possible(to, Buffer::from(message.to_vec()), 0).await;
        sent.map_err(|refused| Error::other(refused.error))?;
    }
    Ok(())
}

async fn receive_all(engine: &Engine, program: &Program, socket: &Socket) -> Result<()> {
    let missed = engine.statistics().missed;
    loop {
        let received = socket.receive().await;
        if engine.statistics().missed > missed {
            return Err(Error::other(format!("messages did not come: {:?}", engine.statistics())));
        }
        program.send(&[&encode(received.from)?[..], &received.payload].concat()).await?;
    }
}

async fn take_back(socket: &Socket) -> Result<()> {
    let mut back = Vec::new();
    loop {
        socket.completions(64, &mut back).await;
        if let Some(lost) = back.iter().find(|message| message.end != End::Acknowledged) {
            return Err(Error::other(format!("a message to {}: {:?}", lost.to, lost.end)));
        }
        back.clear();
    }
}

async fn serve(engine: Engine, program: Program) -> Result<()> {
    let mut packet = vec![0; ADDRESS + LONGEST];
    let Some((asked, _)) = program.receive(&mut packet).await? else { return Ok(()) };
    let Some(socket) = bound(&engine, asked.port()) else { return Ok(()) };
    program.send(&encode(socket.local_addr())?).await?;
    or(
        send_all(&program, &socket, &mut packet),
        or(receive_all(&engine, &program, &socket), take_back(&socket)),
    )
    .await
}

async fn accept_all(engine: Engine, listener: OwnedFd) -> Result<()> {
    let listener = watched(listener)?;
    loop {
        let take =
            |fd: &OwnedFd| Ok(accept_with(fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?);
        let program = listener.async_io(Interest::READABLE, take).await?;
        // A packet is as large as the buffer at most.
        set_socket_send_buffer_size(&program, 4 * LONGEST)?;
        let program = Program(watched(program)?);
        let served = serve(engine.clone(), program);
        spawn_local(async {
            match served.await {
                Ok(()) => {}
                // The program has ended, with messages on their way to it or from it.
                Err(error) if ended(&error) => {}
                Err(error) => eprintln!("gateway: {error}"),
            }
        });
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [own, path] = &arguments[..] else { return Err("usage: gateway ADDRESS:PORT PATH".into()) };
    let own = own.parse()?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, 64)?;
    handoff::tokio::run(|driver| async move {
        let engine = Engine::listening_at(&driver, own, Limits::default(), handoff::Engine::Auto)?;
        let running = engine.run();
        or(async { Err(running.await.into()) }, async { Ok(accept_all(engine, listener).await?) })
            .await
    })?
}
