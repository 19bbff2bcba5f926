//! `handoff lab demo`: what a guest has that this machine may lack.

use super::guest_options::GuestOptions;
use super::run::{pass_on, run_once};
use crate::error::Result;
use crate::machine::{Disk, DiskContent};
use crate::tool::StopFlag;

const SCRIPT: &str = include_str!("../../lab/demo.sh");
/// The script makes one device of these two.
const HALVES: [&str; 2] = ["half-1", "half-2"];
const HALF: u64 = 128 << 20;

/// The arguments of `handoff lab demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestOptions,
}

pub(super) fn run(args: &DemoArgs, stop: &StopFlag) -> Result<u8> {
    let mut prepared = args.guest.prepare(stop)?;
    let halves = HALVES.map(|name| Disk { name: name.into(), content: DiskContent::Scratch(HALF) });
    prepared.machine.disks.extend(halves);
    let words = ["sh", "-c", SCRIPT, "demo.sh"].map(|word| word.as_bytes().to_vec());
    run_once(&prepared.machine, words.to_vec(), None, stop, pass_on)
}
