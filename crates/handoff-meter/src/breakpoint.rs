//! The processors' breakpoints, at kernel functions that nothing else can trace.
//!
//! Minimum kernel: 4.9 (BPF at perf events); x86 has four breakpoints for each processor, and a kernel
//! debugger may hold some. Capability: CAP_PERFMON. Kernel interface: `perf_event_open(2)` of type
//! PERF_TYPE_BREAKPOINT, one event for each online processor.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use perf_event_open_sys::bindings::{
    HW_BREAKPOINT_X, PERF_FLAG_FD_CLOEXEC, PERF_TYPE_BREAKPOINT, perf_event_attr,
};
use perf_event_open_sys::perf_event_open;

/// Opens a breakpoint at the instruction at `address`, on every processor. A program attached to the
/// descriptors runs each time before that instruction.
pub(crate) fn open(address: u64) -> io::Result<Vec<OwnedFd>> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    processors(&online)
        .ok_or_else(|| io::Error::other(format!("which processors are online: {online}")))?
        .into_iter()
        .map(|processor| open_on(processor, address))
        .collect()
}

fn open_on(processor: i32, address: u64) -> io::Result<OwnedFd> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_BREAKPOINT,
        size: u32::try_from(size_of::<perf_event_attr>()).expect("small"),
        ..perf_event_attr::default()
    };
    attributes.__bindgen_anon_1.sample_period = 1;
    attributes.bp_type = HW_BREAKPOINT_X;
    attributes.__bindgen_anon_3.bp_addr = address;
    // The kernel demands this for an instruction, whatever its length.
    attributes.__bindgen_anon_4.bp_len = size_of::<libc::c_long>() as u64;
    // SAFETY: the attributes are initialised and say their own size; no group, any process.
    let fd =
        unsafe { perf_event_open(&mut attributes, -1, processor, -1, PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The numbers in a list such as `0-3,5`.
fn processors(list: &str) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        found.extend(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_understood() {
        assert_eq!(processors("0\n"), Some(vec![0]));
        assert_eq!(processors("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(processors(""), None);
    }
}
