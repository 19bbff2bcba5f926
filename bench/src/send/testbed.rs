//! The target of the send bench: a device that ends the datagrams, or a drained TCP receiver.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    os::{fd::OwnedFd, unix::thread::JoinHandleExt as _},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use handoff_testbed::{Discard, Namespace, NamespaceGuard, Pair, TopologyError};
use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use super::Protocol;
use crate::network::{
    descriptors,
    drain::{AT_ONCE, take},
};

/// The discard protocol's port. Nothing listens there, and nothing answers.
const DISCARD_PORT: u16 = 9;
/// The MTU of the device that ends datagrams, in bytes; the veth pair for TCP has the same.
const MTU: u32 = 65_535;
/// Bytes of the socket's send buffer, as in the kernel's selftest, so that no row waits for buffer space earlier.
const SEND_BUFFER: usize = 1 << 21;

/// The network of one run. The thread that made it stays in its namespace until the value is dropped.
pub(super) struct Testbed {
    protocol: Protocol,
    target: SocketAddr,
    device: String,
    namespace: Namespace,
    far: Option<Namespace>,
    /// The threads that read what arrives: one for each connection, which ends when its connection ends.
    drains: Arc<Mutex<Vec<JoinHandle<()>>>>,
    _inside: NamespaceGuard,
}

impl Testbed {
    /// Makes the network, and moves the calling thread into it.
    ///
    /// # Errors
    ///
    /// The errors of [`Discard::new`] and [`Pair::new`].
    pub(super) fn new(protocol: Protocol) -> Result<Self, TopologyError> {
        let drains = Arc::new(Mutex::new(Vec::new()));
        let (target, device, namespace, far) = match protocol {
            Protocol::Udp => {
                let sink = Discard::new()?;
                let target = SocketAddr::from((sink.v4(), DISCARD_PORT));
                (target, sink.kind().to_string(), sink.namespace().clone(), None)
            }
            Protocol::Tcp => {
                let pair = Pair::new(MTU)?;
                let listener = pair
                    .right
                    .namespace()
                    .run(|| TcpListener::bind((pair.right.v4(), 0)))?
                    .map_err(failed("listen"))?;
                let target = listener.local_addr().map_err(failed("listen"))?;
                let accepted = Arc::clone(&drains);
                pair.right
                    .namespace()
                    .spawn("bench-accept", move || accept(&listener, &accepted))?;
                let far = pair.right.namespace().clone();
                (target, "veth".to_owned(), pair.left.namespace().clone(), Some(far))
            }
        };
        let _inside = namespace.enter_thread()?;
        Ok(Self { protocol, target, device, namespace, far, drains, _inside })
    }

    /// The transport protocol.
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The address to send to.
    pub(super) fn target(&self) -> SocketAddr {
        self.target
    }

    /// The receiver's IP address.
    pub(super) fn address(&self) -> IpAddr {
        self.target.ip()
    }

    /// The type of the target device.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// The device's MTU in bytes.
    pub(super) fn mtu(&self) -> u32 {
        MTU
    }

    /// The namespace that peers run in.
    pub(super) fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The receiver's namespace; `None` if the device ends the datagrams.
    pub(super) fn far(&self) -> Option<&Namespace> {
        self.far.as_ref()
    }

    /// Opens `count` sockets, as [`connect`](Self::connect) does.
    ///
    /// # Errors
    ///
    /// The text of the kernel's error, for example that the process may not have so many descriptors.
    pub(super) fn connect_all(&self, count: u32) -> Result<Vec<OwnedFd>, String> {
        let ends = if self.protocol == Protocol::Tcp { 2 } else { 1 };
        descriptors::allow(ends * u64::from(count));
        let sockets = (0..count).map(|_| self.connect());
        sockets.collect::<io::Result<_>>().map_err(|error| format!("{count} sockets: {error}"))
    }

    /// Opens a blocking socket, connected to the target.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub(super) fn connect(&self) -> io::Result<OwnedFd> {
        let kind = match self.protocol {
            Protocol::Udp => SocketType::DGRAM,
            Protocol::Tcp => SocketType::STREAM,
        };
        let socket = socket(AddressFamily::INET, kind, None)?;
        sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER)?;
        connect(&socket, &self.target)?;
        Ok(socket)
    }

    /// The CPU time so far of the receiver's threads.
    pub(super) fn far_end_cpu(&self) -> Duration {
        let drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        drains.iter().filter_map(thread_cpu).sum()
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> TopologyError {
    move |source| TopologyError::Kernel { action: action.into(), source }
}

/// Accepts connections as long as the process lives: a listener cannot know that no more will come. If no
/// descriptor is free, the thread tries again after 10 ms.
fn accept(listener: &TcpListener, drains: &Mutex<Vec<JoinHandle<()>>>) {
    const STACK: usize = 64 << 10;
    loop {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let thread = thread::Builder::new().name("bench-drain".into()).stack_size(STACK);
        let spawned = thread.spawn(move || while let Ok(1..) = take(&stream, AT_ONCE) {});
        drains.lock().unwrap_or_else(PoisonError::into_inner).extend(spawned);
    }
}

fn thread_cpu(thread: &JoinHandle<()>) -> Option<Duration> {
    if thread.is_finished() {
        return None;
    }
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the handle was not joined, so that its pthread_t is valid even if the thread has just
    // ended; both results go to live variables.
    let answer = unsafe {
        match libc::pthread_getcpuclockid(thread.as_pthread_t(), &raw mut clock) {
            0 => libc::clock_gettime(clock, &raw mut time),
            error => error,
        }
    };
    (answer == 0).then(|| Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
}
