//! The ways to carry a queue's requests, completions and results.

use std::fmt;
use std::io;
use std::str::FromStr;

use handoff_sys::ublk;
use serde::{Deserialize, Serialize};

use self::batch::Batch;
use self::single::Single;
use crate::queue::Queue;
use crate::{Error, Spec};

mod batch;
mod kernel_loop;
mod single;
mod user_loop;

#[cfg(test)]
pub(crate) use kernel_loop::open;
pub(crate) use kernel_loop::{Program, loop_object, try_out};

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// A BPF program in the kernel is the loop; buffers are lent.
    Bpf,
    /// The loop is in user space, with a command for each request; buffers are lent.
    UserAuto,
    /// The loop is in user space, with a command for many requests; buffers are lent.
    BatchAuto,
    /// The loop is in user space, and data goes through its memory.
    UserCopy,
}

impl Engine {
    /// All, best first.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::UserAuto, Self::BatchAuto, Self::UserCopy];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::UserAuto => "user-auto",
            Self::BatchAuto => "batch-auto",
            Self::UserCopy => "user-copy",
        }
    }

    /// How it works and what it needs, for a list.
    pub fn about(self) -> &'static str {
        match self {
            Self::Bpf => "the loop is a BPF program in the kernel; tried on Linux 7.2",
            Self::UserAuto => "the loop is here, requests' memory is lent to it; needs Linux 6.16",
            Self::BatchAuto => "the same with a command for many requests; needs Linux 7.0",
            Self::UserCopy => "the driver copies data into our memory and out of it",
        }
    }

    /// Whether requests' buffers are lent to the ring.
    pub(crate) fn lends(self) -> bool {
        self != Self::UserCopy
    }

    /// Entries of a ring that are for commands beside the pieces of requests.
    pub(crate) fn commands_beside(self) -> u32 {
        if self == Self::BatchAuto { batch::COMMANDS } else { 0 }
    }

    /// Bytes of memory of its own for a queue.
    pub(crate) fn memory(self, depth: u16) -> u64 {
        if self == Self::BatchAuto { batch::memory(depth) } else { 0 }
    }

    /// The driver's flags of a device with this engine.
    pub(crate) fn flags(self) -> u64 {
        match self {
            Self::Bpf | Self::UserAuto => ublk::F_AUTO_BUF_REG,
            Self::BatchAuto => ublk::F_AUTO_BUF_REG | ublk::F_BATCH_IO,
            Self::UserCopy => 0,
        }
    }

    /// Whether it can be taken here, tried where nothing else tells.
    fn possible(self, spec: &Spec, features: u64, program: &Program) -> Result<(), String> {
        for (flag, name, since) in [
            (ublk::F_AUTO_BUF_REG, "UBLK_F_AUTO_BUF_REG", "6.16"),
            (ublk::F_BATCH_IO, "UBLK_F_BATCH_IO", "7.0"),
        ] {
            if self.flags() & !features & flag != 0 {
                return Err(format!("the driver has no {name}, which came with Linux {since}"));
            }
        }
        match self {
            Self::Bpf => kernel_loop::try_out(program),
            _ if program.is_policy() => Err("a policy needs the loop in the kernel (bpf)".into()),
            Self::BatchAuto if spec.depth < 2 => {
                Err("the driver has it from a depth of 2 on".into())
            }
            Self::UserAuto | Self::BatchAuto | Self::UserCopy => Ok(()),
        }
    }

    /// Serves a queue until its device is stopped. `started` is called when the driver has been
    /// asked for requests.
    pub(crate) fn run(
        self,
        queue: &mut Queue,
        program: &Program,
        started: impl FnOnce(),
    ) -> io::Result<()> {
        match self {
            Self::Bpf => kernel_loop::run(queue, program, started),
            Self::UserAuto | Self::UserCopy => user_loop::run(queue, Single::new(), started),
            Self::BatchAuto => {
                let batch = Batch::new(queue.config.depth);
                user_loop::run(queue, batch, started)
            }
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|engine| engine.name() == text);
        named.ok_or_else(|| {
            format!(
                "no engine is called {text}: there are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// An engine that would have been better, and why it was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    /// Which one.
    pub engine: Engine,
    /// Why not.
    pub reason: String,
}

/// The best engine that is possible and goes with `device_flags`, those of a device that exists.
pub(crate) fn choose(
    spec: &Spec,
    features: u64,
    device_flags: Option<u64>,
    program: &Program,
) -> Result<(Engine, Vec<PassedOver>), Error> {
    let of_engines = ublk::F_AUTO_BUF_REG | ublk::F_BATCH_IO;
    let fits =
        |engine: Engine| device_flags.is_none_or(|flags| flags & of_engines == engine.flags());
    let mut passed_over = Vec::new();
    for engine in Engine::ALL {
        if spec.engine.is_some_and(|wanted| wanted != engine) || !fits(engine) {
            continue;
        }
        match engine.possible(spec, features, program) {
            Ok(()) => return Ok((engine, passed_over)),
            Err(reason) if program.is_policy() => {
                return Err(Error::NotPossible(format!("a policy is not possible: {reason}")));
            }
            Err(reason) if spec.engine.is_some() => {
                return Err(Error::NotPossible(format!(
                    "the engine {engine} is not possible: {reason}"
                )));
            }
            Err(reason) => passed_over.push(PassedOver { engine, reason }),
        }
    }
    Err(Error::NotPossible("no engine goes with this device".to_owned()))
}
