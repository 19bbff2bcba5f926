//! Samples of where threads are, equally far apart on the processor's clock: in time, and where instructions are
//! counted, in instructions.
//!
//! Minimum kernel: 2.6.32. Capability: CAP_PERFMON, or `kernel.perf_event_paranoid` below 2 for the calling thread and
//! below 1 for a whole processor. Kernel interface: `perf_event_open(2)` with PERF_COUNT_SW_CPU_CLOCK.
//!
//! A sample costs some thousand instructions, so samples are taken apart from the timed slots. Kernel work with
//! interrupts off is counted where it switches them on again.

use std::{
    fs::File,
    io,
    os::fd::FromRawFd as _,
    ptr::{self, NonNull},
    sync::atomic::{Ordering, fence},
};

use perf_event_open_sys::{
    bindings::{
        PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_MISC_CPUMODE_MASK,
        PERF_RECORD_MISC_USER, PERF_RECORD_SAMPLE, PERF_SAMPLE_IP, PERF_SAMPLE_TID,
        PERF_TYPE_SOFTWARE, perf_event_attr, perf_event_header, perf_event_mmap_page,
    },
    perf_event_open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Nanoseconds between samples: no multiple of what a message takes.
pub(crate) const PERIOD: u64 = 49_999;
const PAGE: usize = 4_096;
/// Bytes of the room for samples: a power of two pages.
const ROOM: usize = 128 * PAGE;

/// Whose samples are taken.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Whose {
    CallingThread,
    /// Of all that runs there.
    Processor(usize),
}

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Whether the thread was outside the kernel.
    pub(crate) user: bool,
    /// The address of the instruction.
    pub(crate) address: u64,
    pub(crate) process: u32,
    pub(crate) thread: u32,
}

/// What follows the header of a sample's record, as `sample_type` orders it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Body {
    address: u64,
    process: u32,
    thread: u32,
}

/// Takes samples until it is dropped.
pub(crate) struct Samples {
    memory: NonNull<u8>,
    _event: File,
}

impl Samples {
    /// # Errors
    ///
    /// The kernel's error, for example that this needs a capability.
    pub(crate) fn begin(whose: Whose) -> io::Result<Self> {
        let mut attributes = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            size: u32::try_from(size_of::<perf_event_attr>()).expect("small"),
            config: PERF_COUNT_SW_CPU_CLOCK.into(),
            sample_type: (PERF_SAMPLE_IP | PERF_SAMPLE_TID).into(),
            ..perf_event_attr::default()
        };
        attributes.__bindgen_anon_1.sample_period = PERIOD;
        let (pid, cpu) = match whose {
            Whose::CallingThread => (0, -1),
            Whose::Processor(number) => (-1, i32::try_from(number).expect("few")),
        };
        let flags = PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: the attributes are initialised and say their own size.
        let fd = unsafe { perf_event_open(&mut attributes, pid, cpu, -1, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened the descriptor for us.
        let event = unsafe { File::from_raw_fd(fd) };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), PAGE + ROOM, protection, MapFlags::SHARED, &event, 0)
        }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, _event: event })
    }

    /// The samples so far, as many as there is room for.
    pub(crate) fn taken(&self) -> Vec<Sample> {
        let page = self.memory.cast::<perf_event_mmap_page>();
        // SAFETY: the page is mapped, and the kernel writes the field, aligned and whole.
        let head = unsafe { ptr::read_volatile(&raw const (*page.as_ptr()).data_head) };
        // What lies before the head is read after it.
        fence(Ordering::Acquire);
        const HEADER: usize = size_of::<perf_event_header>();
        let (mut at, mut samples) = (0, Vec::new());
        // Nobody takes records out, so they end where the room does.
        while at + HEADER <= (head as usize).min(ROOM) {
            // SAFETY: the record lies in the mapping before the head; records are aligned to 8 bytes.
            let record = unsafe { self.memory.add(PAGE + at) };
            // SAFETY: as above.
            let header = unsafe { record.cast::<perf_event_header>().read() };
            let len = usize::from(header.size);
            if len == 0 || at + len > ROOM {
                break;
            }
            if header.type_ == PERF_RECORD_SAMPLE && len >= HEADER + size_of::<Body>() {
                // SAFETY: the record has these fields behind its header, and lies in the mapping.
                let body = unsafe { record.add(HEADER).cast::<Body>().read() };
                let mode = u32::from(header.misc) & PERF_RECORD_MISC_CPUMODE_MASK;
                let user = mode == PERF_RECORD_MISC_USER;
                let Body { address, process, thread } = body;
                samples.push(Sample { user, address, process, thread });
            }
            at += len;
        }
        samples
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody looks at it any more. If the call fails, the mapping stays.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), PAGE + ROOM) };
    }
}
