//! A request, and whether a target allows it.
//!
//! The client asks before it sends, the server when the header has come, so both have one rule.

use crate::target::Target;
use crate::wire::{
    Command, CommandFlags, ErrorCode, Framing, Head, RequestHeader, StateFlags, TransmissionFlags,
};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bytes are read.
    Read {
        /// In one piece.
        unfragmented: bool,
    },
    /// Bytes are written. They follow the header.
    Write,
    /// What was written goes to stable storage.
    Flush,
    /// Bytes are no longer needed.
    Trim,
    /// Bytes will be read soon.
    Cache,
    /// Zeroes are written.
    WriteZeroes {
        /// And their blocks stay allocated.
        no_hole: bool,
        /// Only if that is faster than to write them.
        fast: bool,
    },
    /// Which extents are allocated.
    BlockStatus {
        /// One extent is enough.
        one: bool,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub operation: Operation,
    /// From where in the export, in bytes.
    pub offset: u64,
    /// How many bytes. 0 for a flush.
    pub length: u64,
    /// Answered when it is on stable storage.
    pub fua: bool,
}

/// An extent of block status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, above 0.
    pub length: u64,
    /// What is known of it.
    pub state: StateFlags,
}

/// Why a target does not allow a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// What a server answers.
    pub error: ErrorCode,
    /// The reason, in a few words.
    pub text: &'static str,
}

fn refuse<T>(error: ErrorCode, text: &'static str) -> Result<T, Refusal> {
    Err(Refusal { error, text })
}

impl Request {
    /// Whether it changes the export's bytes.
    pub fn is_write(&self) -> bool {
        matches!(self.operation, Operation::Write | Operation::Trim | Operation::WriteZeroes { .. })
    }

    /// Bytes that follow the header.
    pub fn payload(&self) -> u64 {
        if self.operation == Operation::Write { self.length } else { 0 }
    }

    fn command(&self) -> Command {
        match self.operation {
            Operation::Read { .. } => Command::Read,
            Operation::Write => Command::Write,
            Operation::Flush => Command::Flush,
            Operation::Trim => Command::Trim,
            Operation::Cache => Command::Cache,
            Operation::WriteZeroes { .. } => Command::WriteZeroes,
            Operation::BlockStatus { .. } => Command::BlockStatus,
        }
    }

    /// Its header; `None` where the length does not fit into one of this kind.
    pub fn encode(&self, cookie: u64, framing: Framing) -> Option<Head> {
        let mut flags = CommandFlags::empty();
        flags.set(CommandFlags::FUA, self.fua);
        match self.operation {
            Operation::Read { unfragmented } => flags.set(CommandFlags::DF, unfragmented),
            Operation::Write => {
                flags.set(CommandFlags::PAYLOAD_LEN, framing == Framing::Extended);
            }
            Operation::WriteZeroes { no_hole, fast } => {
                flags.set(CommandFlags::NO_HOLE, no_hole);
                flags.set(CommandFlags::FAST_ZERO, fast);
            }
            Operation::BlockStatus { one } => flags.set(CommandFlags::REQ_ONE, one),
            Operation::Flush | Operation::Trim | Operation::Cache => {}
        }
        let (offset, length) = (self.offset, self.length);
        RequestHeader { flags, command: self.command(), cookie, offset, length }.encode(framing)
    }

    /// The request of a header, if its target allows it. An extended write has payload also without the flag for it, which
    /// QEMU 10.0 does not set.
    ///
    /// # Errors
    ///
    /// Commands and flags that the target does not know, and what [`check`](Self::check) refuses.
    pub fn parse(header: &RequestHeader, target: &Target) -> Result<Self, Refusal> {
        let flags = header.flags;
        let has = |flag| flags.contains(flag);
        let (operation, allowed) = match header.command {
            Command::Read => {
                (Operation::Read { unfragmented: has(CommandFlags::DF) }, CommandFlags::DF)
            }
            Command::Write => (Operation::Write, CommandFlags::PAYLOAD_LEN),
            Command::Flush => (Operation::Flush, CommandFlags::empty()),
            Command::Trim => (Operation::Trim, CommandFlags::empty()),
            Command::Cache => (Operation::Cache, CommandFlags::empty()),
            Command::WriteZeroes => {
                let (no_hole, fast) = (has(CommandFlags::NO_HOLE), has(CommandFlags::FAST_ZERO));
                let allowed = CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
                (Operation::WriteZeroes { no_hole, fast }, allowed)
            }
            Command::BlockStatus => {
                (Operation::BlockStatus { one: has(CommandFlags::REQ_ONE) }, CommandFlags::REQ_ONE)
            }
            Command::Disconnect | Command::Other(_) => {
                return refuse(ErrorCode::Inval, "the command is not known");
            }
        };
        if !(allowed | CommandFlags::FUA).contains(flags) {
            return refuse(ErrorCode::Inval, "a flag is not known, or not for this command");
        }
        if target.framing != Framing::Extended && has(CommandFlags::PAYLOAD_LEN) {
            return refuse(ErrorCode::Inval, "the flag for payload needs extended headers");
        }
        let request = Self {
            operation,
            offset: header.offset,
            length: header.length,
            fua: has(CommandFlags::FUA),
        };
        request.check(target)?;
        Ok(request)
    }

    /// Whether a target allows the request.
    ///
    /// # Errors
    ///
    /// What the target does not announce; writes of a read-only target; a range that is empty, unaligned, beyond the end or
    /// larger than the limit of payload.
    pub fn check(&self, target: &Target) -> Result<(), Refusal> {
        self.check_features(target)?;
        if self.operation == Operation::Flush {
            return if (self.offset, self.length) == (0, 0) {
                Ok(())
            } else {
                refuse(ErrorCode::Inval, "a flush has neither offset nor length")
            };
        }
        if self.is_write() && target.flags.contains(TransmissionFlags::READ_ONLY) {
            return refuse(ErrorCode::Perm, "the export is read-only");
        }
        if self.length == 0 {
            return refuse(ErrorCode::Inval, "the length is 0");
        }
        if self.offset.checked_add(self.length).is_none_or(|end| end > target.size) {
            let grows = matches!(self.operation, Operation::Write | Operation::WriteZeroes { .. });
            let error = if grows { ErrorCode::NoSpc } else { ErrorCode::Inval };
            return refuse(error, "the range ends beyond the export");
        }
        if (self.offset | self.length) & (u64::from(target.block.minimum) - 1) != 0 {
            return refuse(ErrorCode::Inval, "the range is not aligned to the smallest block");
        }
        let fits = self.length <= u64::from(target.block.maximum);
        match self.operation {
            Operation::Read { .. } if !fits && target.framing != Framing::Simple => {
                refuse(ErrorCode::Overflow, "the read is longer than the limit of payload")
            }
            Operation::Read { .. } | Operation::Write if !fits => {
                refuse(ErrorCode::Inval, "the length is above the limit of payload")
            }
            _ => Ok(()),
        }
    }

    fn check_features(&self, target: &Target) -> Result<(), Refusal> {
        let lacks = |flag| !target.flags.contains(flag);
        let text = match self.operation {
            _ if self.fua && lacks(TransmissionFlags::SEND_FUA) => "FUA was not announced",
            Operation::Read { unfragmented: true } if lacks(TransmissionFlags::SEND_DF) => {
                "unfragmented reads were not announced"
            }
            Operation::Flush if lacks(TransmissionFlags::SEND_FLUSH) => "flush was not announced",
            Operation::Trim if lacks(TransmissionFlags::SEND_TRIM) => "trim was not announced",
            Operation::Cache if lacks(TransmissionFlags::SEND_CACHE) => "cache was not announced",
            Operation::WriteZeroes { .. } if lacks(TransmissionFlags::SEND_WRITE_ZEROES) => {
                "writing zeroes was not announced"
            }
            Operation::WriteZeroes { fast: true, .. }
                if lacks(TransmissionFlags::SEND_FAST_ZERO) =>
            {
                "fast zeroes were not announced"
            }
            Operation::BlockStatus { .. } if !target.has_contexts => {
                "no metadata context was chosen"
            }
            _ => return Ok(()),
        };
        refuse(ErrorCode::Inval, text)
    }
}
