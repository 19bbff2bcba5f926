//! Copies on one machine: files, pipes and devices.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use handoff_testbed::running::Running;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::session::{cp, names, path, pattern, run};
use crate::terminal::{Terminal, shown};

#[test]
fn file_to_file() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    for len in [0, 1, 4096, 10_000_001] {
        for more in [&[][..], &["--verify", "--sync"], &["--direct", "--verify", "--huge"]] {
            fs::write(&source, pattern(len)).unwrap();
            fs::set_permissions(&source, Permissions::from_mode(0o751)).unwrap();
            let mut args = vec!["--json", "--force", path(&source), path(&destination)];
            args.extend(more);
            let report = run(&args).report();
            assert!(fs::read(&destination).unwrap() == pattern(len), "{len} {more:?}");
            assert_eq!(fs::metadata(&destination).unwrap().permissions().mode() & 0o777, 0o751);
            assert_eq!(report["bytes"], len);
            assert_eq!(report["checksum"].is_string(), more.contains(&"--verify"));
            let through_cache = if more.contains(&"--direct") && len > 0 {
                let notes = report["notes"].as_array().unwrap();
                let refused = notes.iter().any(|note| note.as_str().unwrap().contains("in spite"));
                if refused { len } else { len % 4096 }
            } else {
                len
            };
            let hops = report["hops"].as_array().unwrap();
            // Unless something more is asked for, the file system copies. An empty file may be one of /proc.
            if more.is_empty() && len > 0 {
                let engine = hops[0]["engine"].as_str().unwrap();
                assert!(["copy_file_range", "reflink"].contains(&engine), "{report}");
                let [zero_copy, unknown] =
                    ["zero_copy", "unknown"].map(|what| hops[0][what].as_u64().unwrap());
                assert_eq!((hops.len(), zero_copy + unknown), (1, len as u64), "{report}");
                continue;
            }
            for hop in hops {
                assert_eq!(hop["copied"], through_cache, "{hop}");
                assert_eq!(hop["zero_copy"], len - through_cache, "{hop}");
            }
        }
    }
    assert_eq!(names(directory.path()), ["copy", "source"]);
}

#[test]
fn a_destination_that_exists_stays_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, "new").unwrap();
    fs::write(&destination, "old").unwrap();
    let args = [path(&source), path(&destination)];
    run(&args).says(1, "exists: --force replaces it");
    run(&["tcp-listen://127.0.0.1:0", path(&destination)]).says(1, "exists");
    assert_eq!(fs::read(&destination).unwrap(), b"old");
    assert_eq!(run(&["-f", args[0], args[1]]).code, Some(0));
    assert_eq!(fs::read(&destination).unwrap(), b"new");
    run(&["-f", args[1], args[1]]).says(1, "is the source itself");
    assert_eq!(fs::read(&destination).unwrap(), b"new");
    assert_eq!(names(directory.path()), ["copy", "source"]);
}

#[test]
fn pipe_to_pipe() {
    let mut running = Running::start(cp(&["-", "-", "--json"]).stdin(Stdio::piped()));
    let mut input = running.input();
    let writer = std::thread::spawn(move || input.write_all(&pattern(3_000_000)).unwrap());
    let ended = running.end();
    writer.join().unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout == pattern(3_000_000));
    let report: serde_json::Value = serde_json::from_str(&ended.stderr).unwrap();
    assert_eq!((&report["bytes"], &report["destination"]), (&3_000_000.into(), &"-".into()));
}

#[test]
fn streams_that_are_no_pipes() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(1_000_000)).unwrap();
    // A file as standard input, an empty-looking file of /proc, a device as destination.
    let mut copy = cp(&["-", path(&destination)]);
    copy.stdin(fs::File::open(&source).unwrap());
    assert_eq!(Running::start(&mut copy).end().code, Some(0));
    assert!(fs::read(&destination).unwrap() == pattern(1_000_000));
    let mut copy = cp(&["--json", "-f", "/dev/stdin", path(&destination)]);
    let mut copy = Running::start(copy.stdin(Stdio::piped()));
    copy.input().write_all(b"bytes").unwrap();
    assert_eq!(copy.end().report()["hops"][0]["from"], "pipe");
    let report = run(&["--json", "-f", "/proc/version", path(&destination)]).report();
    assert_eq!(report["hops"][0]["from"], "file");
    assert!(!report["hops"][0]["reason"].as_str().unwrap().contains("pipe"), "{report}");
    assert_eq!(fs::read(&destination).unwrap(), fs::read("/proc/version").unwrap());
    assert_eq!(run(&["-f", path(&source), "/dev/null"]).code, Some(0));
    run(&[path(&source), "/dev/full"]).says(1, "No space left on device");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

/// Files of /sys say that they have a page.
#[test]
fn a_file_with_fewer_bytes_than_its_length_is_read_to_its_end() {
    const SHORT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Ok(expected) = fs::read(SHORT) else { handoff_testbed::skip!("no such file of /sys") };
    assert!((expected.len() as u64) < fs::metadata(SHORT).unwrap().len());
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    for more in [&[][..], &["--verify"], &["--direct"]] {
        let args = [&["-f", SHORT, path(&copy)], more].concat();
        let ended = run(&args);
        assert_eq!(
            (ended.code, fs::read(&copy).unwrap()),
            (Some(0), expected.clone()),
            "{ended:?}"
        );
    }
    assert_eq!(run(&[SHORT, "-"]).stdout, expected);
}

#[test]
fn a_source_that_is_cut_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (source, destination) = (directory.path().join("source"), directory.path().join("copy"));
    let file = fs::File::create(&source).unwrap();
    // A source that takes long to read, so that it can be cut meanwhile: the copy waits for room in
    // a pipe that nobody reads yet.
    file.set_len(8 << 20).unwrap();
    let child = cp(&[path(&source), "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let out = child.stdout.as_ref().unwrap();
    let mut begun = [PollFd::new(out, PollFlags::IN)];
    rustix::event::poll(&mut begun, None).unwrap();
    file.set_len(1 << 20).unwrap();
    let output = {
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut all).unwrap();
        child.wait_with_output().unwrap()
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("was cut while it was read"), "{stderr}");
    assert!(!destination.exists());
}

#[test]
fn the_progress_line_stays_below_what_is_said_and_goes_at_a_signal() {
    let mut terminal = Terminal::new();
    let mut command = cp(&["-", "tcp-listen://127.0.0.1:0"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(terminal.output());
    let mut copy = command.env("TERM", "xterm").spawn().unwrap();
    // It has the terminal open, too.
    drop(command);
    let mut written = terminal.progress_below("handoff: listening on tcp://");
    kill_process(Pid::from_child(&copy), Signal::INT).unwrap();
    assert_eq!(copy.wait().unwrap().code(), Some(130));
    written.push_str(&terminal.rest());
    let lines = shown(&written);
    assert_eq!(lines[1..], ["handoff: stopped by SIGINT", ""], "{lines:?}");
}

#[test]
fn the_progress_line_counts_in_millions_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::write(&source, pattern(3_000_000)).unwrap();
    // With an end that is known, and without.
    for source in [path(&source), "-"] {
        let mut terminal = Terminal::new();
        let mut command = cp(&[source, "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(terminal.output());
        let mut copy = command.env("TERM", "xterm").spawn().unwrap();
        // It has the terminal open, too.
        drop(command);
        let mut input = copy.stdin.take().unwrap();
        // It fails where the copy does not read it, or not to the end.
        std::thread::spawn(move || input.write_all(&pattern(3_000_000)));
        // The copy then waits for room.
        copy.stdout.as_mut().unwrap().read_exact(&mut vec![0; 1_500_000]).unwrap();
        let line = terminal.line("a rate", |line| line.contains("B/s") && !line.contains(" 0 B"));
        let unit = line.split(' ').find(|word| word.ends_with("/s")).unwrap();
        assert!(["B/s", "kB/s", "MB/s", "GB/s"].contains(&unit), "{line}");
        assert!(!line.contains("iB"), "{line}");
        copy.kill().unwrap();
        copy.wait().unwrap();
    }
}

#[test]
fn named_pipes_are_waited_for_until_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    for args in [[path(&fifo), "-"], ["/proc/version", path(&fifo)]] {
        let waiting = Running::start(&mut cp(&args));
        waiting.handles(Signal::INT);
        waiting.signal(Signal::INT);
        waiting.end().says(130, "stopped by SIGINT");
    }
    let reader = Running::start(&mut cp(&[path(&fifo), "-"]));
    let writer = run(&["/proc/version", path(&fifo)]);
    let read = reader.end();
    assert_eq!((writer.code, read.code), (Some(0), Some(0)), "{writer:?} {read:?}");
    assert_eq!(read.stdout, fs::read("/proc/version").unwrap());
}
