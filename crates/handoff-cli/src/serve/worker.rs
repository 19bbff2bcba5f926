//! A thread that serves, with a driver of its own.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::time::SystemTime;

use futures_util::future::select;
use handoff::Driver;
use handoff::tls::TlsAcceptor;
use handoff_command::access_log::AccessLog;
use handoff_command::descriptors::Reserve;
use handoff_command::failure::Failed;
use handoff_command::rate_limit::RateLimit;
use handoff_command::{Failure, Stop, output};
use handoff_http::{Answered, Limits, Server};
use handoff_net::listening::{Listening, lets_in};

use super::args::Args;
use super::files::Files;
use super::log::Entry;
use super::report::Counts;
use super::root::Root;

pub(super) struct Worker<'a> {
    pub(super) args: &'a Args,
    /// The most at once.
    pub(super) connections: u32,
    /// To splice files through.
    pub(super) pipes: usize,
    /// Descriptors that are kept for files.
    pub(super) reserve: usize,
    /// What all threads have to say.
    pub(super) notes: Vec<String>,
    /// Begins TLS.
    pub(super) acceptor: Option<TlsAcceptor>,
    pub(super) log: Option<AccessLog>,
    pub(super) root: Root,
    /// What all threads say of files that can't be opened.
    pub(super) unopened: RateLimit,
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
        let args = self.args;
        let connections = self.connections as usize;
        let driver = driver(self.connections, self.pipes)?;
        let limits = Limits {
            connections,
            per_client: args
                .max_per_client
                .map_or(connections - connections / 4, |most| most as usize),
            idle: args.idle,
            grace: args.grace,
            // Nobody reads bodies here.
            body: 64 << 10,
            ..Limits::default()
        };
        let (listener, allow_list) = self.listener.on(&driver)?;
        let reserve = (self.reserve > 0).then(|| Reserve::new(self.reserve));
        let files = Files::new(self.root, self.unopened, reserve);
        let quit = driver.file(self.quit).failed("watching threads")?;
        let quit = quit.readable().failed("watching threads")?;
        let mut server =
            Server::new(&driver, limits).admitting(move |peer| lets_in(&allow_list, peer));
        if let Some(log) = self.log {
            let write = move |answered: &Answered<'_>| {
                log.write(&Entry::new(answered, SystemTime::now()));
            };
            server = server.observing(write);
        }
        let is_tls = self.acceptor.is_some();
        if let Some(acceptor) = self.acceptor {
            server = server.over_tls(acceptor);
        }
        let mut notes = self.notes;
        if let Some(reason) = driver.ring_unavailable() {
            notes.push(format!("plain system calls instead of io_uring: {reason}"));
        }
        // Nothing is lent to a cipher.
        if let Some(reason) = server.files_unlent().filter(|_| !is_tls) {
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
        let (served, statuses, ciphers) = (server.served(), files.statuses(), server.ciphers());
        Ok(Counts { served, statuses, ciphers, notes })
    }
}

/// A driver with room for so many connections, and so many pipes.
fn driver(connections: u32, pipes: usize) -> Result<Driver, Failure> {
    Driver::builder()
        .entries(1024)
        // What a connection receives and sends, and lent pieces of a file.
        .in_flight(64 + connections as usize * 24)
        .registered_buffers((64 + connections * 16).min(16_384))
        .registered_files((64 + connections * 4).min(16_384))
        .pipes(pipes)
        .build()
        .map_err(Failure::not_possible)
}
