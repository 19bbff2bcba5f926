//! How often threads call io_uring_enter(2), by the kernel's tracepoint at its entry.
//!
//! Minimum kernel: 5.1 with CONFIG_FTRACE_SYSCALLS; tracefs at `/sys/kernel/tracing`. Capability:
//! CAP_PERFMON, and reading tracefs, which is root's. Kernel interface: `perf_event_open(2)` of type
//! PERF_TYPE_TRACEPOINT, one event for each thread. A counted call costs some instructions more.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::fd::FromRawFd as _,
};

use perf_event_open_sys::{
    bindings::{PERF_FLAG_FD_CLOEXEC, PERF_TYPE_TRACEPOINT, perf_event_attr},
    perf_event_open,
};

const TRACEPOINT: &str = "/sys/kernel/tracing/events/syscalls/sys_enter_io_uring_enter/id";

/// Counts the calls of some threads until it is dropped.
#[derive(Debug)]
pub struct Enters {
    events: Vec<File>,
}

impl Enters {
    /// Counts the calls of the threads with these ids from here on.
    ///
    /// # Errors
    ///
    /// One line that says why they cannot be counted.
    pub fn of(threads: impl IntoIterator<Item = i32>) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("{TRACEPOINT}: {error}");
        let number = fs::read_to_string(TRACEPOINT).map_err(wrong)?;
        let number: u64 =
            number.trim().parse().map_err(|_| format!("{TRACEPOINT} is no number: {number}"))?;
        let open = |thread| {
            open(number, thread).map_err(|error| format!("thread {thread} is not counted: {error}"))
        };
        Ok(Self { events: threads.into_iter().map(open).collect::<Result<_, _>>()? })
    }

    /// The number of calls so far.
    ///
    /// # Errors
    ///
    /// The error of reading, in one line.
    pub fn count(&self) -> Result<u64, String> {
        let read = |mut event: &File| {
            let mut count = [0; 8];
            event.read_exact(&mut count).map(|()| u64::from_ne_bytes(count))
        };
        let counts: io::Result<Vec<u64>> = self.events.iter().map(read).collect();
        counts.map(|counts| counts.iter().sum()).map_err(|error| format!("a counter: {error}"))
    }
}

fn open(tracepoint: u64, thread: i32) -> io::Result<File> {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_TRACEPOINT,
        size: u32::try_from(size_of::<perf_event_attr>()).expect("small"),
        config: tracepoint,
        ..perf_event_attr::default()
    };
    let flags = PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: the attributes are initialised and say their own size; the event has no group, and any processor.
    let fd = unsafe { perf_event_open(&mut attributes, thread, -1, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened the descriptor for us.
    Ok(unsafe { File::from_raw_fd(fd) })
}
