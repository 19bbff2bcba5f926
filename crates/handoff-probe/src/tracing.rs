//! Probes of BPF: the I/O loop's struct_ops, and tracing for the copy meter.
//!
//! Kernel interface: BTF of the running kernel; `bpf(2)` with a program that does nothing at the entry
//! of one function, attached for a moment and detached by closing it.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::thread::CapabilitySet;

use super::answer::{Answer, Finding};
use super::btf::{Btf, Kind};
use super::memory::holds;
use super::ring;

/// A function of every kernel with networking, at which the meter counts.
const TRACED: &str = "skb_copy_datagram_iter";

pub(super) fn io_loop() -> Finding {
    let btf = btf()?;
    if btf.find(Kind::Struct, "io_uring_bpf_ops").is_none() {
        return Err(Answer::no("the kernel's BTF has no struct io_uring_bpf_ops"));
    }
    ring::ring()?;
    if !holds(CapabilitySet::SYS_ADMIN) {
        return Err(Answer::no("loading the loop needs CAP_SYS_ADMIN").remedy("run as root"));
    }
    Ok(Answer::yes())
}

pub(super) fn copy_meter() -> Finding {
    let btf = btf()?;
    let function = btf
        .find(Kind::Func, TRACED)
        .ok_or_else(|| Answer::no(format!("the kernel's BTF has no function {TRACED}")))?;
    let privileged =
        holds(CapabilitySet::SYS_ADMIN) || holds(CapabilitySet::BPF | CapabilitySet::PERFMON);
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let refused = |step| {
        let lockdown = &lockdown;
        move |error: io::Error| explain(step, &error, privileged, lockdown)
    };
    let program = handoff_sys::bpf::load_empty_fentry(function).map_err(refused("loading"))?;
    handoff_sys::bpf::attach(program.as_fd()).map_err(refused("attaching"))?;
    Ok(Answer::yes())
}

fn btf() -> Result<Btf, Answer> {
    Btf::of_kernel().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Answer::no("the kernel has no BTF (/sys/kernel/btf/vmlinux)")
            .remedy("a kernel with CONFIG_DEBUG_INFO_BTF"),
        _ => Answer::unknown(format!("the kernel's BTF cannot be read: {error}")),
    })
}

/// The kernel's internal errno for "not supported", which bpf(2) lets out.
const ENOTSUPP: i32 = 524;

fn explain(step: &str, error: &io::Error, privileged: bool, lockdown: &str) -> Answer {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if !privileged => {
            Answer::no(format!("{step} a tracing program is not allowed: {error}"))
                .remedy("run as root, or with CAP_BPF and CAP_PERFMON")
        }
        Some(libc::EPERM | libc::EACCES) if lockdown.contains("[confidentiality]") => {
            Answer::no("kernel lockdown (confidentiality) forbids tracing")
                .remedy("boot with lockdown=integrity or lower")
        }
        Some(libc::EPERM | libc::EACCES) => {
            Answer::no(format!("the kernel or a security module refuses tracing: {error}"))
                .remedy("run it in the lab: `handoff lab`")
        }
        Some(ENOTSUPP | libc::EOPNOTSUPP | libc::ENOSYS | libc::EBUSY | libc::EINVAL) => {
            Answer::no(format!("{step} at a kernel function fails: {}", plain(error)))
                .remedy("a kernel with CONFIG_BPF_SYSCALL and CONFIG_FUNCTION_TRACER; `handoff lab` boots one")
        }
        _ => Answer::unknown(format!("{step} a tracing program fails: {}", plain(error))),
    }
}

fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP) => "ENOTSUPP".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::State;

    #[test]
    fn refusals_are_told_apart() {
        let cases = [
            (libc::EPERM, false, "", State::No, "not allowed"),
            (libc::EPERM, true, "none [confidentiality]", State::No, "lockdown"),
            (libc::EPERM, true, "[none] integrity", State::No, "security module"),
            (ENOTSUPP, true, "", State::No, "ENOTSUPP"),
            (libc::ENOMEM, true, "", State::Unknown, "attaching a tracing program fails"),
        ];
        for (errno, privileged, lockdown, state, words) in cases {
            let error = io::Error::from_raw_os_error(errno);
            let answer = explain("attaching", &error, privileged, lockdown);
            let reason = answer.reason.expect("a refusal has a reason");
            assert_eq!(answer.state, state, "{reason}");
            assert!(reason.contains(words), "{reason}");
        }
    }
}
