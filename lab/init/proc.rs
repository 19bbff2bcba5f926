//! Parses what `/proc` says about a task, and puts it into words.
//!
//! This file is compiled into both sides: the guest reports where its tasks stand, the host whether the
//! emulator is at work.

use std::fmt::Write;
use std::time::Duration;

/// The task flag of the kernel's own threads.
const PF_KTHREAD: u64 = 0x0020_0000;
/// Ticks in a second of CPU time; the same for every x86-64 kernel.
const USER_HZ: u64 = 100;

/// The line in `stat` of a process or one of its threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    /// The letter that `ps` shows.
    pub(crate) state: char,
    /// Whether it is a kernel thread.
    pub(crate) of_kernel: bool,
    /// CPU time in user space.
    pub(crate) user: Duration,
    /// CPU time in the kernel.
    pub(crate) kernel: Duration,
}

impl Stat {
    /// `None` if it is no such line.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        // A name may have blanks and brackets in it; what follows has none.
        let (before, after) = line.rsplit_once(") ")?;
        let (_, name) = before.split_once(" (")?;
        // The state is the third field of proc(5), and the first here.
        let fields: Vec<&str> = after.split_whitespace().collect();
        let number = |place: usize| fields.get(place - 3)?.parse::<u64>().ok();
        let time = |place| number(place).map(|ticks| Duration::from_millis(ticks * 1000 / USER_HZ));
        Some(Self {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            of_kernel: number(9)? & PF_KTHREAD != 0,
            user: time(14)?,
            kernel: time(15)?,
        })
    }
}

/// A thread of a process in lines: its name and ids, and where it is in the kernel, the innermost
/// function first. `call` and `stack` are the contents of the files with these names, if they could be
/// read.
pub(crate) fn describe(
    process: u32,
    thread: u32,
    stat: &Stat,
    call: Option<&str>,
    stack: Option<&str>,
) -> String {
    let Stat { name, state, user, kernel, .. } = stat;
    let (user, kernel) = (user.as_secs_f64(), kernel.as_secs_f64());
    let mut text = format!("{process}/{thread} {name}: state {state}");
    // Writing into a string cannot fail.
    let _ = write!(text, ", CPU {user:.2} s in user space, {kernel:.2} s in the kernel");
    if let Some(call) = call.and_then(system_call) {
        let _ = write!(text, ", {call}");
    }
    text.push('\n');
    let functions: Vec<&str> = stack.unwrap_or_default().lines().filter_map(function).collect();
    if !functions.is_empty() {
        let _ = writeln!(text, "    {}", functions.join(" < "));
    }
    text
}

/// The system call in words; `None` if the task is not waiting: then nobody can tell.
fn system_call(text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    match words.next()? {
        "running" => None,
        "-1" => Some("in no system call".to_owned()),
        number => {
            // The stack pointer and the program counter follow the six arguments.
            let arguments: Vec<&str> = words.take(6).collect();
            Some(format!("system call {number} ({})", arguments.join(", ")))
        }
    }
}

/// The name in a line like `[<0>] do_nanosleep+0x67/0x190 [module]`.
fn function(line: &str) -> Option<&str> {
    line.split_whitespace().nth(1)?.split('+').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLEEP: &str = "71 (sleep) S 70 69 69 0 -1 4194304 95 0 0 0 12 134 0 0 20 0 1 0 8 0 0";

    #[test]
    fn a_line_is_taken_apart() {
        let stat = Stat::parse(SLEEP).expect("a line");
        assert_eq!((stat.name.as_str(), stat.state, stat.of_kernel), ("sleep", 'S', false));
        assert_eq!((stat.user.as_millis(), stat.kernel.as_millis()), (120, 1340));
    }

    #[test]
    fn a_name_may_look_like_what_follows_it() {
        let line = SLEEP.replace("(sleep)", "(a (b) R 1)");
        assert_eq!(Stat::parse(&line).map(|stat| (stat.name, stat.state)), {
            Some(("a (b) R 1".to_owned(), 'S'))
        });
    }

    #[test]
    fn a_thread_of_the_kernel_is_told_apart() {
        let line = "9 (kworker/0:1-events) D 2 0 0 0 -1 69238880 0 0 0 0 0 3 0 0 20 0 1 0 5 0 0";
        assert!(Stat::parse(line).expect("a line").of_kernel);
    }

    #[test]
    fn what_is_cut_short_is_no_line() {
        let whole = SLEEP.len() - " 0 0 20 0 1 0 8 0 0".len();
        for end in 0..whole - 2 {
            assert_eq!(Stat::parse(&SLEEP[..end]), None, "{}", &SLEEP[..end]);
        }
    }

    #[test]
    fn a_task_is_described_with_what_can_be_read() {
        let stat = Stat::parse(SLEEP).expect("a line");
        let call = "230 0x0 0x0 0x7ffd0 0x7ffd1 0x0 0x5 0x7ffd2 0x7f003\n";
        let stack = "[<0>] hrtimer_nanosleep+0x67/0x190\n[<0>] answer+0x1/0x2 [wire]\n";
        let who = "70/71 sleep: state S, CPU 0.12 s in user space, 1.34 s in the kernel";
        let arguments = "0x0, 0x0, 0x7ffd0, 0x7ffd1, 0x0, 0x5";
        for (call, stack, text) in [
            (
                Some(call),
                Some(stack),
                format!("{who}, system call 230 ({arguments})\n    hrtimer_nanosleep < answer\n"),
            ),
            (Some("-1 0x7ffd2 0x7f003\n"), None, format!("{who}, in no system call\n")),
            (Some("running\n"), Some(""), format!("{who}\n")),
            (None, None, format!("{who}\n")),
        ] {
            assert_eq!(describe(70, 71, &stat, call, stack), text);
        }
    }
}
