//! The driver: one thread's ring, or its stand-in, and all operations on it.
//!
//! Contracts:
//! - a driver belongs to one thread, by its type;
//! - nothing blocks but [`Driver::turn`] when told to wait, and [`Driver::block_on`];
//! - operations learn of completions outside of any borrow that they could need, and wakers are called
//!   after all operations have learnt;
//! - when the last [`Driver`] goes, operations under way end, and everyone who waits or asks later is told;
//! - when the last handle of any kind goes, the ring closes before the memory that it may use.

pub(crate) mod builder;
mod clock;
mod pool_wait;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::core::{Core, LoanStats};
use crate::error::Result;
use crate::file::File;
use crate::file::call::FileCall;
use crate::file::directory::Directory;
use crate::file::open_options::OpenOptions;
#[cfg(feature = "getbuf")]
use crate::getbuf::GetBuf;
use crate::lease::{
    DmaBuf, DmaBufQueue, ExportedRxQueue, Pool, RxBinding, RxQueue, Window, send_span,
};
use crate::memory::{Memory, Pinning, Region};
use crate::op::loan::{Payload, Refused};
use crate::raw::RawRequest;
use crate::reactor::Reactor;
#[cfg(feature = "ublk")]
use crate::requests::RequestQueue;
use crate::ring::{Backend, Until};
use crate::socket::Socket;
use crate::socket::connect::Connecting;
use crate::socket::group::Group;
use crate::socket::listen::Listener;
use crate::socket::options::SocketOptions;
use crate::socket::unix::UnixListener;
use crate::unix::{UnixAddress, UnixKind};

/// A handle on a thread's ring. A clone is another handle on the same ring.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Region};
///
/// let driver = Driver::new()?;
/// if let Some(reason) = driver.ring_unavailable() {
///     println!("system calls instead of io_uring: {reason}");
/// }
/// let region = Region::anonymous(1 << 20)?;
/// driver.register(&region)?;
/// assert_eq!(driver.block_on(async { driver.in_flight() })?, 0);
/// # Ok(()) }
/// ```
///
/// A driver and all that it makes stay on its thread: sockets, receivers, spans, the futures of operations. If the
/// compiler says that an `Rc` cannot be sent between threads safely, you gave one of these to `tokio::spawn` or
/// `std::thread::spawn`. Start such tasks by `tokio::task::spawn_local` in a `LocalSet` (`handoff::tokio::run` has
/// one), or by [`Executor::spawn`](crate::Executor::spawn); `handoff::tokio::DriverThreads` has handles for other
/// threads. Buffers, frozen buffers and pools of buffers are `Send`.
///
/// # fork(2)
///
/// A driver belongs to the process that made it. Fork before you make the first driver: a daemon forks first. In a
/// child of later, calls fail with [`Error::OtherProcess`](crate::Error::OtherProcess), and drops let the operations go
/// on for the parent. The child may make drivers of its own. Regions are not in a child's memory, so a child that touches
/// a buffer of its parent ends by SIGSEGV. The child has copies of all descriptors until it ends or calls execve(2), so a
/// connection that the parent closes ends only then.
#[derive(Clone)]
pub struct Driver {
    pub(crate) reactor: Rc<Reactor>,
    /// After the fields above, which drop first.
    _handles: Rc<LastHandle>,
}

/// Shared by all handles; dropped with the last one. Nobody can turn the driver after that.
struct LastHandle(Weak<Reactor>);

impl Drop for LastHandle {
    fn drop(&mut self) {
        // If nothing else refers to the driver, it is gone by now.
        if let Some(reactor) = self.0.upgrade() {
            reactor.leave();
        }
    }
}

/// What [`Driver::turn`] waits for.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use handoff::{Driver, Wait};
/// use std::time::Duration;
///
/// let driver = Driver::new()?;
/// driver.turn(Wait::No)?; // what is done already
/// driver.turn(Wait::AtMost(Duration::from_millis(1)))?; // or for a millisecond
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For nothing: submits, and takes completions that are there. While there is something to submit,
    /// later news of the kernel (returns, requests that had to wait) may come up to 32 requests later.
    No,
    /// For something to happen, if the kernel has anything of ours and nothing has happened since the last
    /// turn: a send may be over as soon as it is accepted.
    Event,
    /// For something to happen, at most this long.
    AtMost(Duration),
}

impl Driver {
    fn of(reactor: Rc<Reactor>) -> Self {
        let last = LastHandle(Rc::downgrade(&reactor));
        Self { reactor, _handles: Rc::new(last) }
    }

    fn core(&self) -> &Core {
        &self.reactor.core
    }

    /// Why there is no ring; `None` if there is one.
    pub fn ring_unavailable(&self) -> Option<&str> {
        self.core().io.why_no_ring()
    }

    /// Why no thread of the kernel takes the requests, although one was asked for
    /// ([`DriverBuilder::sq_poll`](crate::DriverBuilder::sq_poll)); `None` if one does, or none was asked for.
    pub fn sq_poll_unavailable(&self) -> Option<&str> {
        self.core().io.why_not_polled.as_deref()
    }

    /// Whether a thread of the kernel takes the requests.
    pub fn sq_polls(&self) -> bool {
        self.core().io.is_polled
    }

    /// How many calls of `io_uring_enter(2)` this driver has made to submit requests, and to wait; 0 without a ring.
    pub fn ring_calls(&self) -> u64 {
        self.core().io.ring().map_or(0, |ring| ring.borrow().calls.get())
    }

    /// Attaches a socket, blocking or not. The driver waits for it; other holders of the open socket see no
    /// change.
    ///
    /// # Errors
    ///
    /// When the descriptor is not a socket.
    pub fn socket(&self, socket: impl Into<OwnedFd>) -> Result<Socket> {
        self.core().check_here()?;
        Socket::attach(Rc::clone(&self.reactor), socket.into())
    }

    /// Connects to an address by TCP. For a socket with settings of your own use [`Socket::connect`].
    ///
    /// # Errors
    ///
    /// [`Error::NoDescriptor`](crate::Error::NoDescriptor); when too many operations are under way.
    /// [`Connecting`] reports later errors.
    pub fn connect(&self, address: SocketAddr) -> Result<Connecting> {
        self.core().check_here()?;
        Socket::tcp(&self.reactor, address)?.connect(address)
    }

    /// As [`connect`](Self::connect), with options that are set before the first packet.
    ///
    /// # Errors
    ///
    /// As `connect`. [`Error::Io`](crate::Error::Io) names the option that the kernel refuses, or the address to connect
    /// from; [`Error::Invalid`](crate::Error::Invalid) says which option has no meaning here.
    pub fn connect_with(&self, address: SocketAddr, options: &SocketOptions) -> Result<Connecting> {
        self.core().check_here()?;
        Socket::connect_with(&self.reactor, address, options)
    }

    /// Listens for TCP connections, with options that are set before. The connections have them, too, except the
    /// priority. As for [`listen`](Self::listen), you then take them. A listener of an earlier program may still have connections
    /// (`SO_REUSEADDR`).
    ///
    /// # Errors
    ///
    /// As [`connect_with`](Self::connect_with); when too many operations are under way.
    pub fn listen_at(&self, address: SocketAddr, options: &SocketOptions) -> Result<Listener> {
        self.core().check_here()?;
        Listener::open_at(&self.reactor, address, options)
    }

    /// Takes the connections of a listener. From now on `O_NONBLOCK` of the listener belongs to the driver.
    ///
    /// # Errors
    ///
    /// When too many operations are under way.
    pub fn listen(&self, listener: TcpListener) -> Result<Listener> {
        self.core().check_here()?;
        Listener::open(&self.reactor, listener)
    }

    /// Connects to a Unix socket of this kind.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn connect_unix(&self, address: &UnixAddress, kind: UnixKind) -> Result<Connecting> {
        self.core().check_here()?;
        Socket::unix(&self.reactor, kind)?.connect_unix(address)
    }

    /// Listens at a name for connections of this kind. [`UnixListener`] says what becomes of its file.
    ///
    /// # Errors
    ///
    /// [`Error::NameInUse`](crate::Error::NameInUse); for a kind without connections; when too many operations are under
    /// way.
    pub fn listen_unix(&self, address: &UnixAddress, kind: UnixKind) -> Result<UnixListener> {
        self.core().check_here()?;
        UnixListener::bind(&self.reactor, address, kind)
    }

    /// Takes the connections of a Unix socket that listens already. Its file is left alone. From now on `O_NONBLOCK` of
    /// the listener belongs to the driver.
    ///
    /// # Errors
    ///
    /// When the socket is not such; when too many operations are under way.
    pub fn listen_unix_on(&self, listener: impl Into<OwnedFd>) -> Result<UnixListener> {
        self.core().check_here()?;
        UnixListener::open(&self.reactor, listener.into())
    }

    /// Makes a Unix datagram socket with a name. Its file goes as a [`UnixListener`]'s does, with the last handle.
    ///
    /// # Errors
    ///
    /// [`Error::NameInUse`](crate::Error::NameInUse); what the kernel says of the name.
    pub fn bind_unix(&self, address: &UnixAddress) -> Result<Socket> {
        self.core().check_here()?;
        Socket::unix_bound(&self.reactor, address)
    }

    /// Makes a Unix datagram socket, or another that is to be connected, without a name.
    ///
    /// # Errors
    ///
    /// [`Error::NoDescriptor`](crate::Error::NoDescriptor).
    pub fn unix_socket(&self, kind: UnixKind) -> Result<Socket> {
        self.core().check_here()?;
        Socket::unix(&self.reactor, kind)
    }

    /// Makes two Unix sockets that are connected to each other.
    ///
    /// # Errors
    ///
    /// [`Error::NoDescriptor`](crate::Error::NoDescriptor).
    pub fn unix_pair(&self, kind: UnixKind) -> Result<(Socket, Socket)> {
        self.core().check_here()?;
        Socket::unix_pair(&self.reactor, kind)
    }

    /// Attaches a file, pipe or block device.
    ///
    /// # Errors
    ///
    /// In a child of fork(2). The driver asks the kernel about the file at its first use.
    pub fn file(&self, file: impl Into<OwnedFd>) -> Result<File> {
        self.core().check_here()?;
        Ok(File::attach(Rc::clone(&self.reactor), file.into()))
    }

    /// Opens a file, by a path that is absolute or begins at the working directory. [`Directory::open`] opens at another.
    ///
    /// # Errors
    ///
    /// As [`Directory::open`].
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<FileCall<File>> {
        self.working_directory()?.open(path, options)
    }

    /// The process's working directory, for calls by names.
    ///
    /// # Errors
    ///
    /// In a child of fork(2).
    pub fn working_directory(&self) -> Result<Directory> {
        self.core().check_here()?;
        Ok(Directory::working(Rc::clone(&self.reactor)))
    }

    /// Attaches a directory, for calls by names that begin there.
    ///
    /// # Errors
    ///
    /// In a child of fork(2); when the descriptor is not a directory.
    pub fn directory(&self, directory: impl Into<OwnedFd>) -> Result<Directory> {
        self.core().check_here()?;
        Directory::attach(Rc::clone(&self.reactor), directory.into())
    }

    /// Registers a [`Region`] or [`SharedRegion`](crate::SharedRegion) with the ring: the kernel pins its
    /// pages once, instead of at each send. Where the kernel can, it pins once for all drivers that register
    /// the region (`IORING_REGISTER_CLONE_BUFFERS` with offsets, Linux 6.13). A [`Frozen`](crate::Frozen)
    /// buffer stands for its region. (Huge pages are pinned all the same for sends on streams, since the
    /// kernel would charge the socket with all of such a page for each packet.) This ends when you
    /// [unregister](Self::unregister) the memory, when the driver goes, or when the region and all of its buffers are
    /// gone: then the memory is unmapped, and the driver's next turn lets go of its pages.
    ///
    /// # Errors
    ///
    /// [`Error::Memlock`](crate::Error::Memlock) at the limit; [`Error::NoRing`](crate::Error::NoRing) without
    /// a ring. You can use the region unregistered in both cases. Also fails when this driver has the region
    /// already, or its memory is of the heap.
    pub fn register(&self, region: &impl Memory) -> Result<Pinning> {
        let core = self.core();
        core.check_here()?;
        core.register(region.backing())
    }

    /// Takes a region out of the ring's table. Operations under way go on.
    ///
    /// # Errors
    ///
    /// When the region is not registered with this driver.
    pub fn unregister(&self, region: &impl Memory) -> Result<()> {
        let core = self.core();
        core.check_here()?;
        core.unregister(region.backing())
    }

    /// Makes a region a receive pool of chunks of `chunk` bytes.
    ///
    /// # Errors
    ///
    /// When buffers were cut from the region, or the region is smaller than a chunk.
    pub fn pool(&self, region: Region, chunk: usize) -> Result<Pool> {
        let core = self.core();
        core.check_here()?;
        Pool::new(&core.io, &core.pending, region, chunk)
    }

    /// Reserves address space for received pages: `places` of `place` bytes each, whole pages. A span
    /// is at most a place.
    ///
    /// # Errors
    ///
    /// When the sizes are not possible, or the kernel cannot map TCP sockets.
    pub fn window(&self, places: usize, place: usize) -> Result<Window> {
        let core = self.core();
        core.check_here()?;
        Window::new(&core.io, &core.pending, places, place)
    }

    /// Binds an rx queue of a NIC, with the region as the memory that it receives into. It stays bound
    /// until the driver and all of its spans are gone. See [`RxQueue`] for what NIC, kernel and user need.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`](crate::Error::EngineUnavailable) with the reason and what to do;
    /// [`Error::Memlock`](crate::Error::Memlock) at the limit on locked memory. Also fails when the driver
    /// was not built for rx queues, or buffers were cut from the region.
    pub fn rx_queue(&self, region: Region, binding: &RxBinding) -> Result<RxQueue> {
        let core = self.core();
        core.check_here()?;
        let number = core.rx_queues.borrow().len() as u32;
        let queue = RxQueue::bind(&core.io, &core.pending, number, &region, None, binding)?;
        core.rx_queues.borrow_mut().push(Rc::clone(&queue.shared));
        Ok(queue)
    }

    /// Binds an rx queue of a NIC that receives into foreign memory. See [`DmaBufQueue`]. The call takes the
    /// dma-buf: a second queue would overwrite the bytes of the first.
    ///
    /// # Errors
    ///
    /// As [`rx_queue`](Self::rx_queue). Also when the dma-buf is not a whole number of chunks, or is
    /// smaller than the NIC's ring.
    pub fn dma_buf_queue(&self, memory: DmaBuf, binding: &RxBinding) -> Result<DmaBufQueue> {
        let core = self.core();
        core.check_here()?;
        let number = core.rx_queues.borrow().len() as u32;
        let queue = DmaBufQueue::bind(&core.io, &core.pending, number, &memory, binding)?;
        core.rx_queues.borrow_mut().push(Rc::clone(&queue.0.shared));
        Ok(queue)
    }

    /// Receives from an rx queue that another driver has bound and [exported](RxQueue::export), into the same
    /// memory. Each driver has its own connections, in its own thread.
    ///
    /// # Errors
    ///
    /// As [`rx_queue`](Self::rx_queue).
    pub fn import_rx_queue(&self, exported: &ExportedRxQueue) -> Result<RxQueue> {
        let core = self.core();
        core.check_here()?;
        let number = core.rx_queues.borrow().len() as u32;
        let queue = RxQueue::import(&core.io, &core.pending, number, exported)?;
        core.rx_queues.borrow_mut().push(Rc::clone(&queue.shared));
        Ok(queue)
    }

    /// Opens the device that lends buffers of the kernel: pages of files, and what sockets received. See
    /// [`GetBuf`] for what kernel and user need.
    ///
    /// # Errors
    ///
    /// [`Error::EngineUnavailable`](crate::Error::EngineUnavailable) with the reason and what to do;
    /// [`Error::NoRing`](crate::Error::NoRing) without a ring.
    #[cfg(feature = "getbuf")]
    pub fn get_buf(&self) -> Result<GetBuf> {
        self.core().check_here()?;
        GetBuf::open(&self.reactor)
    }

    /// Takes the requests of a queue of a block device, from its `/dev/ublkcN`; the device must be made for
    /// registered buffers and this depth. See [`Request`](crate::Request) for what happens to requests.
    ///
    /// # Errors
    ///
    /// [`Error::NoRing`](crate::Error::NoRing) without a ring; when the ring's table of buffers has no room
    /// for the depth; the kernel's error about the descriptor. A driver of [`sq_poll`](crate::DriverBuilder::sq_poll) takes
    /// none.
    #[cfg(feature = "ublk")]
    pub fn requests(
        &self,
        device: impl Into<OwnedFd>,
        queue: u16,
        depth: u16,
    ) -> Result<RequestQueue> {
        self.core().check_here()?;
        RequestQueue::open(&self.reactor, device.into(), queue, depth)
    }

    /// The ring's descriptor; `None` without a ring. Only the driver's thread may submit and take completions, and the
    /// library does both. What you register must leave alone what the library has registered: tables of buffers and files,
    /// an eventfd, groups of provided buffers from 0 on.
    pub fn ring_fd(&self) -> Option<BorrowedFd<'_>> {
        self.core().io.ring()?;
        // SAFETY: the ring is open as long as the driver, which is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.core().io.ring_raw()) })
    }

    /// Queues a request that the library does not have, for the next turn: an entry of the crate `io-uring` (0.7). `owner` is what its memory belongs to: the
    /// driver keeps it, and does not touch it, until the request's last completion, and gives it back then. If you drop the
    /// [`RawRequest`], the request is cancelled, and the owner is dropped behind its last completion. `owner` is moved:
    /// memory that the entry names must be on the heap or elsewhere.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use io_uring::{opcode, types};
    ///
    /// let driver = handoff::Driver::new()?;
    /// # if driver.ring_unavailable().is_some() { return Ok(()) }
    /// let path = c"/proc/self/status".to_owned();
    /// let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build();
    /// // SAFETY: the path is on the heap, and the owner of that.
    /// let request = unsafe { driver.raw_request(entry, path) }.map_err(|refused| refused.error)?;
    /// let completion = driver.block_on(request)??;
    /// assert!(completion.result >= 0, "error {}", -completion.result);
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    ///
    /// As long as `owner` is there, and nothing but a move touches it: everything that the entry names is valid for the
    /// request and, where the request says so, accessed by nobody else. Descriptors by number stay open until the request
    /// is submitted. The request names no slot and no group of buffers of the library's, and it is not multishot.
    ///
    /// # Errors
    ///
    /// [`Error::NoRing`](crate::Error::NoRing) without a ring; [`Error::Invalid`](crate::Error::Invalid) for an entry with a
    /// link or without a completion; when too many operations are under way. The owner comes back. The entry's user data
    /// are the library's.
    pub unsafe fn raw_request<T: 'static>(
        &self,
        entry: io_uring::squeue::Entry,
        owner: T,
    ) -> Result<RawRequest<T>, Refused<T>> {
        if let Err(error) = self.core().check_here() {
            return Err(Refused { buffer: owner, error });
        }
        // SAFETY: the caller vouches for it.
        unsafe { RawRequest::begin(&self.reactor, entry, owner) }
    }

    /// Opens a group of sends that share one return.
    pub fn group<B: Payload>(&self) -> Group<B> {
        Group::open(Rc::clone(&self.reactor))
    }

    /// Submits accepted operations, waits as told, and tells operations their results; returns the number
    /// of events. For a thread that owns its loop.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered. A signal is no error: the call returns early.
    pub fn turn(&self, wait: Wait) -> Result<usize> {
        let waits = || {
            // An operation may be over as soon as it starts; a wait would then never end.
            self.reactor.start_and_wake();
            let to_come = || {
                self.core().kernel_holds_any()
                    || self.core().has_deadlines()
                    || send_span::any_away(&self.core().pending)
                    || self.core().request_queues.borrow().iter().any(|it| it.queue.is_awaited())
            };
            !self.core().news.get() && to_come()
        };
        let events = self.reactor.turn(match wait {
            Wait::No => Until::Soon,
            Wait::Event if waits() => Until::One,
            Wait::AtMost(time) if waits() => Until::OneOr(time),
            _ => Until::Now,
        })?;
        self.core().news.set(false);
        Ok(events)
    }

    /// Operations under way: also buffers on loan, results that nobody has taken, and waits. Of these, waits and
    /// [`LoanStats::unclaimed`] do not count towards [the limit](Self::in_flight_limit).
    pub fn in_flight(&self) -> usize {
        self.core().records.borrow().len() + self.core().lanes.len()
    }

    /// How many buffers are on loan though nobody waits for them, and what became of such.
    pub fn loan_stats(&self) -> LoanStats {
        self.core().unclaimed.stats()
    }

    /// The most operations that may be under way at once: [`DriverBuilder::in_flight`](crate::DriverBuilder::in_flight).
    pub fn in_flight_limit(&self) -> usize {
        self.core().records.borrow().limit()
    }

    /// Runs a future to its end, and turns the driver meanwhile.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to be entered; the future is then dropped.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let reactor = &*self.reactor;
        reactor.core.check_here()?;
        reactor.core.mark_driven();
        let mut future = pin!(future);
        let unpark = &reactor.core.unpark;
        let waker = Waker::from(Arc::clone(unpark));
        let mut context = Context::from_waker(&waker);
        loop {
            unpark.woken.store(false, SeqCst);
            if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
                // An outer call shares the flag, and looks again.
                unpark.woken.store(true, SeqCst);
                return Ok(value);
            }
            reactor.turn_parked()?;
        }
    }
}

impl AsFd for Driver {
    /// The descriptor that becomes readable when there is something to take. If you ask for it before each wait, it
    /// is also readable for what was begun since the last turn.
    fn as_fd(&self) -> BorrowedFd<'_> {
        let core = self.core();
        let here = core.is_here();
        if here {
            core.watch_deadlines();
        }
        let more = here && (core.news.get() || !core.is_quiet() || core.wakes().has_wakes());
        let raw = match &core.io.backend {
            Backend::Ring(ring) if here => ring.borrow_mut().event(more),
            Backend::Ring(ring) => ring.borrow().event_descriptor(),
            Backend::Readiness(epoll) => {
                if more {
                    core.unpark.signal();
                }
                epoll.borrow().as_fd().as_raw_fd()
            }
        };
        // SAFETY: the descriptor is open as long as the driver, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(raw) }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("ring_unavailable", &self.ring_unavailable())
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
