//! Tests that boot guests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use handoff_lab::{
    Acceleration, Ending, Error, Guest, Job, KernelChoice, Machine, Put, StopFlag, Userland,
};

/// Skips the test where the lab cannot run: without root there is no image, without QEMU no guest.
macro_rules! need_the_lab {
    () => {
        if !rustix::process::geteuid().is_root() {
            handoff_testbed::skip!("only root builds the lab's image");
        }
        if let Some(program) = $crate::native::lab::missing() {
            handoff_testbed::skip!("{program} is not installed");
        }
    };
}

pub(crate) fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there =
        |program: &&str| !std::env::split_paths(&path).any(|place| place.join(program).is_file());
    ["qemu-system-x86_64", "mmdebstrap", "depmod"].into_iter().find(there)
}

pub(crate) fn boot(machine: &Machine) -> Guest {
    Guest::boot(machine, &StopFlag::default()).expect("boots")
}

pub(crate) fn shell(guest: &mut Guest, script: &str) -> (handoff_lab::Outcome, Vec<u8>, Vec<u8>) {
    guest.run_captured(&Job::new(["sh", "-c", script])).expect("runs")
}

/// `guest::fixture::boots` as a process of its own, started by `wrapper`.
pub(crate) fn fixture(wrapper: &[&str], command: &str) -> Command {
    let mut words: Vec<std::ffi::OsString> = wrapper.iter().map(Into::into).collect();
    words.push(std::env::current_exe().expect("our path").into());
    let mut fixture = Command::new(&words[0]);
    fixture.args(&words[1..]).args([
        "--exact",
        "--ignored",
        "--nocapture",
        "guest::fixture::boots",
    ]);
    fixture.env("FIXTURE_COMMAND", command).stdin(Stdio::null());
    fixture
}

pub(crate) fn printed(fixture: &mut Command) -> String {
    let output = fixture.output().expect("starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_command_that_does_not_end_says_where_it_stands() {
    need_the_lab!();
    let mut guest = boot(&Machine::default());
    let mut at_its_time_out = |script: &str| {
        let timeout = Some(Duration::from_secs(3));
        let job = Job { timeout, ..Job::new(["sh", "-c", script]) };
        let (outcome, ..) = guest.run_captured(&job).expect("runs");
        assert_eq!(outcome.fault, None);
        outcome.ending
    };
    let told = |ending: Ending| match ending {
        Ending::TimedOut(tasks) => tasks,
        other => panic!("{other:?}"),
    };
    // The line of the task whose name this is, and what follows it.
    fn of<'a>(tasks: &'a str, name: &str) -> &'a str {
        let begin = tasks.find(&format!(" {name}: state")).unwrap_or_else(|| panic!("{tasks}"));
        &tasks[begin..]
    }

    let tasks = told(at_its_time_out("sleep 1000"));
    let sleep = of(&tasks, "sleep");
    assert!(sleep.contains("state S") && sleep.contains("system call 230 ("), "{tasks}");
    assert!(
        sleep.contains("_nanosleep <") && sleep.contains("__x64_sys_clock_nanosleep"),
        "{tasks}"
    );
    // The report leaves out the agent, init, and kernel tasks that only wait for work.
    assert!(!tasks.contains(" init:") && !tasks.contains(" kthreadd:"), "{tasks}");

    let tasks = told(at_its_time_out("while :; do :; done"));
    assert!(of(&tasks, "sh").contains("state R"), "{tasks}");
    assert!(!tasks.contains(" sleep:"), "what was killed is gone: {tasks}");

    // Cannot be killed; nothing waits for it.
    let tasks = told(at_its_time_out("fsfreeze -f /; touch /root/x"));
    let touch = of(&tasks, "touch");
    assert!(touch.contains("state D") && touch.contains("mnt_want_write"), "{tasks}");

    // The shell's parent is the agent, which must kill it.
    match at_its_time_out("kill -STOP $PPID; while :; do :; done") {
        Ending::Hung(hang) => {
            assert_eq!(hang.tasks, "");
            assert!(hang.to_string().contains("the emulator was busy"), "{hang}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn output_files_and_exit_codes_are_carried_untouched() {
    need_the_lab!();
    let place = tempfile::tempdir().expect("a directory");
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    fs::write(place.path().join("sent"), &bytes).expect("writes");
    let sent = Put { source: place.path().join("sent"), target: "/opt/deep/down/sent".into() };
    let disks = vec!["data=64M".parse().expect("a disk")];
    let nvme = vec!["fast=64M".parse().expect("a disk")];
    let mut guest = boot(&Machine { puts: vec![sent], disks, nvme, ..Machine::default() });
    assert!(guest.release.contains('.'), "{}", guest.release);

    let script = "cat /opt/deep/down/sent; head -c 100000 /opt/deep/down/sent >&2; exit 42";
    let (outcome, output, errors) = shell(&mut guest, script);
    assert_eq!((outcome.ending, outcome.fault), (Ending::Exited(42), None));
    assert!(output == bytes, "standard output differs");
    assert!(errors == bytes[..100_000], "standard error differs");

    guest.get(Path::new("/opt/deep"), place.path()).expect("gets");
    let got = fs::read(place.path().join("deep/down/sent")).expect("is there");
    assert!(got == bytes, "the copy differs");
    assert!(guest.get(Path::new("/no/such"), place.path()).is_err());

    let (outcome, ..) = guest.run_captured(&Job::new(["no-such-program"])).expect("runs");
    assert!(matches!(outcome.ending, Ending::NotStarted(reason) if reason.contains("No such")));
    assert_eq!(shell(&mut guest, "kill -9 $$").0.ending, Ending::Killed(9));

    let script = "mkfs.ext4 -q /dev/disk/by-id/virtio-data && \
                  mount /dev/disk/by-id/virtio-data /mnt && cp /opt/deep/down/sent /mnt";
    let (outcome, _, errors) = shell(&mut guest, script);
    assert!(outcome.success(), "{outcome:?} {}", String::from_utf8_lossy(&errors));
    let script =
        "cat /sys/block/$(basename $(readlink /dev/disk/by-id/nvme-fast))/queue/dma_alignment";
    assert_eq!(String::from_utf8_lossy(&shell(&mut guest, script).1), "3\n");
    assert_eq!(guest.power_off().expect("switches off"), None);
}

/// One of them by Debian 12's own kernel; the other's command ends by its stop flag.
#[test]
fn guests_of_two_kernels_run_at_once_until_they_are_stopped() {
    need_the_lab!();
    let stop = StopFlag::default();
    let mut old = boot(&Machine { kernel: KernelChoice::Bookworm, ..Machine::default() });
    let mut new = Guest::boot(&Machine::default(), &stop).expect("boots");
    for guest in [&mut old, &mut new] {
        let knows = "grep -q '^CONFIG_MODULES=y' /lib/modules/$(uname -r)/config";
        let (outcome, ..) = shell(guest, &format!("uname -r > /root/mine && {knows}"));
        assert!(outcome.success(), "{outcome:?}");
    }
    for (guest, release) in [(&mut old, "6.1."), (&mut new, "7.2")] {
        let (outcome, output, _) = shell(guest, "cat /root/mine");
        assert!(outcome.success(), "{outcome:?}");
        let output = String::from_utf8_lossy(&output);
        assert!(output.starts_with(release), "{output}");
    }
    // Longer than a test may take.
    let endless = Job::new(["sh", "-c", "echo begun; exec sleep 100000"]);
    let result = new.run(&endless, |_, _| {
        stop.store(true, Ordering::Release);
        Ok(())
    });
    assert!(matches!(result, Err(Error::Stopped)), "{result:?}");
}

#[test]
fn counted_instructions_repeat() {
    need_the_lab!();
    let program = std::env::current_exe().expect("our path");
    let mut guest = boot(&Machine {
        acceleration: Acceleration::InstructionCounting,
        puts: vec![Put { source: program, target: "/opt/program".into() }],
        ..Machine::default()
    });
    let mut count = || {
        let words =
            ["/opt/program", "--exact", "--ignored", "--nocapture", "guest::fixture::counts"];
        let (outcome, output, _) = guest.run_captured(&Job::new(words)).expect("runs");
        let output = String::from_utf8_lossy(&output).into_owned();
        assert!(outcome.success(), "{outcome:?} {output}");
        let (_, number) = output
            .lines()
            .find_map(|line| line.split_once("instructions "))
            .unwrap_or_else(|| panic!("no count in {output}"));
        number.trim().parse::<u64>().expect("a number")
    };
    let (first, second) = (count(), count());
    // A hundred thousand turns of two instructions, and the two readings themselves.
    for counted in [first, second] {
        assert!((200_000..201_000).contains(&counted), "{counted}");
    }
    assert!(first.abs_diff(second) < 100, "{first} against {second}");
}

#[test]
fn too_little_disk_is_told_before_anything_is_built() {
    need_the_lab!();
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().display();
    let script =
        format!("mount -t tmpfs -o size=64m t '{path}' && HANDOFF_LAB_DIR='{path}' exec \"$@\"");
    let printed = printed(&mut fixture(&["unshare", "--mount", "sh", "-c", &script, "sh"], "true"));
    assert!(printed.contains("code 3: ") && printed.contains("which has 64 MiB free"), "{printed}");
}

#[test]
fn a_missing_emulator_is_told_with_its_package() {
    need_the_lab!();
    handoff_lab::prepare(&KernelChoice::default(), Userland::Small, &StopFlag::default())
        .expect("is built");
    let printed = printed(fixture(&[], "true").env("PATH", "/nowhere"));
    assert!(printed.contains("code 3: qemu-system-x86_64 is not installed"), "{printed}");
    assert!(printed.contains("apt-get install qemu-system-x86"), "{printed}");
}

/// Waits for the fixture's guest and returns the emulator's process id.
fn emulator_of(fixture: &mut Child) -> u32 {
    let output = BufReader::new(fixture.stdout.take().expect("is piped"));
    let mut lines = output.lines().map_while(Result::ok);
    lines.find(|line| line.contains("booted")).expect("boots");
    // Its last thread may be the parent, so all of them are asked.
    let tasks = fs::read_dir(format!("/proc/{}/task", fixture.id())).expect("lists");
    let children = tasks
        .flatten()
        // One that has ended meanwhile has none.
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: String = children.collect();
    children.split_whitespace().next().expect("has a child").parse().expect("a number")
}

#[test]
fn a_built_image_needs_no_network_and_nothing_outlives_a_killed_lab() {
    need_the_lab!();
    handoff_lab::prepare(&KernelChoice::default(), Userland::Small, &StopFlag::default())
        .expect("is built");
    let mut without_network = fixture(&["unshare", "--net"], "sleep 1000");
    let mut child = without_network.stdout(Stdio::piped()).spawn().expect("starts");
    let emulator = emulator_of(&mut child);
    let command = fs::read_to_string(format!("/proc/{emulator}/comm")).expect("it runs");
    assert!(command.starts_with("qemu"), "{command}");
    child.kill().expect("kills");
    child.wait().expect("ends");
    let deadline = Instant::now() + Duration::from_secs(10);
    let gone = || {
        // A zombie, until whoever inherits it reaps it.
        fs::read_to_string(format!("/proc/{emulator}/stat"))
            .map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
    };
    while !gone() {
        assert!(Instant::now() < deadline, "the emulator is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}
