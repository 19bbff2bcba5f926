//! How much of the time a busy machine leaves to a process: to a guest's emulator, or to a test.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

/// What a thread did until now.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    ran: Duration,
    /// It was ready to run, and others ran.
    waited: Duration,
}

impl Spent {
    /// For each thread of a process, with its number; for none if the kernel does not report it, or the
    /// process is gone.
    fn by_threads_of(process: u32) -> impl Iterator<Item = (u32, Self)> {
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        threads.filter_map(|thread| {
            let number = thread.file_name().to_str()?.parse().ok()?;
            let counts = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let mut counts = counts.split_whitespace().map_while(|count| count.parse().ok());
            let [ran, waited] = [counts.next()?, counts.next()?].map(Duration::from_nanos);
            Some((number, Self { ran, waited }))
        })
    }

    /// For the thread of a process that used most.
    fn by(process: u32) -> Option<Self> {
        Self::by_threads_of(process)
            .map(|(_, spent)| spent)
            .max_by_key(|spent| spent.ran + spent.waited)
    }
}

/// A stretch of an emulator's time, from now on.
#[derive(Debug)]
pub(crate) struct Stretch {
    process: u32,
    begin: Instant,
    before: Option<Spent>,
}

impl Stretch {
    pub(crate) fn of(process: u32) -> Self {
        Self { process, begin: Instant::now(), before: Spent::by(process) }
    }

    /// Time spent since the beginning, if the kernel reports it.
    fn spent(&self) -> Option<Spent> {
        let (before, after) = (self.before?, Spent::by(self.process)?);
        let ran = after.ran.saturating_sub(before.ran);
        Some(Spent { ran, waited: after.waited.saturating_sub(before.waited) })
    }

    /// Whether it is longer than `limit`. Only time in which nobody kept the emulator from running counts, so
    /// a busy host makes no guest late.
    pub(crate) fn is_past(&self, limit: Duration) -> bool {
        let waited = || self.spent().map_or(Duration::ZERO, |spent| spent.waited);
        self.begin.elapsed() > limit && self.begin.elapsed() > limit + waited()
    }

    /// Share of the time left to it that the emulator ran, in percent, if the kernel reports it.
    pub(crate) fn percent(&self) -> Option<u32> {
        let spent = self.spent()?;
        let left = self.begin.elapsed().saturating_sub(spent.waited).max(spent.ran);
        Some((100.0 * spent.ran.as_secs_f64() / left.as_secs_f64()) as u32)
    }
}

/// How long a process and the processes it started were kept from running, by others or by each other: at each
/// moment, the thread that waited most.
#[derive(Debug)]
pub struct KeptWaiting {
    process: u32,
    looked: Instant,
    /// At the last look, by thread.
    waited: HashMap<u32, Duration>,
    total: Duration,
}

impl KeptWaiting {
    /// Processes end between looks, and their waiting time goes with them.
    const LOOK: Duration = Duration::from_secs(1);

    /// For a process that begins now.
    pub fn of(process: u32) -> Self {
        let (looked, waited) = (Instant::now(), HashMap::new());
        Self { process, looked, waited, total: Duration::ZERO }
    }

    /// Until now; 0 if the kernel does not report it. Call it repeatedly, at least once a second.
    pub fn total(&mut self) -> Duration {
        let since = self.looked.elapsed();
        if since >= Self::LOOK {
            self.looked = Instant::now();
            let threads = family(self.process).into_iter().flat_map(Spent::by_threads_of);
            let now: HashMap<_, _> =
                threads.map(|(thread, spent)| (thread, spent.waited)).collect();
            let before = |thread| self.waited.get(thread).copied().unwrap_or_default();
            let most = now.iter().map(|(thread, waited)| waited.saturating_sub(before(thread)));
            self.total += most.max().unwrap_or_default().min(since);
            self.waited = now;
        }
        self.total
    }
}

/// How long a process and those of its children that it has waited for were on a processor; also of one that has ended
/// and that nobody has waited for. 0 if there is no such process.
pub fn processor_time(process: u32) -> Duration {
    let of = || {
        let told = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Behind the name, which may have spaces: the state, ten numbers of other things, then its own time and its
        // children's, each for the program and for the kernel.
        let behind = told.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
        behind.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()
    };
    let per_second = rustix::param::clock_ticks_per_second();
    Duration::from_millis(of().unwrap_or_default() * 1000 / per_second)
}

/// A process, and all that it started, directly or not.
fn family(process: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let of = || {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let told = fs::read_to_string(entry.path().join("stat")).ok()?;
            // Behind the name, which may have spaces: the state, and the parent.
            let parent = told.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some((number, parent))
        };
        if let Some((number, parent)) = of() {
            children.entry(parent).or_default().push(number);
        }
    }
    let mut found = vec![process];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::thread;

    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

    use super::*;

    #[test]
    fn a_process_that_spins_is_busy_and_one_that_sleeps_is_idle() {
        if Spent::by(std::process::id()).is_none() {
            handoff_testbed::skip!("this kernel does not tell how long threads ran and waited");
        }
        // A current wait is not reported yet, so one look may be wrong on a busy machine.
        let becomes = |script: &str, busy: bool| {
            let mut child = Command::new("sh").args(["-c", script]).spawn().expect("starts");
            let stretch = Stretch::of(child.id());
            let mut looks = (0..300).map(|_| {
                thread::sleep(Duration::from_millis(200));
                stretch.percent().expect("the kernel tells of each process") > 50
            });
            let seen = looks.any(|seen| seen == busy);
            child.kill().expect("it runs");
            child.wait().expect("it ends");
            seen
        };
        assert!(becomes("while :; do :; done", true));
        assert!(becomes("exec sleep 100", false));
    }

    #[test]
    fn the_time_of_an_ended_process_has_that_of_its_children() {
        // The limit ends the child after about a second on a processor: it counts each tick that finds the child there,
        // and the time is what the child really ran. A shell alone takes some milliseconds.
        let script = "(ulimit -t 1; while :; do :; done); exit 0";
        let mut child = Command::new("sh").args(["-c", script]).spawn().expect("starts");
        let process = Pid::from_child(&child);
        waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("ends");
        let took = processor_time(child.id());
        assert!((200..5000).contains(&took.as_millis()), "{took:?}");
        child.wait().expect("it has ended");
        assert_eq!(processor_time(child.id()), Duration::ZERO);
    }

    #[test]
    fn a_child_that_others_keep_from_running_waits_and_one_that_sleeps_does_not() {
        /// More than there are processors, in the shell's children.
        const CROWD: &str =
            "ulimit -t 100; for i in $(seq $(nproc)) x; do while :; do :; done & done; wait";
        if Spent::by(std::process::id()).is_none() {
            handoff_testbed::skip!("this kernel does not tell how long threads ran and waited");
        }
        // Whether more is added within a second; usually after some of these looks at the latest.
        let adds = |script: &str, expected: bool| {
            let mut shell = Command::new("sh");
            let mut child = shell.args(["-c", script]).process_group(0).spawn().expect("starts");
            let mut kept = KeptWaiting::of(child.id());
            // The first look sees the shell's waits since it began.
            thread::sleep(KeptWaiting::LOOK);
            kept.total();
            let mut adds = (0..60).map(|_| {
                let before = kept.total;
                thread::sleep(KeptWaiting::LOOK);
                kept.total() > before
            });
            let seen = adds.any(|adds| adds == expected);
            kill_process_group(Pid::from_child(&child), Signal::KILL).expect("it runs");
            child.wait().expect("it ends");
            seen
        };
        assert!(adds(CROWD, true));
        assert!(adds("exec sleep 100", false));
    }
}
