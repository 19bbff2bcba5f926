//! The kernel code that a thread reaches (kcov). On the sanitizer kernel only the project's modules report
//! it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Places kept per call.
const PLACES: usize = 1 << 16;
const BYTES: usize = PLACES * size_of::<usize>();

/// `KCOV_INIT_TRACE`, `KCOV_ENABLE` and `KCOV_DISABLE`.
const INIT: u64 = 2 << 30 | 8 << 16 | 0x63 << 8 | 1;
const ENABLE: u64 = 0x63 << 8 | 100;
const DISABLE: u64 = 0x63 << 8 | 101;

pub(crate) struct Coverage {
    kcov: File,
    /// The number of places, and the places.
    record: *mut AtomicUsize,
}

impl Coverage {
    /// `None` if the kernel does not report them.
    pub(crate) fn new() -> Option<Self> {
        let path = "/sys/kernel/debug/kcov";
        let kcov = File::options().read(true).write(true).open(path).ok()?;
        call(&kcov, INIT, PLACES as u64);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at a place that the kernel chooses.
        let record =
            unsafe { mmap(ptr::null_mut(), BYTES, protection, MapFlags::SHARED, &kcov, 0) };
        Some(Self { record: record.expect("maps").cast(), kcov })
    }

    /// The places that this thread reaches meanwhile, in order.
    pub(crate) fn of(&self, act: impl FnOnce()) -> Vec<usize> {
        self.at(0).store(0, Ordering::Relaxed);
        call(&self.kcov, ENABLE, 0);
        act();
        call(&self.kcov, DISABLE, 0);
        let count = self.at(0).load(Ordering::Relaxed);
        (1..=count).map(|number| self.at(number).load(Ordering::Relaxed)).collect()
    }

    fn at(&self, number: usize) -> &AtomicUsize {
        assert!(number < PLACES, "one input reaches too much");
        // SAFETY: inside the mapping, which is there as long as we are and which the kernel too takes for
        // words.
        unsafe { &*self.record.add(number) }
    }
}

fn call(kcov: &File, request: u64, argument: u64) {
    // SAFETY: these requests take a number and touch no memory of ours.
    let result = unsafe { libc::ioctl(kcov.as_raw_fd(), request as _, argument) };
    assert!(result == 0, "kcov: {}", std::io::Error::last_os_error());
}

impl Drop for Coverage {
    fn drop(&mut self) {
        // SAFETY: mapped by us, and nobody refers to it any more.
        let _ = unsafe { munmap(self.record.cast(), BYTES) };
    }
}
