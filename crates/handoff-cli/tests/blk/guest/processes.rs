//! The processes behind a device: what they have, and who follows whom.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_getfd,
    pidfd_open,
};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::command::{
    Added, ENGINES, Files, driver_or_skip, kill, nothing_is_left, parent, read_block, tell,
    write_block,
};
use crate::terminal::{Terminal, in_its_own_session};

#[test]
fn the_processes_of_a_device_do_not_wait_for_themselves_when_memory_is_short() {
    driver_or_skip!();
    /// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE` of the kernel: what PR_SET_IO_FLUSHER sets.
    const FLUSHER: u32 = 0x0018_0000;
    let files = Files::new(1, 8 << 20);
    for engine in ENGINES {
        let device = Added::new(&["loop", files.name(0), "--engine", engine, "--queues", "2"]);
        // Flushes are for the kernel's workers.
        let disk = fs::File::options().write(true).open(device.node()).expect("opens");
        disk.write_all_at(&[1; 4096], 0).and_then(|()| disk.sync_all()).expect("flushed");
        let server = device.server(None);
        let supervisor = parent(server);
        let memory = device.show()["memory"].as_u64();
        for pid in [server, supervisor] {
            let proc_file =
                |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).expect("it lives");
            assert_eq!(proc_file("oom_score_adj").trim(), "-1000", "{engine}");
            let status = proc_file("status");
            let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
            assert!(!locked.expect("a line").trim().starts_with("0 "), "{engine}: {status}");
            // What it will need it has taken, before there is a request.
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let resident = resident.expect("a line").trim().trim_end_matches(" kB");
            let resident = 1024 * resident.parse::<u64>().expect("a number");
            assert!(pid != server || Some(resident) >= memory, "{engine}: {memory:?} and {status}");
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
            for task in tasks.map(|task| task.expect("one").path()) {
                // Workers of the kernel that have nothing to do end.
                let Ok(stat) = fs::read_to_string(task.join("stat")) else { continue };
                let fields = stat.rsplit(") ").next().expect("fields");
                let flags: u32 = fields.split(' ').nth(6).expect("flags").parse().expect("bits");
                assert_eq!(flags & FLUSHER, FLUSHER, "{engine}: {}", task.display());
            }
        }
        drop(disk);
        device.del();
    }
    nothing_is_left();
}

/// What the caller has open is not held by who outlives it: a device, a lock, the end of a pipe.
#[test]
fn the_processes_of_a_device_hold_nothing_that_their_caller_had_open() {
    driver_or_skip!();
    let files = Files::new(2, 8 << 20);
    let path = Path::new(files.name(1)).canonicalize().expect("is there");
    let held = fs::File::open(&path).expect("opens");
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).expect("is inherited");
    let device = Added::new(&["loop", files.name(0)]);
    let server = device.server(None);
    for pid in [server, parent(server)] {
        let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
        let mut all = all.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        assert!(all.all(|file| file != path), "{pid}");
    }
    drop(held);
    device.del();
    nothing_is_left();
}

/// Both the supervisor and its server are among the terminal's programs, as the shell sees it.
#[test]
fn an_interrupt_by_the_terminal_removes_a_device_in_the_foreground() {
    driver_or_skip!();
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["blk", "add", "null", "--foreground"]).process_group(0);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("handoff starts");
    let mut line = String::new();
    let printed = child.stdout.take().expect("piped");
    BufReader::new(printed).read_line(&mut line).expect("a line");
    assert!(line.contains("/dev/ublkb"), "{line}");
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("told");
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    nothing_is_left();
}

/// The server is not among the terminal's programs in the foreground, and such a terminal stops others that write.
#[test]
fn a_server_logs_to_a_terminal_that_stops_writers_in_the_background() {
    driver_or_skip!();
    let mut terminal = Terminal::new();
    let mut settings = tcgetattr(&terminal.theirs).expect("a terminal");
    settings.local_modes |= LocalModes::TOSTOP;
    tcsetattr(&terminal.theirs, OptionalActions::Now, &settings).expect("set");
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(["blk", "add", "null", "--foreground"]).env("HANDOFF_LOG", "debug");
    command.stdin(terminal.output()).stdout(terminal.output()).stderr(terminal.output());
    in_its_own_session(&mut command);
    let mut child = command.spawn().expect("handoff starts");
    let mut written = String::new();
    eventually(|| {
        written.push_str(&terminal.read());
        (written.contains("DEBUG") && written.contains("/dev/ublkb")).then_some(())
    });
    kill_process_group(Pid::from_child(&child), Signal::INT).expect("told");
    eventually(|| {
        terminal.read();
        child.try_wait().expect("a child")
    });
    nothing_is_left();
}

/// It lies in memory, and a server may be killed again and again.
#[test]
fn a_log_that_has_become_long_keeps_its_end() {
    driver_or_skip!();
    let device = Added::new(&["null", "--size", "1m"]);
    let mut server = device.server(None);
    let supervisor = Pid::from_raw(parent(server)).expect("a process");
    let theirs = pidfd_open(supervisor, PidfdFlags::empty()).expect("opened");
    let theirs = pidfd_getfd(theirs, 2, PidfdGetfdFlags::empty()).expect("taken");
    let lines: String = (0..20_000).map(|number| format!("said before: {number:060}\n")).collect();
    fs::File::from(theirs).write_all(lines.as_bytes()).expect("written");
    for killed in 1..=2 {
        kill(server);
        server = device.server(Some(server));
        eventually(|| {
            let log = log(&device);
            let told = log.matches("was killed by signal 9").count() == killed;
            (told && log.len() < lines.len() / 2).then_some(())
        });
        let log = log(&device);
        assert!(log.contains(&format!("{:060}", 19_999)) && !log.contains('\0'), "{log}");
    }
    device.del();
    nothing_is_left();
}

/// Asks until there is an answer.
#[track_caller]
/// Has a process stand still, and waits until each of its threads does. The kernel's workers for its rings do not
/// count: without the threads they begin nothing.
pub(super) fn hold(process: i32) {
    tell(process, Signal::STOP);
    let stands = |task: &Path| {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { return true };
        rest.trim_start().starts_with('T') || name.contains("(iou-")
    };
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    eventually(|| {
        let mut tasks = fs::read_dir(&tasks).expect("it runs").flatten();
        tasks.all(|task| stands(&task.path())).then_some(())
    });
}

pub(super) fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the processes of a device have said so far.
pub(super) fn log(device: &Added) -> String {
    fs::read_to_string(format!("/run/handoff/blk/{}.log", device.id)).expect("a log")
}

/// As the OOM killer may: for it, a supervisor has no limit of lives.
#[test]
fn servers_that_are_killed_at_once_are_followed_all_the_same() {
    driver_or_skip!();
    let device = Added::new(&["null", "--engine", "user-auto"]);
    let supervisor = parent(device.server(None));
    let children = format!("/proc/{supervisor}/task/{supervisor}/children");
    for round in 0..12 {
        // Each as soon as it is there, most of them before they serve.
        let server = eventually(|| {
            let all = fs::read_to_string(&children).expect("the supervisor lives");
            all.split_whitespace().next().map(|pid| pid.parse().expect("a number"))
        });
        kill(server);
        eventually(|| {
            let killed = log(&device).matches("signal: 9").count()
                + log(&device).matches("was killed by signal 9").count();
            (killed > round).then_some(())
        });
    }
    device.server(None);
    device.del();
    nothing_is_left();
}

/// Processes that a device's supervisor has started, the oldest first.
fn children(supervisor: i32) -> Vec<i32> {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let all = fs::read_to_string(path).expect("the supervisor lives");
    all.split_whitespace().map(|pid| pid.parse().expect("a number")).collect()
}

/// Whether a process waits to be called.
fn waits(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|place| place.contains("poll"))
}

/// The process that waits beside a server, once it does.
#[track_caller]
pub(super) fn waiting(supervisor: i32, server: i32, not: Option<i32>) -> i32 {
    eventually(|| {
        let others = children(supervisor).into_iter().filter(|pid| *pid != server);
        others.filter(|pid| Some(*pid) != not).find(|pid| waits(*pid))
    })
}

#[test]
fn a_server_that_was_killed_is_followed_by_one_that_waits() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    for engine in ENGINES {
        let device = Added::new(&["loop", files.name(0), "--engine", engine, "--queues", "2"]);
        let mut server = device.server(None);
        let supervisor = parent(server);
        for killed in 0..3 {
            let waiting = waiting(supervisor, server, None);
            let tasks = fs::read_dir(format!("/proc/{waiting}/task")).expect("tasks").count();
            assert!(tasks > 2, "{engine}: it has the queues' threads: {tasks}");
            kill(server);
            let next = device.server(Some(server));
            assert_eq!(next, waiting, "{engine}: after {killed}");
            server = next;
            write_block(&device.node(), killed, killed.into()).expect("written");
            assert_eq!(read_block(&device.node(), killed.into()).expect("read"), [killed; 4096]);
        }
        // Without one that waits, another is started.
        kill(waiting(supervisor, server, None));
        kill(server);
        device.server(Some(server));
        device.del();
        eventually(|| (!Path::new(&format!("/proc/{supervisor}")).exists()).then_some(()));
    }
    nothing_is_left();
}

#[test]
fn a_server_that_waits_and_ends_is_followed_by_one_that_waits() {
    driver_or_skip!();
    let device = Added::new(&["null", "--engine", "user-auto"]);
    let server = device.server(None);
    let supervisor = parent(server);
    let mut last = waiting(supervisor, server, None);
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        tell(last, signal);
        last = waiting(supervisor, server, Some(last));
    }
    assert_eq!(device.server(None), server);
    kill(server);
    assert_eq!(device.server(Some(server)), last, "{}", log(&device));
    // What the others were told has not come to the device.
    assert_eq!(device.show()["state"], "live");
    device.del();
    nothing_is_left();
}

/// A server that was called and finds the driver's file of the device in the hands of others, as of a last server
/// that takes long to end.
#[test]
fn a_server_that_was_called_waits_until_the_last_one_has_let_go() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let held_up = || {
        let device = Added::new(&["loop", files.name(0), "--engine", "user-auto"]);
        let server = device.server(None);
        let supervisor = parent(server);
        let next = waiting(supervisor, server, None);
        // The next server is called when the file is in our hands.
        tell(supervisor, Signal::STOP);
        kill(server);
        let node = format!("/dev/ublkc{}", device.id);
        let held = eventually(|| fs::File::options().read(true).write(true).open(&node).ok());
        tell(supervisor, Signal::CONT);
        eventually(|| (!waits(next)).then_some(()));
        assert_ne!(device.show()["state"], "live");
        (device, supervisor, server, next, held)
    };

    let (device, supervisor, server, next, held) = held_up();
    assert!(children(supervisor).contains(&next), "it waits on: {}", log(&device));
    drop(held);
    assert_eq!(device.server(Some(server)), next);
    device.del();

    // It serves, though nobody hears that it does.
    let (device, supervisor, server, next, held) = held_up();
    kill(supervisor);
    drop(held);
    eventually(|| (device.show()["server"].as_i64() == Some(next.into())).then_some(()));
    assert_eq!(device.server(Some(server)), next);
    write_block(&device.node(), 3, 3).expect("written");
    device.del();
    nothing_is_left();

    // The device may be removed meanwhile, and its supervisor asked to end.
    let (device, .., held) = held_up();
    let node = device.node();
    std::thread::scope(|scope| {
        // It returns when the number is free.
        let removed = scope.spawn(|| device.del());
        eventually(|| (!Path::new(&node).exists()).then_some(()));
        drop(held);
        removed.join().expect("removed");
    });
    nothing_is_left();
    let (device, supervisor, .., held) = held_up();
    let path = format!("/run/handoff/blk/{}.log", device.id);
    tell(supervisor, Signal::TERM);
    eventually(|| (!Path::new(&device.node()).exists()).then_some(()));
    drop(held);
    nothing_is_left();
    assert!(!Path::new(&path).exists(), "{path} is left");
}

#[test]
fn a_supervisor_leaves_a_new_device_of_the_same_number_alone() {
    driver_or_skip!();
    // The first supervisor has the first one open.
    let files = Files::new(2, 8 << 20);
    let make = |file, queues| {
        let of = ["loop", files.name(file), "--engine", "user-auto", "--id", "58"];
        Added::new(&[&of[..], &["--queues", queues]].concat())
    };
    let first = make(0, "1");
    let server = first.server(None);
    let supervisor = parent(server);
    waiting(supervisor, server, None);
    tell(supervisor, Signal::STOP);
    kill(server);
    eventually(|| (first.show()["state"] != "live").then_some(()));
    first.del();
    let second = make(1, "2");
    let server = second.server(None);
    tell(supervisor, Signal::CONT);
    eventually(|| (!Path::new(&format!("/proc/{supervisor}")).exists()).then_some(()));
    assert_eq!(second.server(None), server);
    let log = log(&second);
    assert!(!log.contains("was killed"), "it has a log of its own: {log}");
    second.del();
    nothing_is_left();
}

/// As where memory is short: for lack of memory, a supervisor has no limit of tries.
#[test]
fn a_server_that_finds_no_memory_is_tried_until_there_is_some() {
    driver_or_skip!();
    /// Fewer bytes of addresses than the buffers of the device have.
    const FEW: u64 = 256 << 20;
    let files = Files::new(1, 8 << 20);
    let large = ["--engine", "user-copy", "--depth", "65", "--max-request", "4m"];
    let device = Added::new(&[&["loop", files.name(0)], &large[..]].concat());
    let mut server = device.server(None);
    let supervisor = parent(server);
    let limit = |pid: i32, limit: Option<u64>| {
        let limit = Rlimit { current: limit, maximum: None };
        rustix::process::prlimit(Pid::from_raw(pid), Resource::As, limit).expect("limited");
    };
    // What waits already has no limit.
    limit(supervisor, Some(FEW));
    eventually(|| children(supervisor).into_iter().find(|pid| *pid != server));
    kill(server);
    server = device.server(Some(server));
    kill(server);
    eventually(|| (log(&device).matches("Cannot allocate memory").count() > 12).then_some(()));
    assert_ne!(device.show()["state"], "live");
    limit(supervisor, None);
    device.server(Some(server));
    write_block(&device.node(), 5, 5).expect("written");
    assert_eq!(read_block(&device.node(), 5).expect("read"), [5; 4096]);
    device.del();
    nothing_is_left();
}

#[test]
fn a_supervisor_that_is_short_of_descriptors_goes_on() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let device = Added::new(&["loop", files.name(0), "--engine", "user-auto"]);
    let server = device.server(None);
    let supervisor = parent(server);
    let next = waiting(supervisor, server, None);
    let limit = |most| limit_descriptors(supervisor, most);
    // It can open nothing more, and wait for four.
    limit(4);
    kill(server);
    assert_eq!(device.server(Some(server)), next);
    eventually(|| log(&device).contains("the server is looked at").then_some(()));
    kill(next);
    // As where memory is short, there is no limit of tries.
    eventually(|| (log(&device).matches("a process cannot be started").count() > 12).then_some(()));
    limit(1024);
    let server = device.server(Some(next));
    assert_eq!(parent(server), supervisor);
    write_block(&device.node(), 6, 6).expect("written");
    assert_eq!(read_block(&device.node(), 6).expect("read"), [6; 4096]);
    device.del();
    nothing_is_left();
}

/// A process, and those that it starts from now on, have so many descriptors at most.
pub(super) fn limit_descriptors(pid: i32, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: Some(1024) };
    rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, limit).expect("limited");
}

#[test]
fn a_server_that_finds_no_descriptors_is_tried_until_there_are_some() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let device = Added::new(&["loop", files.name(0), "--engine", "user-auto"]);
    let mut server = device.server(None);
    let supervisor = parent(server);
    let limit = |most| limit_descriptors(supervisor, most);
    // What waits already has no limit. The supervisor needs fewer than a server, which has rings.
    waiting(supervisor, server, None);
    limit(15);
    kill(server);
    server = device.server(Some(server));
    kill(server);
    eventually(|| (log(&device).matches("Too many open files").count() > 12).then_some(()));
    let text = log(&device);
    assert!(!text.contains("a process cannot be started"), "{text}");
    limit(1024);
    device.server(Some(server));
    write_block(&device.node(), 6, 6).expect("written");
    assert_eq!(read_block(&device.node(), 6).expect("read"), [6; 4096]);
    device.del();
    nothing_is_left();
}
