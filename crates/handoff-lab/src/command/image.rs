//! `handoff lab image`: builds ahead what a guest needs.

use std::time::Instant;

use crate::error::Result;
use crate::guest;
use crate::kernel::KernelChoice;
use crate::module;
use crate::tool::StopFlag;
use crate::userland::Userland;

/// The arguments of `handoff lab image`.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Kernels: series in trixie-backports (7.2, 7.3), bookworm for Debian 12's own
    #[arg(long, value_name = "NAME", default_value = "7.2")]
    pub kernel: Vec<KernelChoice>,
    /// The root file system: small, or full (systemd, apt and dkms)
    #[arg(long, value_enum, default_value_t, value_name = "NAME")]
    pub userland: Userland,
}

pub(super) fn run(args: &ImageArgs, stop: &StopFlag) -> Result<u8> {
    let begin = Instant::now();
    for choice in &args.kernel {
        let (cache, _, kernel) = guest::prepare(choice, args.userland, stop)?;
        if args.userland == Userland::Small {
            module::ours(choice, &cache, stop)?;
        }
        println!("{choice}: {} in {}", kernel.release, cache.directory().display());
    }
    println!("ready after {:.1?}", begin.elapsed());
    Ok(0)
}
