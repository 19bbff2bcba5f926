//! `handoff lab image`: builds ahead what a guest needs.

use std::time::Instant;

use crate::cache::Cache;
use crate::error::Result;
use crate::kernel::{Kernel, KernelChoice};
use crate::tool::StopFlag;
use crate::userland;

/// What `handoff lab image` is given.
#[derive(Debug, clap::Args)]
pub struct ImageArgs {
    /// Kernels: series in trixie-backports (7.2, 7.3), bookworm for Debian 12's own
    #[arg(long, value_name = "NAME", default_value = "7.2")]
    pub kernel: Vec<KernelChoice>,
}

pub(super) fn run(args: &ImageArgs, stop: &StopFlag) -> Result<u8> {
    let begin = Instant::now();
    let cache = Cache::open()?;
    userland::image(&cache, stop)?;
    for choice in &args.kernel {
        let kernel = Kernel::of(choice, &cache, stop)?;
        println!("{choice}: {}", kernel.release);
    }
    println!("{} is ready ({:.1?})", cache.directory().display(), begin.elapsed());
    Ok(0)
}
