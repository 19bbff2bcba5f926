//! The ways to carry a queue's requests, completions and results.

use std::fmt;
use std::io;

use handoff_sys::ublk;
use serde::{Deserialize, Serialize};

use crate::queue::Queue;
use crate::{Error, Spec};

mod kernel_loop;
mod user_loop;

pub(crate) use kernel_loop::{Program, explained, listen, loop_object};

/// How requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// A BPF program in the kernel is the loop; buffers are lent.
    Bpf,
    /// The loop is in user space; buffers are lent.
    UserAuto,
    /// The loop is in user space, and data goes through its memory.
    Copy,
}

impl Engine {
    /// All, best first.
    pub const ALL: [Self; 3] = [Self::Bpf, Self::UserAuto, Self::Copy];

    /// Whether requests' buffers are lent to the ring.
    pub(crate) fn lends(self) -> bool {
        self != Self::Copy
    }

    /// The driver's flags of a device with this engine.
    pub(crate) fn flags(self) -> u64 {
        if self.lends() { ublk::F_AUTO_BUF_REG } else { 0 }
    }

    /// Whether it can be taken here, tried where nothing else tells.
    fn possible(self, features: u64, program: &Program) -> Result<(), String> {
        if self.lends() && features & ublk::F_AUTO_BUF_REG == 0 {
            return Err("the driver has no UBLK_F_AUTO_BUF_REG, which came with Linux 6.16".into());
        }
        match self {
            Self::Bpf => kernel_loop::try_out(program),
            _ if program.is_policy() => Err("a policy needs the loop in the kernel (bpf)".into()),
            Self::UserAuto | Self::Copy => Ok(()),
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
            Self::UserAuto | Self::Copy => user_loop::run(queue, started),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "bpf",
            Self::UserAuto => "user-auto",
            Self::Copy => "copy",
        })
    }
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|engine| engine.to_string() == text);
        named
            .ok_or_else(|| format!("no engine is called {text}: there are bpf, user-auto and copy"))
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
    let lent = |engine: Engine| {
        device_flags.is_none_or(|flags| flags & ublk::F_AUTO_BUF_REG == engine.flags())
    };
    let mut passed_over = Vec::new();
    for engine in Engine::ALL {
        if spec.engine.is_some_and(|wanted| wanted != engine) || !lent(engine) {
            continue;
        }
        match engine.possible(features, program) {
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
