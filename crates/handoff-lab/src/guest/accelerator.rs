//! Finds out by a trial whether KVM boots a guest on this machine.
//!
//! A `/dev/kvm` that opens says little: it may belong to a nested hypervisor on which a stock kernel
//! does not boot. So a guest is booted once, with a short time-out, and the answer is kept while the
//! machine's kernel, the emulator and the guest's kernel stay the same.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use super::state::Guest;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::machine::{Acceleration, Machine, QEMU};
use crate::tool::{self, StopFlag};

/// A guest under KVM is up in a second or two; one that is not up after this time will not come up.
const TIMEOUT: Duration = Duration::from_secs(8);

/// KVM or software emulation, by a trial boot or its kept result.
pub(crate) fn choose(
    cache: &Cache,
    kernel: &Kernel,
    userland: &Path,
    stop: &StopFlag,
) -> Result<Acceleration> {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(Acceleration::Emulation);
    }
    let mut version = tool::command(QEMU);
    version.arg("--version");
    let mut hash = DefaultHasher::new();
    (tool::run(version, stop, |_| {})?, &kernel.release).hash(&mut hash);
    rustix::system::uname().release().hash(&mut hash);
    let kept = cache.directory().join(format!("accelerator-{:016x}", hash.finish()));
    match fs::read_to_string(&kept).as_deref() {
        Ok("kvm") => return Ok(Acceleration::Kvm),
        Ok("tcg") => return Ok(Acceleration::Emulation),
        _ => {}
    }
    tracing::info!("trying whether KVM boots {} on this machine", kernel.release);
    let machine = Machine { boot_timeout: TIMEOUT, memory: 512, ..Machine::default() };
    let again = Cache::open_at(cache.directory())?;
    let (choice, text) =
        match Guest::start(&machine, Acceleration::Kvm, kernel, userland, again, stop) {
            Ok(_) => (Acceleration::Kvm, "kvm"),
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(error) => {
                tracing::info!("KVM does not: {error}");
                (Acceleration::Emulation, "tcg")
            }
        };
    if let Err(error) = fs::write(&kept, text) {
        // With a cache that we may only read, each start tries again.
        tracing::debug!("{}: {error}", kept.display());
    }
    Ok(choice)
}
