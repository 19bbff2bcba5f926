//! The number of instructions that a guest's processor has executed, read inside the guest.
//!
//! Under instruction counting (QEMU's
//! `-icount shift=0,sleep=off`) the guest's time is defined by its instructions: each advances the
//! virtual clock by one nanosecond, and the time-stamp counter is that clock. So a difference of
//! two readings is a number of instructions, user and kernel together, of everything that ran
//! meanwhile on the one processor.
//!
//! When the processor has nothing to do, the clock jumps to the next timer, so idle time counts like
//! executed instructions. Measure work that keeps the processor busy, or take the process's own CPU time
//! (`CLOCK_PROCESS_CPUTIME_ID`), which excludes idle time and other processes and is in instructions
//! too, one per nanosecond. It includes interrupts that come while the process runs, but not what kernel
//! threads do for it.

/// Instructions executed since the guest started, idle time included; `None` anywhere but in a guest
/// that counts instructions.
#[cfg(target_arch = "x86_64")]
pub fn executed() -> Option<u64> {
    if !counting() {
        return None;
    }
    // SAFETY: reads a register; the instruction is there on every x86-64 processor, and Linux lets
    // programs use it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// Whether this program runs in a guest that counts instructions.
pub fn counting() -> bool {
    std::env::var_os("HANDOFF_EMULATED").is_some_and(|how| how == "icount")
}
