//! Waiting for sockets by epoll, where the kernel or a policy gives no io_uring.
//!
//! Minimum kernel: 2.6. Each wait is for one event; two waits may share a descriptor, one for each
//! direction. Waits in steady state allocate nothing.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use smallvec::SmallVec;

use super::token::Token;

/// Events taken at a time.
const BATCH: usize = 64;

pub(crate) struct Epoll {
    fd: OwnedFd,
    /// The events that each descriptor is waited on for (poll(2)), with the waiting operation.
    waits: HashMap<RawFd, SmallVec<[(i16, Token); 2]>>,
    /// The descriptor that each waiting operation waits for.
    descriptors: HashMap<Token, RawFd>,
    /// Ready descriptors that nobody has been told of.
    ready: Vec<Ready>,
    /// The storage of the list that was told last.
    told: Vec<Ready>,
    /// Where the kernel writes its events.
    events: Vec<Event>,
}

/// A readiness event of an operation, of the wake-up descriptor, or of the alarm for deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Operation(Token),
    Wake,
    Alarm,
}

const WAKE: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;

/// Every wait is told of errors and hang-ups.
const ALWAYS: i16 = libc::POLLERR | libc::POLLHUP;

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            fd: epoll::create(CreateFlags::CLOEXEC)?,
            waits: HashMap::new(),
            descriptors: HashMap::new(),
            ready: Vec::new(),
            told: Vec::new(),
            events: Vec::with_capacity(BATCH),
        })
    }

    /// Reports [`Ready::Wake`] or [`Ready::Alarm`] whenever `fd` can be read.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, ready: Ready) -> io::Result<()> {
        let data = if ready == Ready::Alarm { ALARM } else { WAKE };
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(data), EventFlags::IN)?)
    }

    pub(crate) fn wait_for(&mut self, fd: RawFd, events: i16, token: Token) -> io::Result<()> {
        let known = self.waits.contains_key(&fd);
        self.waits.entry(fd).or_default().push((events, token));
        self.descriptors.insert(token, fd);
        self.set(fd, known).inspect_err(|_| {
            self.descriptors.remove(&token);
            let waits = self.waits.get_mut(&fd).expect("it was just put there");
            waits.pop();
            if waits.is_empty() {
                self.waits.remove(&fd);
            }
        })
    }

    /// Drops the wait of an operation; returns whether there was one.
    pub(crate) fn cancel(&mut self, token: Token) -> bool {
        let Some(fd) = self.descriptors.remove(&token) else { return false };
        let waits = self.waits.get_mut(&fd).expect("what waits is among the waits");
        waits.retain(|(_, of)| *of != token);
        self.shrink(fd);
        true
    }

    /// Removes all waits, without looking at the descriptors again.
    pub(crate) fn end(&mut self) -> Vec<Token> {
        self.descriptors.clear();
        self.waits.drain().flat_map(|(_, waits)| waits).map(|(_, token)| token).collect()
    }

    fn set(&mut self, fd: RawFd, known: bool) -> io::Result<()> {
        let events = self.waits[&fd].iter().fold(0, |all, (events, _)| all | events);
        // poll and epoll share the values of these events.
        let flags = EventFlags::from_bits_retain(events as u32);
        let data = EventData::new_u64(fd as u64);
        // SAFETY: the descriptor belongs to an endpoint that a waiting operation keeps open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if known {
            epoll::modify(&self.fd, borrowed, data, flags)?;
        } else {
            epoll::add(&self.fd, borrowed, data, flags)?;
        }
        Ok(())
    }

    /// After waits were removed: narrows the registered events.
    fn shrink(&mut self, fd: RawFd) {
        let result = if self.waits[&fd].is_empty() {
            self.waits.remove(&fd);
            // SAFETY: the descriptor is open: its last operation is told of the event only after this.
            epoll::delete(&self.fd, unsafe { BorrowedFd::borrow_raw(fd) }).map_err(io::Error::from)
        } else {
            self.set(fd, true)
        };
        if let Err(error) = result {
            tracing::warn!(%error, fd, "epoll refuses a change");
        }
    }

    /// Waits until something is ready, `time` is over or a signal comes.
    pub(crate) fn wait(&mut self, time: Option<Duration>) -> io::Result<()> {
        let mut time = time.map(|time| rustix::time::Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        });
        loop {
            self.events.clear();
            let room = rustix::buffer::spare_capacity(&mut self.events);
            match epoll::wait(&self.fd, room, time.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            for at in 0..self.events.len() {
                self.note(self.events[at]);
            }
            // A foreign loop is told of this descriptor once for all that is there.
            if self.events.len() < BATCH {
                return Ok(());
            }
            time = Some(rustix::time::Timespec::default());
        }
    }

    /// Ready descriptors, to be told; the list comes back by [`Epoll::give_back`].
    pub(crate) fn take_ready(&mut self) -> Vec<Ready> {
        std::mem::replace(&mut self.ready, std::mem::take(&mut self.told))
    }

    /// Keeps the storage of a list that was told.
    pub(crate) fn give_back(&mut self, mut told: Vec<Ready>) {
        told.clear();
        self.told = told;
    }

    /// Removes the waits that an event ends.
    fn note(&mut self, Event { flags, data }: Event) {
        let Self { ready, descriptors, .. } = self;
        match data.u64() {
            WAKE => return ready.push(Ready::Wake),
            ALARM => return ready.push(Ready::Alarm),
            _ => {}
        }
        let (fd, got) = (data.u64() as RawFd, flags.bits() as i16);
        let Some(waits) = self.waits.get_mut(&fd) else { return };
        waits.retain(|(events, token)| {
            let due = got & (*events | ALWAYS) != 0;
            if due {
                descriptors.remove(token);
                ready.push(Ready::Operation(*token));
            }
            !due
        });
        self.shrink(fd);
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
