//! The loads of rows.

use handoff::{Buffer, Region};
use handoff_command::quantity::format_size;

use crate::{
    network::{far::Network as _, testbed::Testbed},
    report::Config,
};

/// The most bytes under way, at any depth: our own engine accepts this many for one peer.
pub(super) const UNDER_WAY: usize = 16 << 20;
/// The first port of the sockets; the others have the ports behind it.
pub(super) const PORT: u16 = 4_000;

/// The direction of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// A message goes there, and an answer of the same length comes back.
    Ask,
    /// Messages go one way, as many as the engine can send.
    Stream,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ask => "ask",
            Self::Stream => "stream",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) bytes: usize,
    /// The number of messages under way, of all sockets together.
    pub(super) depth: usize,
    pub(super) sockets: u16,
}

const fn job(op: Op, bytes: usize, sockets: u16) -> Job {
    let depth = match op {
        Op::Ask => 1,
        Op::Stream => 64,
    };
    Job { op, bytes, depth, sockets }
}

pub(super) const JOBS: [Job; 9] = [
    job(Op::Ask, 64, 1),
    job(Op::Ask, 4 << 10, 1),
    job(Op::Ask, 64 << 10, 1),
    job(Op::Ask, 1 << 20, 1),
    job(Op::Stream, 64, 1),
    job(Op::Stream, 4 << 10, 1),
    job(Op::Stream, 64 << 10, 1),
    job(Op::Stream, 1 << 20, 1),
    job(Op::Stream, 1 << 20, 8),
];

impl Job {
    /// A row's name.
    pub(super) fn name(self, engine: &str) -> String {
        let (op, size) = (self.op.name(), format_size(self.bytes as u64));
        format!("{op} {size} depth={} sockets={} {engine}", self.depth, self.sockets)
    }

    pub(super) fn config(self, testbed: &Testbed) -> Config {
        let load = testbed.load();
        Config {
            bytes: Some(self.bytes as u64),
            op: Some(self.op.name().to_owned()),
            target: Some(testbed.joint().name().to_owned()),
            mtu: Some(load.mtu),
            gro: Some(load.gro),
            depth: Some(self.depth as u32),
            sockets: Some(self.sockets.into()),
            ..Config::default()
        }
    }

    /// The ports of the job's sockets.
    pub(super) fn ports(self) -> impl Iterator<Item = u16> {
        PORT..PORT + self.sockets
    }

    /// The number of buffers of one socket.
    pub(super) fn buffers(self) -> usize {
        match self.op {
            // When the answer has come, the request's buffer may not be back yet.
            Op::Ask => 2,
            Op::Stream => self.depth.min(UNDER_WAY / self.bytes).div_ceil(self.sockets.into()),
        }
    }

    /// Maps and fills `buffers` buffers, each on pages of its own. The region is `None` if there are none.
    ///
    /// # Errors
    ///
    /// One line that says why there is no memory.
    pub(super) fn memory(self, buffers: usize) -> Result<(Option<Region>, Vec<Buffer>), String> {
        if buffers == 0 {
            return Ok((None, Vec::new()));
        }
        let room = self.bytes.next_multiple_of(4_096);
        let region = Region::anonymous(buffers * room);
        let mut region = region.map_err(|error| error.to_string())?;
        let taken = (0..buffers).map(|_| {
            let mut buffer = region.take(room).expect("so many were mapped");
            buffer.set_len(self.bytes);
            buffer.fill(7);
            buffer
        });
        let taken = taken.collect();
        Ok((Some(region), taken))
    }
}
