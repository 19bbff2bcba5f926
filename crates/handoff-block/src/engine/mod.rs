//! How a queue's requests, completions and results travel.

use std::io;
use std::sync::Arc;

use handoff_sys::ublk;
use io_uring::IoUring;

use self::batch::Batch;
use self::single::Single;
use crate::error::{Error, is_lack};
use crate::queue::{PreparedQueue, Queue};
use crate::ring::{self, Shape};
use crate::spec::{Engine, PassedOver, Spec};

mod batch;
mod kernel_loop;
mod single;
mod user_loop;

#[cfg(test)]
pub(crate) use kernel_loop::open;
pub(crate) use kernel_loop::{Loaded, Program, loop_object, try_out};

/// Entries of a ring for commands beside the pieces of requests.
fn commands_beside(engine: Engine) -> u32 {
    if engine == Engine::BatchAuto { batch::COMMANDS } else { 0 }
}

/// Bytes of memory of a queue: its buffers, ring and descriptions, and its engine's own.
pub(crate) fn memory(engine: Engine, depth: u16, max_request: u32) -> u64 {
    let own = if engine == Engine::BatchAuto { batch::memory(depth) } else { 0 };
    Queue::memory(depth, max_request, engine, commands_beside(engine)) + own
}

/// Whether an engine works here; tried if nothing else tells.
fn possible(engine: Engine, spec: &Spec, features: u64, program: &Program) -> io::Result<()> {
    for (flag, name, since) in [
        (ublk::F_AUTO_BUF_REG, "UBLK_F_AUTO_BUF_REG", "6.16"),
        (ublk::F_BATCH_IO, "UBLK_F_BATCH_IO", "7.0"),
    ] {
        if engine.flags() & !features & flag != 0 {
            let reason = format!("the driver has no {name}, which came with Linux {since}");
            return Err(io::Error::other(reason));
        }
    }
    match engine {
        Engine::Bpf => kernel_loop::try_out(program),
        _ if program.is_policy() => {
            Err(io::Error::other("a policy needs the loop in the kernel (bpf)"))
        }
        Engine::BatchAuto if spec.depth < 2 => {
            Err(io::Error::other("the driver has it from a depth of 2 on"))
        }
        Engine::UserAuto | Engine::BatchAuto | Engine::UserCopy => Ok(()),
    }
}

/// The ring of a queue, with everything that can exist before it has a device.
pub(crate) fn ring(shape: Shape) -> io::Result<IoUring> {
    ring::make(shape, commands_beside(shape.engine))
}

/// What an engine loads for a queue before it has a device, if it can.
pub(crate) fn load(
    engine: Engine,
    prepared: &PreparedQueue,
    program: &Arc<Program>,
) -> io::Result<Option<Loaded>> {
    match engine {
        Engine::Bpf => Loaded::before(prepared, program),
        Engine::UserAuto | Engine::BatchAuto | Engine::UserCopy => Ok(None),
    }
}

/// Serves a queue until its device is stopped. Calls `started` when the driver has been asked for requests. What was
/// loaded is used if it is of this program.
pub(crate) fn run(
    engine: Engine,
    queue: &mut Queue,
    (program, loaded): (&Arc<Program>, Option<Loaded>),
    started: impl FnOnce(),
) -> io::Result<()> {
    match engine {
        Engine::Bpf => kernel_loop::run(queue, program, loaded, started),
        Engine::UserAuto | Engine::UserCopy => user_loop::run(queue, Single::new(), started),
        Engine::BatchAuto => {
            let batch = Batch::new(queue.config.depth);
            user_loop::run(queue, batch, started)
        }
    }
}

/// The best possible engine that fits `device_flags`, those of an existing device.
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
        match possible(engine, spec, features, program) {
            Ok(()) => return Ok((engine, passed_over)),
            // That does not show what is possible.
            Err(reason) if is_lack(&reason) => {
                let what = format!("the engine {engine} cannot be tried: {reason}");
                return Err(Error::Starved { reason: what, source: reason });
            }
            Err(reason) if program.is_policy() => {
                let what = format!("a policy is not possible: {reason}");
                return Err(Error::not_possible(what).caused_by(reason));
            }
            Err(reason) if spec.engine.is_some() => {
                let what = format!("the engine {engine} is not possible: {reason}");
                return Err(Error::not_possible(what).caused_by(reason));
            }
            Err(reason) => {
                passed_over.push(PassedOver { engine, reason: reason.to_string() });
            }
        }
    }
    Err(Error::not_possible("no engine goes with this device"))
}
