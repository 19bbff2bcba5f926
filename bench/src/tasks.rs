//! The kernel's counts of threads' costs.
//!
//! Kernel interface: `/proc/PID/task/TID/schedstat` (CONFIG_SCHED_INFO) and `status`.

use std::{
    fs,
    ops::Sub,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

/// The costs of one thread or several, since they were started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) cpu: Duration,
    /// How often the threads were switched away from, voluntarily or not.
    pub(crate) switches: u64,
}

impl Sub for Spent {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// The costs of threads, given as their directories, as a sum. A thread that is gone counts as nothing.
pub(crate) fn spent(threads: &[PathBuf]) -> Spent {
    let each = threads.iter().map(|thread| {
        let text = |name: &str| fs::read_to_string(thread.join(name)).unwrap_or_default();
        let schedstat = text("schedstat");
        let cpu = schedstat.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0);
        (cpu, switches(&text("status")))
    });
    let (cpu, switches) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Spent { cpu: Duration::from_nanos(cpu), switches }
}

fn switches(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| {
        let (name, count) = line.split_once(':')?;
        name.ends_with("voluntary_ctxt_switches").then_some(count)
    });
    counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
}

/// The CPU time of the calling thread so far.
pub(crate) fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The part of the calling thread's CPU time outside the kernel: sampled, unless the kernel accounts each entry.
pub(crate) fn own_user() -> Duration {
    usage(libc::RUSAGE_THREAD).0
}

/// The CPU time of the processes that this one started and waited for, and of those that they waited for.
pub(crate) fn cpu_of_ended() -> Duration {
    let (user, system) = usage(libc::RUSAGE_CHILDREN);
    user + system
}

/// The CPU time outside the kernel, and in it. The sum is exact to a microsecond.
fn usage(who: i32) -> (Duration, Duration) {
    // SAFETY: all zeros is a valid structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to the structure, which lives longer.
    let asked = unsafe { libc::getrusage(who, &mut usage) };
    debug_assert_eq!(asked, 0, "the arguments are valid");
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_usec.unsigned_abs() as u32 * 1_000)
    };
    (time(usage.ru_utime), time(usage.ru_stime))
}

/// The threads of a process.
pub(crate) fn of_process(process: u32) -> Vec<PathBuf> {
    below(&format!("/proc/{process}/task"))
}

/// The threads of a process and of all that it started.
pub(crate) fn of_tree(process: u32) -> Vec<PathBuf> {
    let mut found = of_process(process);
    let lists = found.iter().map(|thread| fs::read_to_string(thread.join("children")));
    let children: Vec<u32> = lists
        .flat_map(|list| {
            let list = list.unwrap_or_default();
            list.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<_>>()
        })
        .collect();
    found.extend(children.into_iter().flat_map(of_tree));
    found
}

/// Whether a thread waits for something, or is gone.
pub(crate) fn sleeps(thread: &Path) -> bool {
    let text = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    // The name in brackets may have any characters.
    let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_none_or(|state| "SIZX".contains(state))
}

/// The kernel's workers for work of all kinds.
pub(crate) fn workers() -> Vec<PathBuf> {
    named("kworker/")
}

/// The processes, and the threads of the kernel, whose names begin with `beginning`.
pub(crate) fn named(beginning: &str) -> Vec<PathBuf> {
    let mut found = below("/proc");
    found.retain(|task| name(task).starts_with(beginning));
    found
}

/// A thread's name.
pub(crate) fn name(thread: &Path) -> String {
    fs::read_to_string(thread.join("comm")).unwrap_or_default().trim().to_owned()
}

/// A thread's ID; `None` if the path is no thread's directory.
pub(crate) fn id(thread: &Path) -> Option<i32> {
    thread.file_name()?.to_str()?.parse().ok()
}

/// The entries of a directory that have a number for a name.
fn below(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| id(path).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread, time::Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn a_thread_that_sleeps_switches_and_one_that_spins_spends() {
        let begin = spent(&of_process(std::process::id()));
        std::thread::spawn(move || {
            let own = [PathBuf::from("/proc/thread-self")];
            let before = spent(&own);
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!((spent(&own) - before).switches >= 10);
            if own[0].join("schedstat").exists() {
                let end = own_cpu() + Duration::from_millis(50);
                while own_cpu() < end {}
                assert!((spent(&own) - before).cpu > Duration::from_millis(5));
            }
            assert!((spent(&of_process(std::process::id())) - begin).switches >= 10);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn descendants_count_and_sleep_while_they_wait() {
        let mut shell = Command::new("sh");
        // `sleep` runs in a process of its own, since the shell waits for it.
        let mut shell = shell.args(["-c", "sleep 60 & wait"]).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let settled =
            |threads: &[PathBuf]| threads.len() == 2 && threads.iter().all(|it| sleeps(it));
        while !settled(&of_tree(shell.id())) {
            assert!(Instant::now() < deadline, "{:?}", of_tree(shell.id()));
            thread::sleep(Duration::from_millis(1));
        }
        let child = of_tree(shell.id()).iter().filter_map(|it| id(it)).max().unwrap();
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(!sleeps(Path::new("/proc/thread-self")), "this thread runs");
    }

    #[test]
    fn what_ended_has_spent_counts_with_its_descendants() {
        let before = cpu_of_ended();
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let ended = Command::new("sh").args(["-c", &format!("sh -c '{work}'; true")]).status();
        assert!(ended.unwrap().success());
        assert!(cpu_of_ended() - before > Duration::from_millis(5));
    }

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";
        assert_eq!(switches(status), 12);
        assert_eq!(switches(""), 0);
    }
}
