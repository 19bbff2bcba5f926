//! The machine that the figures belong to.

use std::{fmt, fs, thread};

use serde::{Deserialize, Serialize};

/// The facts that figures depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub cpu: String,
    /// How many processors this process may use.
    pub cores: usize,
    /// The release of the running kernel.
    pub kernel: String,
    /// `none`, the hypervisor's name, or `unknown`.
    pub virtualisation: String,
}

/// The name of QEMU's software emulation.
const SOFTWARE_EMULATION: &str = "qemu-tcg";

impl Machine {
    /// The machine that this process runs on.
    pub fn this() -> Self {
        Self {
            cpu: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            virtualisation: virtualisation(),
        }
    }

    /// Whether instructions are emulated in software, so that times mean nothing.
    pub fn is_emulated(&self) -> bool {
        self.virtualisation == SOFTWARE_EMULATION
    }
}

impl fmt::Display for Machine {
    /// Writes the machine as it stands in the tables' headings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cores, kernel, virtualisation } = self;
        write!(f, "{cpu}, {cores} processors, kernel {kernel}, virtualisation {virtualisation}")
    }
}

fn cpu_name() -> Option<String> {
    let list = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = list.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn virtualisation() -> String {
    use std::arch::x86_64::{__cpuid, CpuidResult};

    const FEATURES: u32 = 1;
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    const HYPERVISOR_NAME: u32 = 0x4000_0000;

    #[allow(
        unused_unsafe,
        reason = "newer than the oldest Rust that builds this, it is a safe function"
    )]
    fn cpuid(leaf: u32) -> CpuidResult {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { __cpuid(leaf) }
    }

    if cpuid(FEATURES).ecx & HYPERVISOR_PRESENT == 0 {
        return "none".into();
    }
    let leaf = cpuid(HYPERVISOR_NAME);
    let name: Vec<u8> =
        [leaf.ebx, leaf.ecx, leaf.edx].into_iter().flat_map(u32::to_le_bytes).collect();
    match name.as_slice() {
        b"KVMKVMKVM\0\0\0" => "kvm".into(),
        b"TCGTCGTCGTCG" => SOFTWARE_EMULATION.into(),
        b"Microsoft Hv" => "hyper-v".into(),
        b"VMwareVMware" => "vmware".into(),
        b"XenVMMXenVMM" => "xen".into(),
        other => String::from_utf8_lossy(other).trim_matches(['\0', ' ']).to_owned(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn virtualisation() -> String {
    "unknown".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::this();
        assert!(!machine.cpu.is_empty());
        assert!(machine.cores >= 1);
        assert!(machine.kernel.contains('.'));
        assert!(!machine.virtualisation.is_empty());
    }

    #[test]
    fn only_software_emulation_counts_as_emulated() {
        let on = |virtualisation: &str| Machine {
            virtualisation: virtualisation.into(),
            ..Machine::this()
        };
        assert!(on("qemu-tcg").is_emulated());
        assert!(!on("kvm").is_emulated());
        assert!(!on("none").is_emulated());
    }
}
