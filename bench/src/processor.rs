//! The processor of the measuring thread, and the time that others hold it.

use std::{fs, path::Path, time::Duration};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::tasks;

/// The calling thread is on one processor until this is dropped. Children inherit it.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    cpu: usize,
}

impl Pinned {
    /// Pins the calling thread to `cpu`, or to the last one that it may use: the first ones get
    /// most interrupts.
    ///
    /// # Errors
    ///
    /// A line that names the available processors.
    pub fn to(cpu: Option<usize>) -> Result<Self, String> {
        let before = sched_getaffinity(None)
            .map_err(|errno| format!("the usable processors are unknown: {errno}"))?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)).collect();
        let cpu = match (cpu, usable.last()) {
            (Some(cpu), _) if usable.contains(&cpu) => cpu,
            (None, Some(&last)) => last,
            _ => return Err(format!("no such processor; usable are {usable:?}")),
        };
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only)
            .map_err(|errno| format!("cannot stay on processor {cpu}: {errno}"))?;
        Ok(Self { before, cpu })
    }

    /// The processors for helpers of the thread: all others, if there are any.
    pub fn others(&self) -> CpuSet {
        let mut others = self.before;
        others.unset(self.cpu);
        if others.count() > 0 { others } else { self.before }
    }

    /// The processor's number.
    pub fn cpu(&self) -> usize {
        self.cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Fails only if the processors were taken away meanwhile; then the kernel has moved us.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// How long the calling thread was ready to run so far, and others ran instead. Zero if the kernel does not
/// report it (CONFIG_SCHED_INFO), and where instructions are counted: there everything on the one processor
/// belongs to the work.
pub fn kept_waiting() -> Duration {
    if handoff_lab::instructions::counting() {
        return Duration::ZERO;
    }
    kept_waiting_of(Path::new("/proc/thread-self"))
}

/// The same for another process and its descendants: for the thread among theirs that waited longest, since
/// simultaneous waits must not count twice.
pub fn kept_waiting_of_process(process: u32) -> Duration {
    let threads = tasks::of_tree(process);
    threads.iter().map(|thread| kept_waiting_of(thread)).max().unwrap_or_default()
}

/// The same for one thread, given as its directory.
pub(crate) fn kept_waiting_of(task: &Path) -> Duration {
    // Nanoseconds on the processor, nanoseconds ready to run, number of time slices.
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let ready = text.split_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(ready.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_a_processor_is_waiting() {
        if !Path::new("/proc/thread-self/schedstat").exists() {
            handoff_lab::skip!("this kernel does not tell how long threads wait");
        }
        let _pinned = Pinned::to(None).unwrap();
        let spin = |time: Duration| {
            let end = std::time::Instant::now() + time;
            while std::time::Instant::now() < end {}
        };
        let before = kept_waiting();
        // It inherits the processor.
        let other = std::thread::spawn(move || spin(Duration::from_millis(300)));
        spin(Duration::from_millis(300));
        other.join().unwrap();
        assert!(kept_waiting() - before > Duration::from_millis(50));
        assert!(kept_waiting_of_process(std::process::id()) >= Duration::from_millis(50));
    }

    #[test]
    fn pinning_is_put_back() {
        let set = || {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
        };
        let before = set();
        let pinned = Pinned::to(None).unwrap();
        assert_eq!(set(), [pinned.cpu()]);
        let others = pinned.others();
        assert_eq!(others.is_set(pinned.cpu()), before.len() == 1);
        assert_eq!(others.count() as usize, (before.len() - 1).max(1));
        assert_eq!(Some(&pinned.cpu()), before.last());
        drop(pinned);
        assert_eq!(set(), before);
    }

    #[test]
    fn a_missing_processor_is_refused() {
        assert!(Pinned::to(Some(CpuSet::MAX_CPU + 1)).unwrap_err().contains("usable"));
    }
}
