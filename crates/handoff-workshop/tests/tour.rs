//! `handoff tour`, as a user meets it.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);

fn tour(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"));
    command.args(["tour", "--json", "--size", "4m", "--directory"]).arg(directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn report(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn hop<'a>(chain: &'a Value, from: &str, to: &str) -> &'a Value {
    let hops = chain["hops"].as_array().expect("hops");
    let found = hops.iter().find(|hop| hop["from"] == from && hop["to"] == to);
    found.unwrap_or_else(|| panic!("no hop {from} -> {to} in {chain:#}"))
}

/// Nothing that was not counted passes for nothing copied.
fn copied_by_witness(hop: &Value) -> u64 {
    hop["copied_by_witness"].as_u64().unwrap_or_else(|| panic!("not counted: {hop}"))
}

/// Until `done`, or too long.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).expect("a directory").next().is_none()
}

/// A tour that has made its directory in `directory`.
fn begun(directory: &Path) -> Child {
    let mut child = tour(directory).spawn().expect("starts");
    until("it makes nothing", || {
        // Between two looks it may make all, and end.
        if !matches!(child.try_wait(), Ok(None)) {
            child = tour(directory).spawn().expect("starts");
        }
        !is_empty(directory)
    });
    child
}

fn send(signal: rustix::process::Signal, child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("is there");
}

mod native {
    use rustix::process::Signal;

    use super::*;

    #[test]
    fn what_is_missing_is_left_out_and_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let report = report(&tour(directory.path()).output().expect("runs"));
        let chains = report["chains"].as_array().expect("chains");
        assert!(!chains.is_empty(), "{report:#}");
        for chain in chains {
            assert_eq!(chain["bytes"], 4 << 20);
            for hop in chain["hops"].as_array().expect("hops") {
                let copied = &hop["copied_by_report"];
                let most = hop["bytes"].as_u64().expect("a number");
                let is_part = || copied.as_u64().is_some_and(|copied| copied <= most);
                assert!(copied.is_null() || is_part(), "{hop}");
            }
        }
        let has_devices = Path::new("/dev/ublk-control").exists();
        let notes = report["notes"].to_string();
        assert_eq!(notes.contains("no block devices of ours"), !has_devices, "{notes}");
        assert!(is_empty(directory.path()), "something is left");
    }

    #[test]
    fn a_signal_ends_it_and_everything_goes() {
        let directory = tempfile::tempdir().expect("a directory");
        let child = begun(directory.path());
        send(Signal::TERM, &child);
        let output = child.wait_with_output().expect("ends");
        assert!(is_empty(directory.path()), "something is left");
        // It may just have been done.
        assert!(matches!(output.status.code(), Some(0 | 143)), "{output:?}");
    }

    #[test]
    fn mistakes_name_themselves() {
        let refused = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_handoff-workshop"));
            let output = command.arg("tour").args(arguments).output().expect("runs");
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        assert!(refused(&["--size", "5000"]).contains("multiples of 4k"));
        assert!(refused(&["--part", "/dev/null"]).contains("four times, not 1"));
        assert!(refused(&["--lab", "--directory", "/tmp"]).contains("--directory"));
    }
}

mod guest {
    use std::os::unix::process::ExitStatusExt as _;

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    fn devices() -> usize {
        let names = std::fs::read_dir("/dev").expect("devices").flatten().map(|it| it.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("ublkb")).count()
    }

    #[test]
    fn packets_reach_an_nvme_disk_and_nobody_copies() {
        const DISK: &str = "/dev/disk/by-id/nvme-tests";
        let mut mkfs = Command::new("mkfs.ext4");
        let made = mkfs.args(["-q", "-F", DISK, "512M"]).output().expect("starts");
        assert!(made.status.success(), "{made:?}");
        let directory = tempfile::tempdir().expect("a directory");
        mount(DISK, directory.path(), c"ext4", MountFlags::empty(), None).expect("mounts");
        let output = tour(directory.path()).output().expect("runs");
        unmount(directory.path(), UnmountFlags::empty()).expect("nobody uses it");
        let report = report(&output);
        let tcp = &report["chains"][0];
        let hops = tcp["hops"].as_array().expect("hops");
        let staged = |hop: &Value| hop["from"] == "memory" && hop["to"] == "memory";
        assert!(!hops.iter().any(staged), "{tcp:#}");
        for (from, to) in [("ring", "socket"), ("socket", "memory"), ("memory", "file")] {
            let hop = hop(tcp, from, to);
            assert_eq!((&hop["bytes"], &hop["copied_by_report"]), (&(4 << 20).into(), &0.into()));
            assert!(copied_by_witness(hop) < 4096, "{hop}");
        }
        let server = hop(tcp, "block device", "files (stripe)");
        assert!(copied_by_witness(server) < 4096, "{server}");
    }

    #[test]
    fn every_mechanism_is_gone_through_and_no_socket_copies() {
        let directory = tempfile::tempdir().expect("a directory");
        let report = report(&tour(directory.path()).output().expect("runs"));
        assert_eq!(report["notes"].as_array().map(Vec::len), Some(0), "{report:#}");
        let tcp = &report["chains"][0];
        assert_eq!(tcp["name"], "TCP");
        for (from, to, engine) in [
            ("files (linear)", "page cache", "ublk bpf"),
            ("file", "ring", "get-buf"),
            ("ring", "socket", "uring-zc"),
            ("NIC", "NIC", "wire"),
            ("socket", "memory", "zcrx"),
            ("memory", "file", "uring-write-fixed"),
            ("block device", "files (stripe)", "ublk bpf"),
        ] {
            let hop = hop(tcp, from, to);
            assert_eq!(hop["engine"], engine, "{hop}");
            assert!(hop["bytes"].as_u64() >= Some(4 << 20), "{hop}");
        }
        for (from, to) in [("ring", "socket"), ("socket", "memory")] {
            // Not one chunk; the kernel may pass a short packet of its own on meanwhile (60 bytes, seen).
            assert!(copied_by_witness(hop(tcp, from, to)) < 4096, "{tcp:#}");
        }
        let rds = &report["chains"][1];
        assert_eq!(rds["name"], "RDS");
        let sent = hop(rds, "memory", "socket");
        assert_eq!(sent["engine"], "rds-kernel");
        // What the two programs tell each other, and headers.
        assert!(copied_by_witness(sent) < 400 << 10, "{sent}");
        let received = hop(rds, "socket", "memory");
        assert!(copied_by_witness(received) >= 4 << 20, "{received}");
        let dma = hop(tcp, "NIC", "NIC");
        assert_eq!(
            (&dma["simulated_dma"], &dma["copied_by_witness"]),
            (&true.into(), &Value::Null)
        );
        // The devices are made of files in memory, which take O_DIRECT and copy all the same: the
        // witness has to see it where no report does.
        let written = hop(tcp, "memory", "file");
        assert_eq!(written["copied_by_report"], 0, "{written}");
        assert!(copied_by_witness(written) >= 4 << 20, "{written}");
        assert!(is_empty(directory.path()) && devices() == 0, "something is left");
    }

    #[test]
    fn a_kill_leaves_no_device() {
        let directory = tempfile::tempdir().expect("a directory");
        until("it is always done before", || {
            let mut child = begun(directory.path());
            until("it makes no device", || devices() > 0 || !matches!(child.try_wait(), Ok(None)));
            child.kill().expect("ours");
            child.wait().expect("ends").signal().is_some()
        });
        until("a device is left", || devices() == 0);
        until("the state of a device is left", || is_empty("/run/handoff/blk".as_ref()));
    }
}
