//! `handoff lab kernel`: builds a kernel that Debian does not have.

use std::time::Instant;

use crate::error::Result;
use crate::guest;
use crate::kernel::KernelChoice;
use crate::tool::StopFlag;
use crate::userland::Userland;

const AFTER_HELP: &str = "\
Examples:
  handoff lab kernel --kasan                     builds it, up to 45 minutes on two cores
  handoff lab run --kernel kasan -- uname -r     boots it";

/// The arguments of `handoff lab kernel`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct KernelArgs {
    /// The stock kernel's source with KASAN, lockdep, kmemleak and checks for sleeping in atomic
    /// context
    #[arg(long, required = true)]
    pub kasan: bool,
}

pub(super) fn run(_: &KernelArgs, stop: &StopFlag) -> Result<u8> {
    let begin = Instant::now();
    let (cache, _, kernel) = guest::prepare(&KernelChoice::Kasan, Userland::default(), stop)?;
    let place = cache.directory().display();
    println!("{} in {place}, ready after {:.0?}", kernel.release, begin.elapsed());
    Ok(0)
}
