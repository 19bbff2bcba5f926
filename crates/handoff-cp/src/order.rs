//! What to copy, and how: what all threads of one copy share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use handoff_command::{Context, Failure, Stop, output, progress};
use handoff_net::address::Address;
use indicatif::ProgressBar;

use crate::args::Args;
use crate::ranged::ALIGNMENT;

/// The most memory for pieces, in bytes: as much as a receive pool can have.
const MOST_MEMORY: usize = 2 << 30;

/// What to copy, and how.
pub(crate) struct Order<'a> {
    pub(crate) args: &'a Args,
    pub(crate) stop: &'a Stop,
    pub(crate) source: Address,
    pub(crate) destination: Address,
    pub(crate) progress: ProgressBar,
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
        Self { args, stop: &context.stop, source, destination, progress, notes }
    }

    /// Reports a deviation from what was asked, now and in the report.
    pub(crate) fn note(&self, note: String) {
        let mut notes = self.all_notes();
        if !notes.contains(&note) {
            output::say(format_args!("note: {note}"));
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
        Address::Connect(_) | Address::Listen(_) | Address::Rds(_) => "socket",
    }
}
