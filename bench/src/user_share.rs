//! The share of a row's work outside the kernel, by samples of where the measuring thread is. A NIC's threads
//! that count for the row belong to the kernel.
//!
//! Minimum kernel: 2.6.32. Capability: CAP_PERFMON, or `kernel.perf_event_paranoid` below 2. Kernel
//! interface: `perf_event_open(2)` with PERF_COUNT_SW_CPU_CLOCK, whose samples are equally far apart on the
//! thread's clock: in time, and where instructions are counted, in instructions.
//!
//! A sample costs some thousand instructions, so this runs apart from the timed slots. Kernel work with
//! interrupts off is counted where it switches them on again.

use std::{
    fs::File,
    io,
    os::fd::FromRawFd as _,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, Ordering, fence},
    time::Duration,
};

use handoff_sys::hangup;
use perf_event_open_sys::{
    bindings::{
        PERF_COUNT_SW_CPU_CLOCK, PERF_FLAG_FD_CLOEXEC, PERF_RECORD_MISC_CPUMODE_MASK,
        PERF_RECORD_MISC_USER, PERF_RECORD_SAMPLE, PERF_TYPE_SOFTWARE, perf_event_attr,
        perf_event_header, perf_event_mmap_page,
    },
    perf_event_open,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{
    measure::{Cpu, Engine, Slot, Subject},
    report::Row,
};

/// Nanoseconds between samples: no multiple of what a message takes.
const PERIOD: u64 = 49_999;
const SLOT: Duration = Duration::from_millis(200);
const PAGE: usize = 4_096;
/// Bytes of the room for samples: a power of two pages.
const ROOM: usize = 64 * PAGE;

/// Fills in the rows of `subjects`, in order, and says on stderr why some have no such figure.
pub fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) {
    for (subject, row) in subjects.iter().zip(rows) {
        // There are samples of only one thread.
        let threads = subject.config.rings.unwrap_or(1);
        if row.skipped.is_some() || subject.peer || threads > 1 || stop.load(Ordering::Relaxed) {
            continue;
        }
        match (subject.make)().and_then(|mut engine| of(&mut *engine, stop)) {
            Ok(share) => row.user_share = share,
            Err(reason) => {
                hangup::say(format_args!(
                    "handoff: no user share beside the row {}: {reason}",
                    row.name
                ));
            }
        }
    }
}

/// The share in one slot; `None` without a sample.
fn of(engine: &mut dyn Engine, stop: &AtomicBool) -> Result<Option<f64>, String> {
    engine.run(&Slot::new(SLOT / 20, stop))?;
    let samples = Samples::begin().map_err(|error| format!("perf_event_open: {error}"))?;
    let tally = engine.run(&Slot::new(SLOT, stop))?;
    let (user, all) = samples.count();
    // Other threads that count have no samples, so their CPU time makes up for them.
    let all = match tally.cpu {
        Cpu::Known(cpu) => all.max(cpu.as_nanos() as u64 / PERIOD),
        Cpu::ThisProcess | Cpu::Unknown => all,
    };
    Ok((all > 0).then(|| user as f64 / all as f64))
}

/// Samples of the calling thread. Sampling ends when this value is dropped.
struct Samples {
    memory: NonNull<u8>,
    _event: File,
}

impl Samples {
    fn begin() -> io::Result<Self> {
        let mut attributes = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            size: u32::try_from(size_of::<perf_event_attr>()).expect("small"),
            config: PERF_COUNT_SW_CPU_CLOCK.into(),
            ..perf_event_attr::default()
        };
        attributes.__bindgen_anon_1.sample_period = PERIOD;
        // SAFETY: the attributes are initialised and say their own size; the event is of this thread, on any
        // processor.
        let fd =
            unsafe { perf_event_open(&mut attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC.into()) };
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

    /// How many samples were outside the kernel, and how many there are.
    fn count(&self) -> (u64, u64) {
        let page = self.memory.cast::<perf_event_mmap_page>();
        // SAFETY: the page is mapped, and the kernel writes the field, aligned and whole.
        let head = unsafe { ptr::read_volatile(&raw const (*page.as_ptr()).data_head) };
        // What lies before the head is read after it.
        fence(Ordering::Acquire);
        let (mut at, mut user, mut all) = (0, 0, 0);
        // Nobody takes records out, so they end where the room does.
        while at + size_of::<perf_event_header>() as u64 <= head.min(ROOM as u64) {
            // SAFETY: the record lies in the mapping before the head; headers are aligned to 8 bytes.
            let header =
                unsafe { self.memory.add(PAGE + at as usize).cast::<perf_event_header>().read() };
            if header.type_ == PERF_RECORD_SAMPLE {
                all += 1;
                let mode = u32::from(header.misc) & PERF_RECORD_MISC_CPUMODE_MASK;
                user += u64::from(mode == PERF_RECORD_MISC_USER);
            }
            if header.size == 0 {
                break;
            }
            at += u64::from(header.size);
        }
        (user, all)
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody looks at it any more. If the call fails, the mapping stays.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), PAGE + ROOM) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Tally;

    /// An engine that works outside the kernel, or inside.
    struct Work {
        inside: bool,
    }

    impl Engine for Work {
        fn run(&mut self, slot: &Slot<'_>) -> Result<Tally, String> {
            let mut space = vec![0; 1 << 20];
            let mut zero = File::open("/dev/zero").map_err(|error| error.to_string())?;
            while !slot.is_over() {
                if self.inside {
                    io::Read::read_exact(&mut zero, &mut space)
                        .map_err(|error| error.to_string())?;
                } else {
                    std::hint::black_box(
                        (0..10_000u64).fold(0, |a, b| std::hint::black_box(a ^ b)),
                    );
                }
            }
            Ok(Tally::default())
        }
    }

    #[test]
    fn needs_root_work_is_told_apart_by_where_it_is_done() {
        let stop = AtomicBool::new(false);
        for inside in [false, true] {
            match of(&mut Work { inside }, &stop) {
                Ok(share) => {
                    let share = share.unwrap();
                    assert!((share < 0.5) == inside, "inside {inside}: {share}");
                }
                Err(reason) => return println!("HANDOFF-SKIP user_share: {reason}"),
            }
        }
    }
}
