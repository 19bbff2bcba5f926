//! A thread that serves, with a driver of its own.

use std::os::unix::net::UnixStream;
use std::pin::pin;

use futures_util::future::select;
use handoff::Driver;
use handoff_bench::seldom::Seldom;
use handoff_http::{Limits, Server};

use super::Args;
use super::files::Files;
use super::report::Counts;
use super::root::Root;
use crate::failure::Failed;
use crate::net::reach::Listener;
use crate::{Failure, Stop, output};

pub(super) struct Worker<'a> {
    pub(super) args: &'a Args,
    /// The most at once.
    pub(super) connections: u32,
    pub(super) root: Root,
    /// What all threads say of files that can't be opened.
    pub(super) unopened: Seldom,
    pub(super) listener: Listener,
    pub(super) stop: Stop,
    /// Reports what is the same for all threads.
    pub(super) tells: bool,
    /// Readable when another thread has failed.
    pub(super) quit: UnixStream,
}

impl Worker<'_> {
    /// Serves until it must stop.
    pub(super) fn serve(self) -> Result<Counts, Failure> {
        let args = self.args;
        let driver = driver(self.connections)?;
        let limits = Limits {
            connections: self.connections as usize,
            per_client: args.max_per_client.map_or(usize::MAX, |most| most as usize),
            idle: args.idle,
            grace: args.grace,
            // Nobody reads bodies here.
            body: 64 << 10,
            ..Limits::default()
        };
        let (listener, visitors) = self.listener.on(&driver)?;
        let files = Files::new(self.root, self.unopened);
        let quit = driver.file(self.quit).failed("watching threads")?;
        let quit = quit.readable().failed("watching threads")?;
        let server = Server::new(&driver, limits).admitting(move |peer| visitors.lets_in(peer));
        let mut notes = Vec::new();
        if let Some(reason) = driver.ring_unavailable() {
            notes.push(format!("plain system calls instead of io_uring: {reason}"));
        }
        if let Some(reason) = server.files_unlent() {
            notes.push(format!("get-buf can't serve: {reason}"));
        }
        if self.tells {
            for note in &notes {
                output::say(format_args!("note: {note}"));
            }
        }
        let stop = async {
            select(pin!(self.stop.wait(&driver)), quit).await;
        };
        driver.block_on(server.serve(listener, files.clone(), stop)).failed("serving")?;
        Ok(Counts { served: server.served(), statuses: files.statuses(), notes })
    }
}

/// A driver with room for so many connections.
fn driver(connections: u32) -> Result<Driver, Failure> {
    Driver::builder()
        .entries(1024)
        // What a connection receives and sends, and lent pieces of a file.
        .in_flight(64 + connections as usize * 24)
        .registered_buffers((64 + connections * 16).min(16_384))
        .registered_files((64 + connections * 4).min(16_384))
        .build()
        .map_err(Failure::not_possible)
}
