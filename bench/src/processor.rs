//! Keeps the measuring thread on one processor, before other programs.

use rustix::{
    process::{getpriority_process, setpriority_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// As far before others as nice(2) goes, so that a busy machine disturbs slots less. It takes
/// CAP_SYS_NICE; without it figures spread wider.
const FIRST: i32 = -20;

/// The calling thread is on one processor until this is dropped. Children inherit it.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    priority: Option<i32>,
    cpu: usize,
}

impl Pinned {
    /// Pins the calling thread to `cpu`, or to the last one that it may use: the first ones get
    /// most interrupts.
    ///
    /// # Errors
    ///
    /// A line that names the processors there are.
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
        // Of the calling thread, although the name says process.
        let priority = getpriority_process(None).ok();
        let raised = setpriority_process(None, FIRST).is_ok();
        Ok(Self { before, priority: priority.filter(|_| raised), cpu })
    }

    /// Which processor it is.
    pub fn cpu(&self) -> usize {
        self.cpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(priority) = self.priority {
            // Nobody may be refused to step back.
            let _ = setpriority_process(None, priority);
        }
        // Fails only if the processors were taken away meanwhile; then the kernel has moved us.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_is_put_back() {
        let set = || {
            let set = sched_getaffinity(None).unwrap();
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
        };
        let before = set();
        let priority = getpriority_process(None).unwrap();
        let pinned = Pinned::to(None).unwrap();
        assert_eq!(set(), [pinned.cpu()]);
        assert_eq!(Some(&pinned.cpu()), before.last());
        drop(pinned);
        assert_eq!(set(), before);
        assert_eq!(getpriority_process(None).unwrap(), priority);
    }

    #[test]
    fn a_missing_processor_is_refused() {
        assert!(Pinned::to(Some(CpuSet::MAX_CPU + 1)).unwrap_err().contains("usable"));
    }
}
