//! A policy's code is exchanged while its device serves.
//!
//! The kernel does not exchange it by itself: links of `io_uring_bpf_ops` cannot be updated, replacing
//! one function of such a program (freplace) brings this kernel down, and a tail call does not return
//! to the loop. So the loops change places. The next ones are loaded for all queues, which is when a
//! policy is refused; then one after the other is detached, between two of its steps, and the next
//! attached. All that a loop works in is the ring's and the region's, so the next one goes on with
//! the requests that are under way: extents that were asked for stay where they are, and what is left
//! of a request is asked of the next policy.
//!
//! Contracts:
//! - who asks ([`exchange`]) is answered when all queues have changed, or none has;
//! - maps that both policies have are the same; one of the same name and another type or size is
//!   refused; maps that the next one does not have are gone. Variables begin anew;
//! - what a server that follows will load is replaced when all queues have changed, and whoever watches the
//!   device ([`Watch`]) is told.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;

use crate::Error;
use crate::state::{Directory, POLICY};

/// How long the server waits for the request of one who has connected.
const REQUEST: Duration = Duration::from_secs(1);
/// How long the answer may take: the kernel looks at the policy once for each queue.
const ANSWER: Duration = Duration::from_secs(120);
/// A path and its quotes.
const REQUEST_BYTES: u64 = 16 << 10;

/// Puts another policy in the place of that of a device, while it serves.
///
/// # Errors
///
/// A device without a policy or a server, and what would be refused when a device is made; then the
/// policy that it has goes on.
pub fn exchange(id: u32, policy: &Path) -> Result<(), Error> {
    let record = Directory::of(id).read().map_err(|error| {
        Error::usage(format!("what device {id} was made of is not known here: {error}"))
    })?;
    if record.spec.policy.is_none() {
        return Err(Error::usage(format!(
            "device {id} has no policy: its target is {}",
            record.spec.target
        )));
    }
    let stream = UnixStream::connect(Directory::of(id).exchange_path()).map_err(|error| {
        Error::failed(format!("device {id} has no server at the moment ({error}): try again"))
    })?;
    ask(&stream, policy).unwrap_or_else(|error| {
        Err(Error::failed(format!(
            "the server of device {id} does not answer ({error}): `handoff blk show {id}` tells the \
             policy that it has"
        )))
    })
}

fn ask(mut stream: &UnixStream, policy: &Path) -> io::Result<Result<(), Error>> {
    stream.set_read_timeout(Some(ANSWER))?;
    let request = serde_json::to_string(policy)?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}

/// What was put in the place of another in a device's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A file that is not the policy.
    Other,
    /// The policy's object, as far as is known.
    Policy,
}

/// Tells that what a device with a policy was made of has changed: its descriptor is readable then.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches a device that has a policy.
    ///
    /// # Errors
    ///
    /// Those of the kernel, which has limits for a user's watches.
    pub fn of(id: u32) -> io::Result<Self> {
        Self::at(Directory::of(id).path())
    }

    fn at(directory: &Path) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags)?;
        // The policy's object and then the record take the place of the last ones.
        let moved = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, directory, moved)?;
        Ok(Self(watch))
    }

    /// The greatest change since this was asked last.
    pub fn change(&self) -> Option<Change> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut change = None;
        while let Ok(event) = reader.next() {
            let is_policy =
                event.file_name().is_some_and(|name| name.to_bytes() == POLICY.as_bytes());
            // Where the kernel could not keep all that it had to tell, it may have been that.
            let is_lost = event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            let this = if is_policy || is_lost { Change::Policy } else { Change::Other };
            change = change.max(Some(this));
        }
        change
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where a server is asked.
#[derive(Debug)]
pub(crate) struct Exchanges(UnixListener);

impl Exchanges {
    /// In the place of the last server, if there was one.
    pub(crate) fn listen(directory: &Directory) -> io::Result<Self> {
        let path = directory.exchange_path();
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// One who has asked, if there is one.
    pub(crate) fn next(&self) -> Option<Request> {
        let (stream, _) = self.0.accept().ok()?;
        Request::read(stream).map_err(|error| tracing::warn!("a request: {error}")).ok()
    }
}

/// A request that wants an answer.
pub(crate) struct Request {
    pub(crate) policy: PathBuf,
    stream: UnixStream,
}

impl Request {
    fn read(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(REQUEST))?;
        stream.set_write_timeout(Some(REQUEST))?;
        let mut line = String::new();
        BufReader::new((&stream).take(REQUEST_BYTES)).read_line(&mut line)?;
        Ok(Self { policy: serde_json::from_str(&line)?, stream })
    }

    pub(crate) fn answer(mut self, result: &Result<(), Error>) {
        let answer = serde_json::to_string(result).expect("a line of text");
        // Who has gone away does not want to know.
        let _ = self.stream.write_all(answer.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_watch_tells_another_policy_from_all_else() {
        let place = tempfile::tempdir().expect("a directory");
        let directory = place.path().join("7");
        fs::create_dir(&directory).expect("made");
        let watch = Watch::at(&directory).expect("watched");
        let replace = |name: &str| {
            let new = directory.join("new");
            fs::write(&new, name)
                .and_then(|()| fs::rename(&new, directory.join(name)))
                .expect(name);
        };
        assert_eq!(watch.change(), None);
        replace("spec.json");
        assert_eq!(watch.change(), Some(Change::Other));
        replace(POLICY);
        replace("spec.json");
        assert_eq!(watch.change(), Some(Change::Policy));
        assert_eq!(watch.change(), None);
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(watch.change(), Some(Change::Other));
    }
}
