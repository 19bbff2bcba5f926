//! `handoff blk del`: the driver is told; servers and supervisors see it and end.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;

use handoff_block::Control;
use handoff_block::state::Directory;

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Requests that are under way are answered first. A device that is mounted, or held by another, is
left alone without --force; with it, its users see I/O errors from here on.

Examples:
  handoff blk del 0
  handoff blk del 1 2 3
  handoff blk del --all";

/// Arguments of `handoff blk del`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DelArgs {
    /// Numbers of the devices
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<u32>,
    /// All that this command has made
    #[arg(long)]
    pub all: bool,
    /// Also those that are in use
    #[arg(long)]
    pub force: bool,
}

pub(super) fn run(args: &DelArgs, context: &Context) -> Result<(), Failure> {
    let mut control = Control::open()?;
    let ids = if args.all { super::show::ours() } else { args.ids.clone() };
    for id in &ids {
        if control.find(*id)?.is_none() {
            // A state without a device is what a machine that lost its driver leaves.
            Directory::of(*id).remove();
            if args.all {
                continue;
            }
            return Err(Failure::usage(format!("there is no device {id}")));
        }
        if !args.force && in_use(*id) {
            return Err(Failure::failed(format!(
                "/dev/ublkb{id} is in use: unmount it, or remove it all the same with --force"
            )));
        }
        control.stop(*id)?;
        control.remove(*id)?;
        Directory::of(*id).remove();
    }
    if context.json { output::json(&serde_json::json!({ "removed": ids })) } else { Ok(()) }
}

/// Whether a file system or another device holds it.
fn in_use(id: u32) -> bool {
    let mut options = fs::File::options();
    options.read(true).custom_flags(libc::O_EXCL | libc::O_NONBLOCK);
    let opened = options.open(format!("/dev/ublkb{id}"));
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}
