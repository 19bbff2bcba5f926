//! `handoff blk leg`: what udev asks of each disk, so that legs of mirrors are hidden.

use std::path::PathBuf;

use handoff_command::{Failure, output};

/// Arguments of `handoff blk leg`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples: none; the rules of udev start it.")]
pub struct LegArgs {
    /// The disk
    disk: PathBuf,
}

/// Prints a property of udev, or ends with 1.
pub(super) fn run(args: &LegArgs) -> Result<(), Failure> {
    let found = handoff_block::mirror_of(&args.disk);
    match found.map_err(|error| Failure::failed(format!("{}: {error}", args.disk.display())))? {
        Some(uuid) => output::text(&format!("HANDOFF_BLK_MIRROR={uuid}\n")),
        None => Err(Failure::Ended(1)),
    }
}
