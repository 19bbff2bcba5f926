//! What to copy, and how: what all threads of one copy share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff_command::{Context, Failure, Stop, output, progress};
use handoff_net::address::Address;
use indicatif::ProgressBar;

use crate::args::Args;
use crate::certified::Certified;
use crate::ranged::ALIGNMENT;
use crate::secured::Secured;

/// The most memory for pieces, in bytes: as much as a receive pool can have.
const MOST_MEMORY: usize = 2 << 30;

/// What to copy, and how.
pub(crate) struct Order<'a> {
    pub(crate) args: &'a Args,
    pub(crate) stop: &'a Stop,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) progress: ProgressBar,
    /// For a copy over TLS.
    pub(crate) secured: Option<Secured>,
    /// For bare bytes over TLS.
    pub(crate) certified: Option<Certified>,
    /// Both sides of the copy here can begin anew.
    renewable: AtomicBool,
    /// The transfer had begun, and the peer or the connection ended it.
    cut: AtomicBool,
    notes: Mutex<Vec<String>>,
}

impl<'a> Order<'a> {
    pub(crate) fn new(
        args: &'a Args,
        context: &'a Context,
        source: Address,
        destination: Address,
    ) -> Self {
        let progress = progress::bytes(None, context.json);
        let notes = Mutex::default();
        Self {
            args,
            stop: &context.stop,
            source,
            destination,
            progress,
            secured: None,
            certified: None,
            renewable: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            notes,
        }
    }

    /// Begins once more.
    pub(crate) fn begin(&self) {
        self.renewable.store(false, Ordering::Relaxed);
        self.cut.store(false, Ordering::Relaxed);
        self.progress.set_position(0);
    }

    /// What is read, or written, here can be from its beginning again.
    pub(crate) fn can_begin_anew(&self) {
        self.renewable.store(true, Ordering::Relaxed);
    }

    /// The failure of a transfer that the peer or the connection has ended.
    pub(crate) fn cut(&self, failure: Failure) -> Failure {
        self.cut.store(true, Ordering::Relaxed);
        failure
    }

    /// Whether to wait for the peer again: a KEY is good until the transfer is whole.
    pub(crate) fn goes_on(&self) -> bool {
        let listens = [&self.source, &self.destination].into_iter().any(|it| it.listens());
        self.secured.is_some()
            && listens
            && self.renewable.load(Ordering::Relaxed)
            && self.cut.load(Ordering::Relaxed)
    }

    /// Reports a deviation from what was asked, now and in the report.
    pub(crate) fn note(&self, note: String) {
        if !self.all_notes().contains(&note) {
            self.note_each_time(note);
        }
    }

    /// The same, also if it was said before; the report has it once.
    pub(crate) fn note_each_time(&self, note: String) {
        output::say(format_args!("note: {note}"));
        let mut notes = self.all_notes();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// The destination is not replaced in one step, and why.
    pub(crate) fn note_in_place(&self, why: &str) {
        self.note(format!(
            "{} is written in place, because {why}: a copy that fails leaves a part of SRC there",
            self.destination
        ));
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.all_notes().clone()
    }

    fn all_notes(&self) -> MutexGuard<'_, Vec<String>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length is known now, or known to be unknown.
    pub(crate) fn set_length(&self, length: Option<u64>) {
        if let Some(length) = length {
            progress::set_total(&self.progress, length);
        }
    }

    /// Pieces under way at once.
    pub(crate) fn depth(&self, streams: usize) -> usize {
        usize::from(self.args.depth).max(streams)
    }

    /// Bytes of all pieces under way, each in whole pages, so that direct reads and writes fit.
    ///
    /// # Errors
    ///
    /// If that is more than [`MOST_MEMORY`].
    pub(crate) fn memory_for(&self, streams: usize) -> Result<usize, Failure> {
        let piece = self.args.buffer.next_multiple_of(ALIGNMENT as usize);
        let bytes = piece * self.depth(streams);
        if bytes > MOST_MEMORY {
            return Err(Failure::usage(format!(
                "this takes {bytes} bytes of memory, and the limit is {MOST_MEMORY}: choose a smaller \
                 --buffer, --depth or number of --streams"
            )));
        }
        Ok(bytes)
    }

    pub(crate) fn destination_kind(&self) -> &'static str {
        kind(&self.destination)
    }
}

/// The name of a side in messages.
pub(crate) fn name(address: &Address) -> String {
    match address {
        Address::Pipe => "the pipe".to_owned(),
        address => address.to_string(),
    }
}

pub(crate) fn kind(address: &Address) -> &'static str {
    match address {
        Address::File(_) => "file",
        Address::Pipe => "pipe",
        Address::Connect(_)
        | Address::Listen(_)
        | Address::ConnectTls(_)
        | Address::ListenTls(_)
        | Address::Rds(_) => "socket",
    }
}
