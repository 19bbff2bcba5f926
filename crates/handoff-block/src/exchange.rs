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
//! - the caller of [`exchange`] opens and reads the object, and sends its bytes: the server opens nothing for a client,
//!   and takes no more bytes than an object may have, in a limited time;
//! - the caller of [`exchange`] gets the answer when all queues have changed, or none has;
//! - maps that both policies have are shared; a map of the same name with another type or size is refused;
//!   maps that the new policy lacks are gone. Variables start anew;
//! - what a later server will load is replaced when all queues have changed, and watchers of the device
//!   ([`Watch`]) are told.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use serde::{Deserialize, Serialize};

use crate::object_file;
use crate::state::{Directory, POLICY};
use crate::{Error, ErrorKind};

/// How long the server waits for the whole request of a connected client. It does nothing else meanwhile.
const REQUEST: Duration = Duration::from_secs(1);
/// How long the answer may take: the kernel verifies the policy once for each queue.
const ANSWER: Duration = Duration::from_secs(120);
/// The line before an object: a path and its quotes.
const LINE_BYTES: u64 = 16 << 10;

/// The line before an object.
#[derive(Serialize, Deserialize)]
struct Line {
    /// Where the client has read it.
    policy: PathBuf,
    bytes: u64,
}

/// Replaces the policy of a device while it serves.
///
/// # Errors
///
/// A device without a policy or a server, and everything refused when making a device; the old policy then
/// goes on.
pub fn exchange(id: u32, policy: &Path) -> Result<(), Error> {
    let record = Directory::of(id).known()?;
    if record.spec.policy.is_none() {
        return Err(Error::invalid(format!(
            "device {id} has no policy: its target is {}",
            record.spec.target
        )));
    }
    let (_, object) = object_file::read(policy)?;
    let stream = UnixStream::connect(Directory::of(id).exchange_path())
        .map_err(|source| Error::NoServer { id, source })?;
    ask(&stream, policy, &object).unwrap_or_else(|source| Err(Error::NoAnswer { id, source }))
}

/// An error as it goes over the socket: in words, by its kind.
#[derive(Serialize, Deserialize)]
enum Told {
    Usage(String),
    NotPossible(String),
    Failed(String),
    Starved(String),
}

impl From<&Error> for Told {
    fn from(error: &Error) -> Self {
        let told = match error.kind() {
            ErrorKind::Usage => Self::Usage,
            ErrorKind::NotPossible => Self::NotPossible,
            ErrorKind::Failed => Self::Failed,
            ErrorKind::Starved => Self::Starved,
        };
        told(error.to_string())
    }
}

impl From<Told> for Error {
    fn from(told: Told) -> Self {
        let (kind, reason) = match told {
            Told::Usage(reason) => (ErrorKind::Usage, reason),
            Told::NotPossible(reason) => (ErrorKind::NotPossible, reason),
            Told::Failed(reason) => (ErrorKind::Failed, reason),
            Told::Starved(reason) => (ErrorKind::Starved, reason),
        };
        Self::Refused { kind, reason }
    }
}

fn ask(mut stream: &UnixStream, policy: &Path, object: &[u8]) -> io::Result<Result<(), Error>> {
    stream.set_read_timeout(Some(ANSWER))?;
    let line = Line { policy: policy.to_owned(), bytes: object.len() as u64 };
    let line = serde_json::to_string(&line)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    stream.write_all(object)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let told: Result<(), Told> = serde_json::from_str(&answer)?;
    Ok(told.map_err(Error::from))
}

/// What was exchanged in a device's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A file that is not the policy.
    Other,
    /// The policy's object, as far as is known.
    Policy,
    /// All of it is gone, and this reports nothing more.
    Removed,
}

/// Reports changes of what a device was made of: its descriptor is then readable.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Watches a device.
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
        let changes = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE;
        inotify::add_watch(&watch, directory, changes | inotify::WatchFlags::ONLYDIR)?;
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
            let this = match event.events().contains(inotify::ReadFlags::IGNORED) {
                true => Change::Removed,
                false if is_policy || is_lost => Change::Policy,
                false => Change::Other,
            };
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

    /// The next client, if there is one; the descriptor is readable when there is.
    pub(crate) fn next(&self) -> Option<Request> {
        let (stream, _) = match self.0.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => {
                // It waits on, for a descriptor or memory.
                tracing::warn!("a request is not accepted: {error}");
                thread::sleep(REQUEST);
                return None;
            }
        };
        Request::read(stream).map_err(|error| tracing::warn!("a request: {error}")).ok()
    }
}

impl AsFd for Exchanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A request that waits for an answer.
#[derive(Debug)]
pub(crate) struct Request {
    /// Where the client has read the object.
    pub(crate) policy: PathBuf,
    pub(crate) object: Vec<u8>,
    stream: UnixStream,
}

impl Request {
    fn read(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(REQUEST))?;
        let mut reader = BufReader::new(Until { stream: &stream, end: Instant::now() + REQUEST });
        let mut line = String::new();
        (&mut reader).take(LINE_BYTES).read_line(&mut line)?;
        let Line { policy, bytes } = serde_json::from_str(&line)?;
        if bytes > object_file::MOST {
            return Err(io::Error::other(format!("an object of {bytes} bytes is too long")));
        }
        let mut object = Vec::new();
        reader.take(bytes).read_to_end(&mut object)?;
        if object.len() as u64 != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { policy, object, stream })
    }

    pub(crate) fn answer(mut self, result: &Result<(), Error>) {
        let told = result.as_ref().map_err(Told::from);
        let answer = serde_json::to_string(&told).expect("a line of text");
        // A client that has gone does not want to know.
        let _ = self.stream.write_all(answer.as_bytes());
    }
}

/// Reads until a time, however slowly the bytes come.
struct Until<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;

    /// What a server makes of what `client` writes.
    fn read(client: impl FnOnce(UnixStream) + Send + 'static) -> io::Result<Request> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let client = thread::spawn(|| client(theirs));
        // The end of the connection tells a client that is refused.
        let request = Request::read(ours);
        client.join().expect("ends");
        request
    }

    #[test]
    fn an_object_comes_whole_or_is_refused() {
        let line = |bytes: u64| format!("{{\"policy\":\"/p.o\",\"bytes\":{bytes}}}\n");
        let whole = read(move |mut client| {
            let object = vec![7; object_file::MOST as usize];
            client.write_all(line(object_file::MOST).as_bytes()).expect("written");
            client.write_all(&object).expect("written");
        });
        let whole = whole.expect("a request");
        assert_eq!(whole.policy, Path::new("/p.o"));
        assert!(whole.object.len() as u64 == object_file::MOST);
        for (sent, why) in [
            (line(object_file::MOST + 1), "too long"),
            (format!("{}abc", line(4)), "unexpected end"),
            ("nothing\n".to_owned(), "expected"),
            (String::new(), "EOF"),
        ] {
            let refused = read(move |mut client| {
                client.write_all(sent.as_bytes()).expect("written");
            });
            let cause = refused.expect_err("refused").to_string();
            assert!(cause.contains(why), "{cause}");
        }
    }

    /// A server that waits for each byte anew does nothing else for as long as the client likes.
    #[test]
    fn a_client_that_is_slow_does_not_hold_the_server() {
        let refused = read(|mut client| {
            let line = "{\"policy\":\"/p.o\",\"bytes\":0}\n";
            for byte in line.as_bytes() {
                if client.write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(REQUEST / 10);
            }
        });
        refused.expect_err("it took three times as long as it may");
    }

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
        assert_eq!(watch.change(), Some(Change::Removed));
    }
}
