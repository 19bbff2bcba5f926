//! Reads and writes of a file and of pipes.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::FileExt;

use handoff::{Driver, Error, File, Payload, PayloadMut};

use crate::handles::Handle;
use crate::model::{Back, Place, content, place};
use crate::steps::Memory;
use crate::world::World;

/// The file's bytes for reads.
pub(crate) const KNOWN: usize = 64 << 10;
/// The room of each write behind them.
pub(crate) const ROOM: usize = 64 << 10;
/// Bytes that a pipe takes whole.
pub(crate) const PIPE: usize = 4096;
const PERIOD: usize = 251;

/// What these say.
pub(crate) fn known() -> Vec<u8> {
    content(0, KNOWN)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    ReadAt(usize),
    WriteAt(usize),
    ReadPipe,
    WritePipe,
}

/// One read or write.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) way: Way,
    /// The buffer's bytes before.
    pub(crate) bytes: Vec<u8>,
    pub(crate) places: Vec<Place>,
}

/// The file or pipe.
pub(crate) struct Files {
    pub(crate) file: File,
    pub(crate) same: std::fs::File,
    pub(crate) reading: File,
    feed: Option<PipeWriter>,
    fed: usize,
    pub(crate) writing: File,
    drain: Option<PipeReader>,
    drained: Vec<u8>,
    /// The bytes that successful writes must have left in the pipe.
    written: Vec<Vec<u8>>,
}

impl Files {
    pub(crate) fn new(driver: &Driver) -> Self {
        let same = tempfile::tempfile().expect("makes a file");
        same.write_all_at(&known(), 0).expect("writes");
        let (read, feed) = std::io::pipe().expect("a pipe");
        let (drain, write) = std::io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&drain, true).expect("sets");
        rustix::io::ioctl_fionbio(&feed, true).expect("sets");
        Self {
            file: driver.file(same.try_clone().expect("clones")).expect("attaches"),
            same,
            reading: driver.file(read).expect("attaches"),
            feed: Some(feed),
            fed: 0,
            writing: driver.file(write).expect("attaches"),
            drain: Some(drain),
            drained: Vec::new(),
            written: Vec::new(),
        }
    }

    pub(crate) fn feed(&mut self, len: usize) {
        let bytes: Vec<u8> = (self.fed..self.fed + len).map(|at| (at % PERIOD) as u8).collect();
        if let Some(Ok(fed)) = self.feed.as_mut().map(|feed| feed.write(&bytes)) {
            self.fed += fed;
        }
    }

    pub(crate) fn drain(&mut self) {
        let mut space = [0; 4 * PIPE];
        while let Some(Ok(got @ 1..)) = self.drain.as_mut().map(|drain| drain.read(&mut space)) {
            self.drained.extend_from_slice(&space[..got]);
        }
    }

    /// No more bytes come, so reads end.
    pub(crate) fn end_feed(&mut self) {
        self.feed = None;
    }

    pub(crate) fn check(
        &mut self,
        job: &Job,
        result: Result<usize, Error>,
        back: &Back,
        gone: bool,
    ) {
        assert_eq!(back.places(), job.places, "another buffer came back");
        let (bytes, len) = (back.bytes(), job.bytes.len());
        let done = match result {
            Ok(done) => done,
            Err(Error::Canceled { done }) if gone => done,
            Err(Error::DriverGone) if gone => return,
            Err(error) => panic!("{job:?}: {error}"),
        };
        match job.way {
            Way::ReadAt(at) => {
                let known = known();
                assert!(gone || done == len.min(KNOWN - at), "{done} of {len} at {at}");
                assert!(bytes[..done] == known[at..at + done], "what was read at {at} differs");
            }
            Way::ReadPipe => {
                let first = usize::from(bytes.first().copied().unwrap_or(0));
                let same = |(at, byte): (usize, &u8)| usize::from(*byte) == (first + at) % PERIOD;
                assert!(bytes[..done].iter().enumerate().all(same), "the pipe's bytes differ");
            }
            Way::WriteAt(_) | Way::WritePipe => {
                assert!(gone || done == len, "{done} of {len} were written");
                assert!(bytes == job.bytes, "a buffer was changed while on loan");
            }
        }
        match job.way {
            Way::ReadAt(_) | Way::ReadPipe => {
                assert!(bytes[done..] == job.bytes[done..], "more changed than was read");
            }
            Way::WriteAt(number) if done == len => {
                let mut got = vec![0; len];
                self.same.read_exact_at(&mut got, (KNOWN + number * ROOM) as u64).expect("reads");
                assert!(got == job.bytes, "what was written differs");
            }
            Way::WritePipe if done == len => self.written.push(bytes),
            _ => {}
        }
    }

    pub(crate) fn offset(way: Way) -> u64 {
        match way {
            Way::ReadAt(at) => at as u64,
            Way::WriteAt(number) => (KNOWN + number * ROOM) as u64,
            Way::ReadPipe | Way::WritePipe => 0,
        }
    }

    /// The pipe has all successful writes, each once.
    pub(crate) fn check_pipe(&self) {
        for bytes in &self.written {
            let found = self.drained.windows(bytes.len().max(1)).any(|part| part == bytes);
            assert!(found || bytes.is_empty(), "a write of {} bytes is not there", bytes.len());
        }
    }
}

impl World {
    pub(crate) fn transfer(&mut self, way: Way, len: usize, memory: Memory) {
        let pipe = matches!(way, Way::ReadPipe | Way::WritePipe);
        let len = len.min(if pipe { PIPE } else { ROOM });
        let way = match way {
            Way::WriteAt(_) => Way::WriteAt(self.jobs.len()),
            way => way,
        };
        let bytes = content(self.jobs.len() + 7, len.max(1));
        if memory == Memory::Owned {
            let owned = bytes.clone().into_boxed_slice();
            let places = vec![place(&owned)];
            self.start(Job { way, bytes, places }, owned);
        } else {
            let buffer = self.buffer(&bytes, memory);
            let places = vec![place(&buffer)];
            self.start(Job { way, bytes, places }, buffer);
        }
    }

    fn start<B>(&mut self, job: Job, buffer: B)
    where
        B: Payload + PayloadMut + Into<Back> + 'static,
    {
        let Some(files) = &self.files else { return };
        let offset = Files::offset(job.way);
        let started = match job.way {
            Way::ReadAt(_) => files.file.read_at(buffer, offset),
            Way::WriteAt(_) => files.file.write_at(buffer, offset),
            Way::ReadPipe => files.reading.read(buffer),
            Way::WritePipe => files.writing.write(buffer),
        };
        match started {
            Ok(transfer) => {
                self.out.lend(&job.places);
                self.handles.push(Handle::transfer(transfer, self.jobs.len()));
                self.jobs.push(job);
            }
            Err(refused) => {
                assert!(matches!(refused.error, Error::Busy { .. } | Error::DriverGone));
                let back = refused.buffer.into();
                assert_eq!(back.places(), job.places, "another buffer came back");
                self.bring_home(back);
            }
        }
    }
}
