//! Servers that are killed, queues that fail, devices that are removed under load, backings that fail.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk as _, Fault, Flaky, LoopDisk, NullDisk, Schedule};
use io_uring::{IoUring, opcode, types};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::command::{
    Added, ENGINES, Files, blk, driver_or_skip, kill, nothing_is_left, parent, read_block, tell,
    verified, verifier, write_block,
};
use super::processes::log;

/// Rounds of killing, at moments that differ.
fn killed_under_load(arguments: &[&str]) {
    let soak = std::env::var_os("HANDOFF_SOAK").is_some();
    let (rounds, apart) = if soak { (100, 90) } else { (4, 225) };
    let files = Files::new(2, 48 << 20);
    let files = [files.name(0), files.name(1)].map(str::to_owned);
    let device = Added::new(&[&arguments[..1], &[&files[0], &files[1]], &arguments[1..]].concat());
    let load = verifier(&device.node(), "64m", 6 + 2 * rounds, &[]);
    let mut server = device.server(None);
    for round in 0..rounds {
        std::thread::sleep(Duration::from_millis(150 + apart * (round % 10)));
        kill(server);
        server = device.server(Some(server));
    }
    verified(load);
    assert_eq!(device.show()["counters"][0]["errors"], 0);
    let log = std::fs::read_to_string(format!("/run/handoff/blk/{}.log", device.id)).unwrap();
    assert_eq!(log.matches("was killed by signal 9").count() as u64, rounds, "{log}");
    device.del();
}

#[test]
fn killed_servers_are_followed_by_others() {
    driver_or_skip!();
    let devices: [&[&str]; 4] = [
        &["linear", "--engine", "bpf"],
        &["mirror", "--no-record", "--engine", "user-auto", "--queues", "2"],
        &["stripe", "--engine", "batch-auto", "--queues", "2"],
        &["linear", "--engine", "user-copy"],
    ];
    std::thread::scope(|scope| {
        for arguments in devices {
            scope.spawn(move || killed_under_load(arguments));
        }
    });
    nothing_is_left();
}

/// More requests at once than there are buffers for their tags.
#[test]
fn a_server_of_batches_that_was_held_up_finds_all_requests() {
    const BUFFERS: u64 = 128;
    driver_or_skip!();
    let files = Files::new(1, 16 << 20);
    let deep = ["--engine", "batch-auto", "--depth", "2048"];
    let device = Added::new(&[&["loop", files.name(0)], &deep[..]].concat());
    let many = ["--bsrange=4k-4k", "--iodepth=2048", "--iodepth_batch_submit=2048"];
    let server = Pid::from_raw(device.server(None)).expect("a process");
    let mut load = device.load("16m", 2, &many);
    // Where the guest's clock leaps, the load may be over before, or about to end: then no more will come.
    let mut until = |so: &dyn Fn() -> bool| {
        for _ in 0..500 {
            if so() || load.try_wait().expect("a child").is_some() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    for _ in 0..2 {
        kill_process(server, Signal::STOP).expect("held up");
        until(&|| device.under_way() > BUFFERS);
        let writes = device.writes();
        kill_process(server, Signal::CONT).expect("let go");
        until(&|| device.writes() > writes);
    }
    verified(load);
    assert_eq!(device.show()["counters"][0]["errors"], 0);
    device.del();
    nothing_is_left();
}

/// The ring of one of a server's queues: the device is among its files.
fn ring_of_a_queue(server: i32) -> OwnedFd {
    let process = format!("/proc/{server}");
    let number = eventually("a queue has its ring", || {
        let all = fs::read_dir(format!("{process}/fdinfo")).expect("it lives");
        let numbers =
            all.map(|entry| entry.expect("one").file_name().into_string().expect("digits"));
        numbers.into_iter().find(|number| {
            let link = fs::read_link(format!("{process}/fd/{number}")).unwrap_or_default();
            let about = fs::read_to_string(format!("{process}/fdinfo/{number}"));
            link.to_string_lossy().contains("io_uring")
                && about.is_ok_and(|about| about.contains("ublkc"))
        })
    });
    let server = Pid::from_raw(server).expect("a process");
    let server = pidfd_open(server, PidfdFlags::empty()).expect("it lives");
    let number = number.parse().expect("digits");
    pidfd_getfd(server, number, PidfdGetfdFlags::empty()).expect("we may")
}

/// Puts a completion into another's ring, as if its first command had failed.
fn post_a_failure(ring: &OwnedFd) {
    let mut ours = IoUring::new(1).expect("a ring");
    let message =
        opcode::MsgRingData::new(types::Fd(ring.as_raw_fd()), -libc::EIO, 0, None).build();
    // SAFETY: it points to nothing.
    unsafe { ours.submission().push(&message) }.expect("it is empty");
    ours.submit_and_wait(1).expect("submitted");
    let sent = ours.completion().next().expect("completed").result();
    assert_eq!(sent, 0, "{}", io::Error::from_raw_os_error(-sent));
}

/// A process that is held up.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        tell(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        tell(self.0, Signal::CONT);
    }
}

/// Its requests are nobody's then, and the driver gets them back when the server is gone.
#[test]
fn a_queue_that_fails_beside_another_ends_the_device() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let device = Added::new(&["loop", files.name(0), "--engine", "user-auto", "--queues", "2"]);
    let server = device.server(None);
    let node = &device.node();
    std::thread::scope(|scope| {
        let stopped = Stopped::new(server);
        let writers = [0, 1].map(|cpu| {
            scope.spawn(move || {
                let mut cpus = CpuSet::new();
                cpus.set(cpu);
                sched_setaffinity(None, &cpus).expect("two processors");
                write_block(node, 1, cpu as u64)
            })
        });
        eventually("each queue has a request", || (device.under_way() == 2).then_some(()));
        post_a_failure(&ring_of_a_queue(server));
        drop(stopped);
        let written = writers.map(|writer| writer.join().expect("no panic"));
        assert!(written.iter().any(Result::is_err), "{written:?}");
    });
    nothing_is_left();
    let log = log(&device);
    assert!(log.contains(" failed: Input/output error"), "{log}");
    fs::remove_file(format!("/run/handoff/blk/{}.log", device.id)).expect("it was kept");
}

#[test]
fn a_device_without_server_and_supervisor_is_recovered_by_hand() {
    driver_or_skip!();
    let files = Files::new(1, 16 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let server = device.server(None);
    kill(parent(server));
    kill(server);
    while device.show()["state"] == "live" {
        std::thread::sleep(Duration::from_millis(20));
    }
    let written = {
        let node = device.node();
        std::thread::spawn(move || {
            let disk = File::options().write(true).open(node).expect("opens");
            disk.write_all_at(&[9; 4096], 8192).and_then(|()| disk.sync_all())
        })
    };
    eventually("a request waits for a server", || (device.under_way() > 0).then_some(()));
    assert!(!written.is_finished());
    assert!(blk(&["recover", &device.id.to_string()]).status.success());
    written.join().expect("no panic").expect("written by the new server");
    device.del();
    assert_eq!(fs::read(&files.paths[0]).expect("a file")[8192..12288], [9; 4096]);
    nothing_is_left();
}

#[test]
fn a_device_is_removed_under_load() {
    driver_or_skip!();
    let files = Files::new(2, 32 << 20);
    for engine in ENGINES {
        let stripe = ["stripe", files.name(0), files.name(1), "--engine", engine];
        let device = Added::new(&stripe);
        let load = device.load("32m", 30, &[]);
        assert!(blk(&["del", "--force", &device.id.to_string()]).status.success());
        let output = load.wait_with_output().expect("fio ends");
        assert!(!output.status.success(), "fio has lost its device");
        nothing_is_left();
    }
}

#[test]
fn a_backing_that_shrinks_gives_errors_and_keeps_the_rest() {
    driver_or_skip!();
    for engine in ENGINES {
        let files = Files::new(1, 8 << 20);
        let device = Added::new(&["loop", files.name(0), "--engine", engine]);
        let disk = File::options().read(true).write(true).open(device.node()).expect("opens");
        disk.write_all_at(&[5; 1 << 20], 0).and_then(|()| disk.sync_all()).expect("written");
        let backing = File::options().write(true).open(&files.paths[0]).expect("opens");
        backing.set_len(1 << 20).expect("shrunk");
        let mut bytes = vec![0; 4096];
        let error = disk.read_exact_at(&mut bytes, 4 << 20).expect_err("nothing is there");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{engine}: {error}");
        disk.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, [5; 4096]);
        assert!(device.show()["counters"][0]["errors"].as_u64() > Some(0));
        drop(disk);
        device.del();
    }
    nothing_is_left();
}

#[test]
fn a_full_file_system_reaches_the_caller() {
    driver_or_skip!();
    let point = tempfile::tempdir().expect("a directory");
    let path = point.path().to_str().expect("UTF-8").to_owned();
    let run = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program).args(arguments).status();
        assert!(status.expect("starts").success(), "{program}");
    };
    let others = ["one", "other"].map(|name| format!("{path}/{name}"));
    run("mount", &["-t", "tmpfs", "-o", "size=2m", "none", &path]);
    for other in &others {
        fs::create_dir(other).expect("a directory");
        run("mount", &["-t", "tmpfs", "-o", "size=2m", "none", other]);
    }
    let elsewhere = Files::new(1, 8 << 20);
    let (first, second) = (format!("{path}/first"), format!("{path}/second"));
    let apart = others.each_ref().map(|other| format!("{other}/leg"));
    // The command, whether what does not fit fails, and the legs that are then out.
    let devices: [(&[&str], bool, &[u32]); 4] = [
        (&["loop", &first], true, &[]),
        // None of them lacks what another has: one file system is full, or each is.
        (&["mirror", "--no-record", &first, &second], true, &[]),
        (&["mirror", "--no-record", &apart[0], &apart[1]], true, &[]),
        (&["mirror", "--no-record", &first, elsewhere.name(0)], false, &[0]),
    ];
    let all = [&first, &second, &apart[0], &apart[1]];
    for engine in ENGINES {
        for (arguments, fails, out) in devices {
            for backing in all {
                File::create(backing).and_then(|file| file.set_len(8 << 20)).expect("a file");
            }
            let device = Added::new(&[arguments, &["--engine", engine, "--buffered"]].concat());
            // The page cache would say EIO for all errors.
            let zeroes = "if=/dev/zero bs=1M count=4 oflag=direct conv=nocreat".split(' ');
            let mut dd = std::process::Command::new("dd");
            dd.args(zeroes).arg(format!("of={}", device.node()));
            let output = dd.output().expect("dd starts");
            let errors = String::from_utf8_lossy(&output.stderr);
            let case = format!("{arguments:?} by {engine}: {errors}");
            assert_eq!(errors.contains("No space left on device"), fails, "{case}");
            assert_eq!(device.show()["failed_legs"], serde_json::json!(out), "{case}");
            // With room again, it goes on as before.
            for backing in all {
                let hole = ["--punch-hole", "--offset=0", "--length=1M", backing];
                run("fallocate", &hole);
            }
            write_block(&device.node(), 9, 3).expect("there is room");
            assert_eq!(read_block(&device.node(), 3).expect("read"), [9; 4096], "{case}");
            assert_eq!(device.show()["failed_legs"], serde_json::json!(out), "{case}");
            device.del();
            for backing in all {
                fs::remove_file(backing).expect("removed");
            }
        }
    }
    for point in others.iter().chain([&path]) {
        run("umount", &[point]);
    }
    nothing_is_left();
}

#[test]
fn a_mirror_goes_on_without_a_leg_and_keeps_it_out() {
    driver_or_skip!();
    for engine in ENGINES {
        let files = Files::new(3, 8 << 20);
        let mirror =
            ["mirror", "--no-record", files.name(0), files.name(1), files.name(2), "--queues", "2"];
        let device = Added::new(&[&mirror[..], &["--engine", engine]].concat());
        let disk = File::options().read(true).write(true).open(device.node()).expect("opens");
        disk.write_all_at(&[1; 8 << 20], 0).and_then(|()| disk.sync_all()).expect("written");
        assert_eq!(device.show()["failed_legs"], serde_json::json!([]));
        let backing = File::options().write(true).open(&files.paths[1]).expect("opens");
        backing.set_len(0).expect("shrunk");
        let read_all = || {
            // From the files, not from the page cache.
            let dd = std::process::Command::new("dd")
                .args(["bs=64k", "iflag=direct", "status=none", &format!("if={}", device.node())])
                .output()
                .expect("dd starts");
            assert!(dd.status.success(), "{engine}: {}", String::from_utf8_lossy(&dd.stderr));
            dd.stdout
        };
        assert!(read_all() == vec![1; 8 << 20], "{engine}: read from the other legs");
        let show = device.show();
        assert_eq!(show["failed_legs"], serde_json::json!([1]), "{engine}");
        let failure = &show["failures"][0];
        assert_eq!((&failure["leg"], &failure["operation"]), (&1.into(), &"read".into()), "{show}");
        assert_eq!(failure["error"], libc::EIO, "{show}");
        let text = String::from_utf8(blk(&["show", &device.id.to_string()]).stdout).expect("UTF-8");
        assert!(text.contains("(is out since a read of "), "{text}");
        // What is written now goes past it, and the next server knows as well.
        let server = device.server(None);
        kill(server);
        device.server(Some(server));
        disk.write_all_at(&[2; 1 << 20], 0).and_then(|()| disk.sync_all()).expect("written");
        assert_eq!(device.show()["failed_legs"], serde_json::json!([1]), "{engine}");
        assert!(read_all()[..1 << 20] == [2; 1 << 20]);
        assert_eq!(device.show()["counters"][0]["errors"], 0);
        drop(disk);
        device.del();
        assert_eq!(fs::metadata(&files.paths[1]).expect("a file").len(), 0, "{engine}: left alone");
        for leg in [0, 2] {
            let bytes = fs::read(&files.paths[leg]).expect("a file");
            assert!(bytes[..1 << 20] == [2; 1 << 20] && bytes[1 << 20..] == [1; 7 << 20]);
        }
    }
    nothing_is_left();
}

#[test]
fn the_last_leg_of_a_mirror_stays_and_its_errors_are_the_callers() {
    driver_or_skip!();
    for engine in ENGINES {
        let files = Files::new(2, 4 << 20);
        let device = Added::new(&[
            "mirror",
            "--no-record",
            files.name(0),
            files.name(1),
            "--engine",
            engine,
        ]);
        for path in &files.paths {
            File::options()
                .write(true)
                .open(path)
                .and_then(|file| file.set_len(0))
                .expect("shrunk");
        }
        let disk = File::options().read(true).open(device.node()).expect("opens");
        let error = disk.read_exact_at(&mut [0; 4096], 1 << 20).expect_err("nothing is there");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{engine}");
        assert_eq!(device.show()["failed_legs"].as_array().expect("a list").len(), 1);
        drop(disk);
        device.del();
    }
    nothing_is_left();
}

/// A disk of 8 MiB that fails when it is told to.
fn flaky() -> Flaky<LoopDisk> {
    let lower = LoopDisk::new(Path::new("/var/tmp"), 8 << 20, 512, false).expect("a loop device");
    Flaky::over(lower, Schedule::WORKS).expect("a disk that fails")
}

#[test]
fn errors_of_a_backing_reach_the_caller_and_end_with_it() {
    driver_or_skip!();
    let disk = flaky();
    let path = disk.path().to_str().expect("UTF-8");
    for engine in ENGINES {
        let device = Added::new(&["loop", path, "--engine", engine]);
        let node = device.node();
        let eio = |result: io::Result<()>| {
            let error = result.expect_err("it fails").raw_os_error();
            assert_eq!(error, Some(libc::EIO), "{engine}");
        };
        write_block(&node, 1, 5).expect("written");
        for fault in [Fault::ErrorReads, Fault::ErrorWrites, Fault::Everything] {
            disk.set(Schedule::fails(fault)).expect("told to fail");
            if fault == Fault::ErrorWrites {
                assert_eq!(read_block(&node, 5).expect("read"), [1; 4096]);
            } else {
                eio(read_block(&node, 5).map(drop));
            }
            if fault == Fault::ErrorReads {
                write_block(&node, 1, 5).expect("written");
            } else {
                eio(write_block(&node, 2, 5));
            }
        }
        disk.set(Schedule::WORKS).expect("told to work");
        assert_eq!(read_block(&node, 5).expect("read"), [1; 4096], "{engine}");
        write_block(&node, 3, 5).expect("written");
        assert_eq!(read_block(&node, 5).expect("read"), [3; 4096], "{engine}");
        assert_eq!(device.show()["counters"][0]["errors"], 4, "{engine}");
        device.del();
    }
    nothing_is_left();
}

#[test]
fn a_mirror_takes_out_a_leg_whose_writes_fail() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    for engine in ENGINES {
        let disk = flaky();
        let path = disk.path().to_str().expect("UTF-8");
        let device =
            Added::new(&["mirror", "--no-record", path, files.name(0), "--engine", engine]);
        // Long enough to meet the fault, and seldom enough to leave the guest's processors to others.
        let load = device.load("7m", 3, &["--rate_iops=60"]);
        disk.set(Schedule::fails(Fault::ErrorWrites)).expect("told to fail");
        // Where the guest is so slow that the load has ended before, this meets the fault.
        write_block(&device.node(), 6, (7 << 20) / 4096).expect("written");
        verified(load);
        let show = device.show();
        assert_eq!(show["failed_legs"], serde_json::json!([0]), "{engine}");
        assert_eq!(show["counters"][0]["errors"], 0, "{engine}");
        // Well again, it stays out.
        disk.set(Schedule::WORKS).expect("told to work");
        write_block(&device.node(), 7, 0).expect("written");
        assert_eq!(read_block(&device.node(), 0).expect("read"), [7; 4096], "{engine}");
        device.del();
        assert_ne!(read_block(path, 0).expect("read"), [7; 4096], "{engine}: it is left alone");
        assert_eq!(fs::read(&files.paths[0]).expect("a file")[..4096], [7; 4096], "{engine}");
    }
    nothing_is_left();
}

#[test]
fn a_backing_that_vanishes_under_load_gives_errors() {
    driver_or_skip!();
    for engine in ENGINES {
        let disk = NullDisk::new(64, 512, 1).expect("a disk");
        let path = disk.path().to_str().expect("UTF-8").to_owned();
        let device = Added::new(&["loop", &path, "--engine", engine]);
        let load = device.load("32m", 60, &["--verify=0"]);
        drop(disk);
        let output = load.wait_with_output().expect("fio ends");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{engine}: its disk is gone");
        // A disk that goes has no room any more before it has no requests.
        let told = ["Input/output error", "No space left on device"];
        assert!(told.iter().any(|told| errors.contains(told)), "{engine}: {errors}");
        let error = read_block(&device.node(), 1).expect_err("its disk is gone");
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{engine}");
        device.del();
        assert!(!Path::new(&path).exists(), "{engine}: {path} is held");
    }
    nothing_is_left();
}
