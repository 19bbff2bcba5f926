//! Several listeners as one, of TCP and of Unix sockets.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use super::Socket;
use super::listen::Listener;
use super::unix::UnixListener;
use crate::error::Result;
use crate::unix::{Credentials, credentials};

/// Listeners of any kind, whose connections come from one place.
///
/// ```no_run
/// # async fn example(driver: &handoff::Driver) -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Listeners, UnixAddress, UnixKind};
///
/// let mut listeners = Listeners::from(driver.listen(std::net::TcpListener::bind("[::]:9000")?)?);
/// listeners.add(driver.listen_unix(&"unix:/run/app.sock".parse()?, UnixKind::Stream)?);
/// loop {
///     let (socket, client) = listeners.accept().await?;
///     println!("{client} on {socket:?}");
/// }
/// # }
/// ```
#[derive(Debug, Default)]
pub struct Listeners {
    all: Vec<One>,
    /// Who is asked first, so that a busy one does not hide the others.
    first: usize,
}

#[derive(Debug)]
enum One {
    Tcp(Listener),
    Unix(UnixListener),
}

/// Who has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// By TCP, from this address.
    Tcp(SocketAddr),
    /// By a Unix socket: a process of this machine.
    Unix(Credentials),
}

impl Client {
    /// The address, of a client by TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Client {
    /// An address, or `unix:uid=1000,pid=4242`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(Credentials { pid: Some(pid), uid, .. }) => {
                write!(f, "unix:uid={uid},pid={pid}")
            }
            Self::Unix(Credentials { uid, .. }) => write!(f, "unix:uid={uid}"),
        }
    }
}

impl From<SocketAddr> for Client {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<Listener> for Listeners {
    fn from(listener: Listener) -> Self {
        Self { all: vec![One::Tcp(listener)], first: 0 }
    }
}

impl From<UnixListener> for Listeners {
    fn from(listener: UnixListener) -> Self {
        Self { all: vec![One::Unix(listener)], first: 0 }
    }
}

impl Listeners {
    /// Puts others beside these.
    pub fn add(&mut self, others: impl Into<Self>) {
        self.all.append(&mut others.into().all);
    }

    /// The next connection, and whose it is. Dropping it loses no connection.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`] says.
    pub async fn accept(&mut self) -> Result<(Socket, Client)> {
        poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<Result<(Socket, Client)>> {
        for turn in 0..self.all.len() {
            let place = (self.first + turn) % self.all.len();
            let accepted = match &mut self.all[place] {
                One::Tcp(listener) => listener.poll_accept(context).map_ok(by_tcp),
                One::Unix(listener) => listener.poll_accept(context).map_ok(by_unix),
            };
            if accepted.is_ready() {
                self.first = place + 1;
                return accepted;
            }
        }
        Poll::Pending
    }

    /// Stops accepting until you ask for the next connection, as [`Listener::pause`].
    pub fn pause(&mut self) {
        for one in &mut self.all {
            match one {
                One::Tcp(listener) => listener.pause(),
                One::Unix(listener) => listener.pause(),
            }
        }
    }

    /// Those of TCP.
    pub fn of_tcp(&self) -> impl Iterator<Item = &Listener> {
        self.all.iter().filter_map(|one| match one {
            One::Tcp(listener) => Some(listener),
            One::Unix(_) => None,
        })
    }
}

fn by_tcp((socket, peer): (Socket, SocketAddr)) -> (Socket, Client) {
    (socket, Client::Tcp(peer))
}

fn by_unix((socket, _): (Socket, crate::unix::UnixAddress)) -> (Socket, Client) {
    // The kernel knows who it is as long as the socket is there.
    let unknown = Credentials { pid: None, uid: u32::MAX, gid: u32::MAX };
    let who = credentials(&socket).unwrap_or(unknown);
    (socket, Client::Unix(who))
}
