//! A thread that serves, with a driver of its own.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;

use futures_util::future::select;
use handoff::Driver;
use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop, output};
use handoff_nbd_server::{Export, Limits, Server, Sessions};
use handoff_net::listening::{Listening, lets_in};

use super::report::Counts;

pub(super) struct Worker<'a> {
    pub(super) limits: Limits,
    pub(super) exports: &'a [Arc<Export>],
    pub(super) sessions: Sessions,
    /// What all threads have to say.
    pub(super) note: Option<String>,
    pub(super) listener: Listening,
    pub(super) stop: Stop,
    /// Reports what is the same for all threads.
    pub(super) tells: bool,
    /// Readable when another thread has failed.
    pub(super) quit: UnixStream,
}

impl Worker<'_> {
    /// Serves until it must stop.
    pub(super) fn serve(self) -> Result<Counts, Failure> {
        let driver = driver(self.limits.connections)?;
        let (listener, allow_list) = self.listener.on(&driver)?;
        let server = Server::new(&driver, self.exports, &self.sessions, self.limits);
        let server = server.failed("setting memory aside")?;
        let server = server.admitting(move |client| lets_in(&allow_list, client));
        let quit = driver.file(self.quit).failed("watching threads")?;
        let quit = quit.readable().failed("watching threads")?;
        let mut notes: Vec<_> = self.note.into_iter().collect();
        if let Some(reason) = driver.ring_unavailable() {
            notes.push(format!("plain system calls instead of io_uring: {reason}"));
        }
        notes.extend(server.notes().iter().cloned());
        if self.tells {
            for note in &notes {
                output::say(format_args!("note: {note}"));
            }
        }
        let stop = async {
            select(pin!(self.stop.wait(&driver)), quit).await;
        };
        driver.block_on(server.serve(listener, stop)).failed("serving")?;
        Ok(Counts { served: server.served(), notes })
    }
}

/// A driver with room for so many connections.
fn driver(connections: usize) -> Result<Driver, Failure> {
    Driver::builder()
        .entries(1024)
        // A receive each, and the pages that a client has lent and does not take.
        .in_flight(4096 + connections * 40)
        .registered_buffers(16_384)
        .registered_files(u32::try_from(64 + connections * 2).unwrap_or(u32::MAX).min(16_384))
        .pipes(0)
        .build()
        .map_err(Failure::not_possible)
}
