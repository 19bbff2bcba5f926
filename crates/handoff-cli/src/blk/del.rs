//! `handoff blk del`: tells the driver; servers and supervisors notice and end.

use std::thread;
use std::time::{Duration, Instant};

use handoff_block::Control;
use handoff_block::state::Directory;

use super::holders::{self, Holder};
use super::supervise;
use crate::{Context, Failure, output};

/// How long a mere look may hold a device open, and how long its number may stay in use.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);
/// How long the processes of a removed device may take to end.
const LETTING_GO: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Requests under way are answered first. Without --force, a device that is mounted, open in a
program or part of another device is left alone; with it, its users get I/O errors.

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
    /// Remove devices that are in use, too
    #[arg(long)]
    pub force: bool,
}

pub(super) fn run(args: &DelArgs, context: &Context) -> Result<(), Failure> {
    let mut control = Control::open()?;
    let ids = if args.all { super::show::ours() } else { args.ids.clone() };
    for id in &ids {
        if control.find(*id)?.is_none() {
            // A machine that lost its driver leaves a state without a device.
            Directory::of(*id).remove();
            if args.all {
                continue;
            }
            return Err(Failure::usage(format!("there is no device {id}: handoff blk list")));
        }
        let mut holders = Vec::new();
        if args.force {
            holders = holders::of(*id);
            control.stop(*id)?;
        } else {
            stop_unused(&mut control, *id, context)?;
        }
        let processes = supervise::processes(*id);
        // Before the number is free, and another device's.
        Directory::of(*id).remove();
        supervise::log::forget(*id);
        control.remove(*id)?;
        let deadline = Instant::now() + PATIENCE;
        while !control.is_gone(*id, PAUSE)? {
            context.stop.check()?;
            // Whoever still has it open keeps its number in use.
            if !holders.is_empty() && Instant::now() > deadline {
                tracing::warn!(
                    "/dev/ublkb{id} is gone, and its number is free when nobody has it open any more: {}",
                    listed(&holders)
                );
                break;
            }
        }
        // Until then the device's files are in use.
        processes.iter().for_each(|process| supervise::has_ended(process, LETTING_GO));
    }
    if context.json { output::json(&serde_json::json!({ "removed": ids })) } else { Ok(()) }
}

/// Stops a device, or says who holds it.
fn stop_unused(control: &mut Control, id: u32, context: &Context) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let tells_use = control.tells_use()?;
    loop {
        if tells_use && control.stop_unused(id)? {
            return Ok(());
        }
        let holders = holders::of(id);
        if !tells_use && holders.is_empty() {
            return Ok(control.stop(id)?);
        }
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
}

fn listed(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "open, and not in a process that shows".to_owned();
    }
    holders.iter().map(Holder::to_string).collect::<Vec<_>>().join(", ")
}
