//! `handoff lab image`: builds ahead what a guest needs.

use std::time::Instant;

use crate::error::Result;
use crate::guest;
use crate::kernel::KernelChoice;
use crate::module;
use crate::tool::StopFlag;

/// The arguments of `handoff lab image`.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Kernels: series in trixie-backports (7.2, 7.3), bookworm for Debian 12's own
    #[arg(long, value_name = "NAME", default_value = "7.2")]
    pub kernel: Vec<KernelChoice>,
}

pub(super) fn run(args: &ImageArgs, stop: &StopFlag) -> Result<u8> {
    let begin = Instant::now();
    for choice in &args.kernel {
        let (cache, _, kernel) = guest::prepare(choice, stop)?;
        module::ours(choice, &cache, stop)?;
        println!("{choice}: {} in {}", kernel.release, cache.directory().display());
    }
    println!("ready after {:.1?}", begin.elapsed());
    Ok(0)
}
