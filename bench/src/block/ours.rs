//! A device that threads of this process serve, by one of our engines.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::PathBuf,
    thread::{self, JoinHandle},
};

use handoff::Region;
use handoff_block::{Error, Server, Spec, Start, state::Record};

use super::served::Device;
use crate::tasks::{self, of_process};

pub(super) struct Ours {
    id: u32,
    threads: Vec<i32>,
    record: Record,
    serving: Option<JoinHandle<Result<(), Error>>>,
}

impl Ours {
    pub(super) fn new(spec: &Spec) -> Result<Self, String> {
        let server = Server::start(spec, Start::New).map_err(|error| error.to_string())?;
        let (id, threads) = (server.id(), server.threads().to_vec());
        let record = server.record().clone();
        let serving = thread::spawn(move || server.wait());
        let ours = Self { id, threads, record, serving: Some(serving) };
        ours.set_bits().map_err(|error| format!("{}: {error}", ours.path().display()))?;
        Ok(ours)
    }

    /// Writes to each chunk of a mirror with a record: under a load that lasts, nearly all writes find the bit of their
    /// chunk set.
    fn set_bits(&self) -> io::Result<()> {
        const BLOCK: usize = 4096;
        let Some(mirror) = &self.record.mirror else { return Ok(()) };
        let device = File::options().write(true).custom_flags(libc::O_DIRECT).open(self.path())?;
        let block = Region::anonymous(BLOCK).map_err(io::Error::other)?.chunks(BLOCK).remove(0);
        let mut chunks = (0..self.record.size).step_by(1 << mirror.chunk_shift);
        chunks.try_for_each(|at| device.write_all_at(&block, at))
    }
}

impl Device for Ours {
    fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.id).into()
    }

    fn threads(&self) -> Vec<PathBuf> {
        let mut threads = of_process(std::process::id());
        threads.retain(|thread| {
            let name = tasks::name(thread);
            let worker_of = name.strip_prefix("iou-wrk-").and_then(|id| id.parse().ok());
            [tasks::id(thread), worker_of].iter().flatten().any(|id| self.threads.contains(id))
        });
        threads
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            // The load has shown whether the server failed.
            let _ = handoff_block::remove(&self.record);
            let _ = serving.join();
        }
    }
}
