//! Holes stay holes, here and over a network; and what a copy keeps beside the bytes.

use std::fs::{self, File, FileTimes, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use handoff_testbed::running::Running;

use crate::session::{cp, path, pattern, run, transfer};

const LEN: u64 = 5 << 30;

/// A file of 5 GiB with a little at its beginning, in its middle and before its end.
fn sparse(path: &Path) -> File {
    let file = File::create_new(path).unwrap();
    file.set_len(LEN).unwrap();
    for offset in [0, 1 << 30, LEN - 300_000] {
        file.write_all_at(&pattern(100_000), offset).unwrap();
    }
    file
}

/// A copy has the bytes of the source, and no more room.
fn same(copy: &Path) {
    let status = fs::metadata(copy).unwrap();
    assert_eq!(status.len(), LEN);
    assert!(status.blocks() * 512 < 2 << 20, "{} bytes of disk", status.blocks() * 512);
    let copy = File::open(copy).unwrap();
    for (offset, filled) in
        [(0, true), (1 << 30, true), (LEN - 300_000, true), (LEN - 100_000, false)]
    {
        let mut bytes = vec![1; 100_000];
        copy.read_exact_at(&mut bytes, offset).unwrap();
        assert!(bytes == if filled { pattern(100_000) } else { vec![0; 100_000] }, "at {offset}");
    }
}

#[test]
fn holes_are_left_out_on_one_machine() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    sparse(&source);
    for more in [&[][..], &["--lend", "never"], &["--direct"]] {
        let args = [&["--json", "--force", path(&source), path(&copy)], more].concat();
        let report = run(&args).report();
        // Blocks that are shared are not looked through for holes.
        let shared = more.is_empty() && report["hops"][0]["engine"] == "reflink";
        let least = if shared { 0 } else { LEN - (2 << 20) };
        let most = if shared { 0 } else { LEN - 300_000 };
        let holes = report["holes"].as_u64().unwrap();
        assert!(report["bytes"] == LEN && (least..=most).contains(&holes), "{report}");
        same(&copy);
    }
    // All of it is a hole.
    File::create(&source).unwrap().set_len(LEN).unwrap();
    assert_eq!(run(&["--force", path(&source), path(&copy)]).code, Some(0));
    let status = fs::metadata(&copy).unwrap();
    assert_eq!((status.len(), status.blocks()), (LEN, 0));
}

#[test]
fn a_copy_that_ends_in_a_hole_is_read_back() {
    const SHORT: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let file = File::create_new(&source).unwrap();
    file.set_len(SHORT).unwrap();
    for filled in [false, true] {
        if filled {
            file.write_all_at(&pattern(5000), 100_000).unwrap();
        }
        for more in [&["--verify"][..], &["--verify", "--direct"]] {
            let args = [&["--json", "--force", path(&source), path(&copy)], more].concat();
            assert_eq!(run(&args).report()["bytes"], SHORT, "{filled} {more:?}");
            assert!(fs::read(&copy).unwrap() == fs::read(&source).unwrap());
        }
    }
}

#[test]
fn holes_are_left_out_over_a_network() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    sparse(&source);
    for more in [&[][..], &["--verify"], &["--streams", "4", "--verify"]] {
        let sender = [&["--json"], more].concat();
        let (received, sent) =
            transfer(None, "127.0.0.1", &source, &copy, &["--json", "--force"], &sender);
        let (received, sent) = (received.report(), sent.report());
        assert_eq!(received["holes"], sent["holes"]);
        assert!(sent["holes"].as_u64() > Some(LEN - (2 << 20)), "{sent}");
        assert_eq!((&received["bytes"], &received["checksum"]), (&LEN.into(), &sent["checksum"]));
        same(&copy);
    }
}

#[test]
fn what_takes_its_bytes_in_order_gets_the_zeros_of_holes() {
    const SHORT: usize = 3 << 20;
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    let file = File::create_new(&source).unwrap();
    file.set_len(SHORT as u64).unwrap();
    file.write_all_at(&[7; 4096], 1 << 20).unwrap();
    let mut expected = Vec::new();
    File::open(&source).unwrap().read_to_end(&mut expected).unwrap();
    let receiver = Running::start(&mut cp(&["tcp-listen://127.0.0.1:0", "-"]));
    assert_eq!(run(&["--verify", path(&source), &receiver.address()]).code, Some(0));
    let received = receiver.end();
    assert_eq!(received.code, Some(0), "{received:?}");
    assert!(received.stdout == expected);
    assert!(run(&[path(&source), "-"]).stdout == expected);
}

#[test]
fn a_copy_keeps_time_and_mode_where_that_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    fs::write(&source, pattern(10_000)).unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o640)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::options()
        .write(true)
        .open(&source)
        .unwrap()
        .set_times(FileTimes::new().set_modified(then))
        .unwrap();
    let kept = || {
        let status = fs::metadata(&copy).unwrap();
        (status.modified().unwrap() == then, status.mode() & 0o777 == 0o640)
    };
    for more in [&[][..], &["--verify"]] {
        let args = [&["--preserve", "--force", path(&source), path(&copy)], more].concat();
        assert_eq!(run(&args).code, Some(0));
        assert_eq!(kept(), (true, true), "{more:?}");
        assert_eq!(run(&["--force", path(&source), path(&copy)]).code, Some(0));
        assert_eq!(kept(), (false, true));
    }
    for (receiver, sender, all) in [
        (&["-f", "-p"][..], &["-p"][..], true),
        (&["-f"], &["-p"], false),
        (&["-f", "-p"], &[], false),
    ] {
        // Its mode would stay.
        fs::remove_file(&copy).unwrap();
        let (received, sent) = transfer(None, "127.0.0.1", &source, &copy, receiver, sender);
        assert_eq!((received.code, sent.code), (Some(0), Some(0)), "{received:?} {sent:?}");
        assert_eq!(kept(), (all, all), "{receiver:?} {sender:?}");
        assert_eq!(sent.stderr.contains("on one side"), !all, "{sent:?}");
    }
}
