//! `handoff blk del`: tells the driver; servers and supervisors notice and end.

use std::thread;
use std::time::{Duration, Instant};

use handoff_block::Control;
use handoff_block::state::Directory;
use handoff_command::{Context, Failure, output};

use super::ending::{self, Forced, listed};
use super::failure::failure;
use super::holders::{self, Holder};
use super::supervise;

/// How long a mere look may hold a device open, and how long its number may stay in use.
const TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// How long the processes of a removed device may take to end.
const LETTING_GO: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Requests under way are answered first. Without --force, a device that is mounted, open in a
program or part of another device is left alone. With --force, what is still to be written to it is
written first, as long as it answers; then its users get I/O errors. A server that does not answer
is killed.

Examples:
  handoff blk del 0
  handoff blk del 1 2 3
  handoff blk del --all";

/// Arguments of `handoff blk del`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DelArgs {
    /// Numbers of the devices
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<u32>,
    /// Remove all devices that this command has made
    #[arg(long)]
    pub all: bool,
    /// Remove nothing, and fail if one of the devices is in use
    #[arg(long, conflicts_with = "force")]
    pub dry_run: bool,
    /// Remove devices that are in use, too
    #[arg(long)]
    pub force: bool,
    /// With --force, kill a server that leaves requests unanswered for so many seconds
    #[arg(long, value_name = "SECONDS", requires = "force", default_value_t = ending::GRACE.as_secs())]
    pub grace: u64,
}

pub(super) fn run(args: &DelArgs, context: &Context) -> Result<(), Failure> {
    let mut control = Control::open().map_err(failure)?;
    let ids = if args.all { super::show::ours() } else { args.ids.clone() };
    for id in &ids {
        if control.find(*id).map_err(failure)?.is_none() {
            // A machine that lost its driver leaves a state without a device.
            if !args.dry_run {
                Directory::of(*id).remove();
            }
            if args.all {
                continue;
            }
            return Err(Failure::usage(format!("there is no device {id}: handoff blk list")));
        }
        if args.dry_run {
            until_unused(*id, context, || {
                let holders = holders::of(*id);
                Ok((!holders.is_empty()).then_some(holders))
            })?;
            continue;
        }
        let processes = supervise::processes(*id);
        let mut holders = Vec::new();
        if args.force {
            holders = holders::of(*id);
            let grace = Duration::from_secs(args.grace);
            if let Forced::Hangs(what) = ending::force(*id, grace, &mut || context.stop.check())? {
                return Err(Failure::failed(what));
            }
        } else {
            until_unused(*id, context, || ending::stop_unused(&mut control, *id))?;
            ending::forget(&mut control, *id)?;
        }
        let deadline = Instant::now() + TIMEOUT;
        while !control.wait_until_gone(*id, PAUSE).map_err(failure)? {
            context.stop.check()?;
            // Whoever still has it open keeps its number in use.
            if Instant::now() > deadline {
                tracing::warn!(
                    "/dev/ublkb{id} is gone, and its number is free when nobody has it open any more: {}",
                    listed(&holders)
                );
                break;
            }
        }
        // Until then the device's files are in use.
        processes.iter().for_each(|process| supervise::await_end(process, LETTING_GO));
    }
    let removed = if args.dry_run { Vec::new() } else { ids };
    if context.json { output::json(&serde_json::json!({ "removed": removed })) } else { Ok(()) }
}

/// Waits a little until nobody holds a device, or says who does.
fn until_unused(
    id: u32,
    context: &Context,
    mut held: impl FnMut() -> Result<Option<Vec<Holder>>, Failure>,
) -> Result<(), Failure> {
    let deadline = Instant::now() + TIMEOUT;
    while let Some(holders) = held()? {
        // Programs that look at new devices open them for a moment.
        if Instant::now() > deadline {
            return Err(Failure::failed(format!(
                "/dev/ublkb{id} is in use: {}; end that, or use --force",
                listed(&holders)
            )));
        }
        context.stop.check()?;
        thread::sleep(PAUSE);
    }
    Ok(())
}
