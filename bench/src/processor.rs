//! The processor of the measuring thread, and the time that others hold it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::tasks;

/// Keeps the calling thread on one processor until it is dropped. Children inherit the processor.
#[derive(Debug)]
pub struct Pinned {
    before: CpuSet,
    cpu: usize,
}

impl Pinned {
    /// Pins the calling thread to `cpu`, or to the last processor that it may use: the first ones get most
    /// interrupts.
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
        // The call fails only if the processors were taken away meanwhile; then the kernel has moved us.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// How long the calling thread has been ready to run so far while others ran. It is zero if the kernel does not
/// report it (CONFIG_SCHED_INFO), and where instructions are counted: there everything on the one processor
/// belongs to the work.
pub fn kept_waiting() -> Duration {
    if handoff_testbed::instructions::counting() {
        return Duration::ZERO;
    }
    ran_and_waited(Path::new("/proc/thread-self")).1
}

/// How long each thread of a group has run so far, and how long it was ready to run while others ran.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits(HashMap<PathBuf, (Duration, Duration)>);

impl Waits {
    /// The times of these threads, given as their directories in `/proc`.
    pub(crate) fn of(threads: impl IntoIterator<Item = PathBuf>) -> Self {
        let times = |thread: PathBuf| {
            let times = ran_and_waited(&thread);
            (thread, times)
        };
        Self(threads.into_iter().map(times).collect())
    }

    /// The times of a thread on another host, by a name.
    pub(crate) fn of_another(thread: String, ran: Duration, waited: Duration) -> Self {
        Self(HashMap::from([(thread.into(), (ran, waited))]))
    }

    /// The times of the threads of a process and of its descendants.
    pub(crate) fn of_process(process: u32) -> Self {
        Self::of(tasks::of_tree(process))
    }

    /// How long others than the group have kept one of its threads from a processor since `before`. The thread
    /// that waited longest counts, as simultaneous waits must not count twice. Another thread of the group may
    /// have run in any of the time that a thread waited, so the result is less than the truth where they share
    /// a processor with others.
    pub(crate) fn since(&self, before: &Self) -> Duration {
        let spent = self.0.iter().map(|(thread, (ran, waited))| {
            let (ran_before, waited_before) = before.0.get(thread).copied().unwrap_or_default();
            (ran.saturating_sub(ran_before), waited.saturating_sub(waited_before))
        });
        let spent: Vec<_> = spent.collect();
        let group: Duration = spent.iter().map(|(ran, _)| *ran).sum();
        let kept = spent.iter().map(|(ran, waited)| waited.saturating_sub(group - *ran));
        kept.max().unwrap_or_default()
    }
}

/// Joins groups into one.
impl FromIterator<Self> for Waits {
    fn from_iter<I: IntoIterator<Item = Self>>(groups: I) -> Self {
        Self(groups.into_iter().flat_map(|group| group.0).collect())
    }
}

/// How long a thread, given as its directory, has run so far, and how long it was ready to run while others ran.
pub(crate) fn ran_and_waited(thread: &Path) -> (Duration, Duration) {
    // The fields are nanoseconds on the processor, nanoseconds ready to run, and the number of time slices.
    let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
    let mut next = || Duration::from_nanos(fields.next().unwrap_or(0));
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_a_processor_is_waiting() {
        if !Path::new("/proc/thread-self/schedstat").exists() {
            handoff_testbed::skip!("this kernel does not tell how long threads wait");
        }
        let _pinned = Pinned::to(None).unwrap();
        let spin = |time: Duration| {
            let end = std::time::Instant::now() + time;
            while std::time::Instant::now() < end {}
        };
        let before = kept_waiting();
        // The other thread inherits the processor.
        let other = std::thread::spawn(move || spin(Duration::from_millis(300)));
        spin(Duration::from_millis(300));
        other.join().unwrap();
        assert!(kept_waiting() - before > Duration::from_millis(50));
    }

    #[test]
    fn threads_of_a_group_do_not_keep_each_other_waiting() {
        let group = |threads: &[(&str, u64, u64)]| -> Waits {
            let each = threads.iter().map(|&(name, ran, waited)| {
                let time = Duration::from_millis;
                Waits::of_another(name.to_owned(), time(ran), time(waited))
            });
            each.collect()
        };
        let before = group(&[("a", 1_000, 100), ("b", 10, 2_000)]);
        let kept = |threads| group(threads).since(&before).as_millis();
        assert_eq!(kept(&[("a", 1_000, 160), ("b", 10, 2_050)]), 60, "others kept both");
        assert_eq!(kept(&[("a", 1_050, 150), ("b", 60, 2_050)]), 0, "they took turns");
        assert_eq!(kept(&[("a", 1_050, 150), ("b", 60, 2_080)]), 30, "others ran, too");
        assert_eq!(kept(&[("a", 1_000, 100), ("b", 10, 2_000), ("new", 5, 20)]), 20);
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
