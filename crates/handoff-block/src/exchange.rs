//! Exchanging a policy's code while its device serves.
//!
//! The kernel cannot do this itself: links of `io_uring_bpf_ops` cannot be updated, replacing one function
//! of such a program (freplace) crashes this kernel, and a tail call does not return to the loop. So the
//! loops change places. First the new loops are loaded for all queues; a bad policy is refused here. Then,
//! one queue after the other, the old loop is detached between two of its steps, and the new one attached.
//! A loop keeps all its state in the ring and the region, so the new one continues the requests under way:
//! extents already asked for stay in place, and the next policy answers for what is left of a request.
//!
//! Contracts:
//! - the caller of [`exchange`] gets the answer when all queues have changed, or none has;
//! - maps that both policies have are shared; a map of the same name with another type or size is refused;
//!   maps that the new policy lacks are gone. Variables start anew;
//! - what a later server will load is replaced when all queues have changed, and watchers of the device
//!   ([`Watch`]) are told.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;

use crate::Error;
use crate::state::{Directory, POLICY};

/// How long the server waits for the request of a connected client.
const REQUEST: Duration = Duration::from_secs(1);
/// How long the answer may take: the kernel verifies the policy once for each queue.
const ANSWER: Duration = Duration::from_secs(120);
/// A path and its quotes.
const REQUEST_BYTES: u64 = 16 << 10;

/// Replaces the policy of a device while it serves.
///
/// # Errors
///
/// A device without a policy or a server, and everything refused when making a device; the old policy then
/// goes on.
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

/// What was exchanged in a device's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A file that is not the policy.
    Other,
    /// The policy's object, as far as is known.
    Policy,
}

/// Reports changes of what a device with a policy was made of: its descriptor is then readable.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches a device that has a policy.
    ///
    /// # Errors
    ///
    /// The kernel's; it limits a user's watches.
    pub fn of(id: u32) -> io::Result<Self> {
        Self::at(Directory::of(id).path())
    }

    fn at(directory: &Path) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags)?;
        // The policy's object, then the record, replace the old ones.
        let moved = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, directory, moved)?;
        Ok(Self(watch))
    }

    /// The greatest change since the last call.
    pub fn change(&self) -> Option<Change> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut change = None;
        while let Ok(event) = reader.next() {
            let is_policy =
                event.file_name().is_some_and(|name| name.to_bytes() == POLICY.as_bytes());
            // If the kernel lost events, it may have been that.
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

/// The socket for requests to a server.
#[derive(Debug)]
pub(crate) struct Exchanges(UnixListener);

impl Exchanges {
    /// Replaces the last server's, if there was one.
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

    /// The next client, if there is one.
    pub(crate) fn next(&self) -> Option<Request> {
        let (stream, _) = self.0.accept().ok()?;
        Request::read(stream).map_err(|error| tracing::warn!("a request: {error}")).ok()
    }
}

/// A request that waits for an answer.
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
        // A client that has gone does not want to know.
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
