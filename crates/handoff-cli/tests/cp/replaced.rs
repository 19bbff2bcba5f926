//! What stays of a file that is replaced, what a new one gets, and files that nothing can replace.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use handoff_testbed::helpers::eventually;
use handoff_testbed::running::{Ended, Running};
use handoff_testbed::skip;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::process::Signal;

use crate::refused::{for_nobody, nobodys};
use crate::session::{cp, names, path, pattern, run, transfer};

const ACL: &str = "system.posix_acl_access";

/// User 1000 may read, beside the owner: version, then tag, bits and id of each entry.
fn acl() -> Vec<u8> {
    let entries = [
        (0x01u16, 6u16, u32::MAX),
        (0x02, 4, 1000),
        (0x04, 0, u32::MAX),
        (0x10, 4, u32::MAX),
        (0x20, 0, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set(file: impl AsFd, name: &str, value: &[u8]) {
    fsetxattr(file, name, value, XattrFlags::empty()).unwrap();
}

fn get(file: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 256];
    let len = fgetxattr(File::open(file).unwrap(), name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().mode() & 0o7777
}

/// A shell's command; `$H` is ours.
fn shell(script: &str, directory: &Path) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(directory).stdin(Stdio::null());
    Running::start(command.env("H", env!("CARGO_BIN_EXE_handoff"))).end()
}

#[test]
fn a_replaced_file_leaves_its_mode_owner_and_attributes_and_keeps_its_other_names() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let other = directory.path().join("other");
    fs::write(&source, "new").unwrap();
    fs::set_permissions(&source, Permissions::from_mode(0o644)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for over_network in [false, true] {
        let old = File::create_new(&copy).unwrap();
        set(&old, "user.note", b"mine");
        set(&old, ACL, &acl());
        if is_root {
            chown(&copy, Some(1234), Some(5678)).unwrap();
        }
        fs::set_permissions(&copy, Permissions::from_mode(0o4440)).unwrap();
        fs::hard_link(&copy, &other).unwrap();
        let owner = |file: &Path| fs::metadata(file).map(|it| (it.uid(), it.gid())).unwrap();
        let owned = owner(&copy);
        if over_network {
            let (there, here) = transfer(None, "127.0.0.1", &source, &copy, &["-f"], &[]);
            assert_eq!((there.code, here.code), (Some(0), Some(0)), "{there:?} {here:?}");
        } else {
            assert_eq!(run(&["-f", path(&source), path(&copy)]).code, Some(0));
        }
        assert_eq!(fs::read(&copy).unwrap(), b"new");
        // Bytes of somebody else do not get the old ones' privileges.
        assert_eq!((mode(&copy), owner(&copy)), (0o440, owned), "{over_network}");
        assert_eq!(get(&copy, "user.note").as_deref(), Some(&b"mine"[..]));
        let theirs = get(&copy, ACL).expect("an ACL is left");
        assert_eq!((theirs.len(), mode(&other)), (acl().len(), 0o4440), "{theirs:?}");
        assert_eq!(fs::read(&other).unwrap(), b"");
        fs::remove_file(&other).unwrap();
        fs::remove_file(&copy).unwrap();
    }
    assert_eq!(names(directory.path()), ["source"]);
}

#[test]
fn a_new_file_follows_the_umask_unless_it_is_to_be_as_its_source() {
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("source"), directory.path().join("copy"));
    let old = File::create_new(&source).unwrap();
    old.set_permissions(Permissions::from_mode(0o666)).unwrap();
    for (args, expected) in [("", 0o600), ("--verify --direct", 0o600), ("--preserve", 0o666)] {
        let ended = shell(&format!("umask 077; $H cp {args} source copy"), directory.path());
        assert_eq!((ended.code, mode(&copy)), (Some(0), expected), "{args}: {ended:?}");
        fs::remove_file(&copy).unwrap();
    }
    // Even if nobody may write the new one.
    old.set_permissions(Permissions::from_mode(0o444)).unwrap();
    assert_eq!(run(&["--direct", path(&source), path(&copy)]).code, Some(0));
    assert_eq!(mode(&copy), 0o444);
    fs::remove_file(&copy).unwrap();
    old.set_permissions(Permissions::from_mode(0o640)).unwrap();
    set(&old, "user.note", b"its own");
    set(&old, ACL, &acl());
    for (args, kept) in [(&[][..], false), (&["--preserve"], true)] {
        assert_eq!(run(&[&["-f", path(&source), path(&copy)], args].concat()).code, Some(0));
        let there = [get(&copy, "user.note"), get(&copy, ACL)];
        assert_eq!(there.map(|it| it.is_some()), [kept; 2], "{args:?}");
    }
    let (there, here) = transfer(None, "127.0.0.1", &source, &copy, &["-f", "-p"], &["-p"]);
    assert_eq!((there.code, here.code), (Some(0), Some(0)), "{there:?}");
    assert!(here.stderr.contains("extended attributes of SRC are not sent"), "{here:?}");
}

#[test]
fn closed_standard_streams_are_errors_and_dev_stdout_is_for_bytes_only() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("source"), pattern(100_000)).unwrap();
    shell("$H cp source - >&-", directory.path())
        .says(1, "standard output can't be used: Bad file descriptor");
    shell("$H cp - copy <&-", directory.path())
        .says(1, "standard input can't be used: Bad file descriptor");
    let ended = shell("$H cp source /dev/stdout", directory.path());
    assert!(ended.code == Some(0) && ended.stdout == pattern(100_000), "{}", ended.stderr);
    assert_eq!(names(directory.path()), ["source"]);
}

#[test]
fn where_a_copy_goes_is_looked_at_first() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| path(&directory.path().join(name)).to_owned();
    fs::write(at("source"), "bytes").unwrap();
    symlink("nowhere", at("link")).unwrap();
    fs::hard_link(at("source"), at("other")).unwrap();
    // Not even a source that nobody writes yet is waited for.
    for (destination, words) in [
        ("sub/", "is no directory"),
        ("sub/.", "is no directory"),
        ("link", "is a symbolic link to nothing"),
    ] {
        run(&["-f", "tcp-listen://127.0.0.1:0", &at(destination)]).says(1, words);
        run(&["-f", &at("source"), &at(destination)]).says(1, words);
    }
    for name in ["source", "other"] {
        run(&["-f", &at("source"), &at(name)]).says(1, "is the source itself");
    }
    assert_eq!(names(directory.path()), ["link", "other", "source"]);
    assert_eq!(fs::read(at("source")).unwrap(), b"bytes");
}

#[test]
fn needs_root_a_file_that_nothing_can_replace_is_written_in_place() {
    let Some((directory, program)) = for_nobody() else {
        skip!("only root mounts and becomes another user")
    };
    let at = |name: &str| directory.path().join(name);
    let source = at("source");
    fs::write(&source, pattern(300_000)).unwrap();
    let closed = at("closed");
    fs::create_dir(&closed).unwrap();
    let (kept, theirs) = (closed.join("kept"), at("theirs"));
    for file in [&kept, &theirs] {
        fs::write(file, pattern(400_000)).unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o666)).unwrap();
    }
    // A directory that takes no files, and an owner that nobody can give.
    for (file, words) in [(&kept, "directory takes no new file"), (&theirs, "its owner and ACL")] {
        let inode = fs::metadata(file).unwrap().ino();
        for more in [&[][..], &["--verify"]] {
            let args = [&["-f", path(&source), path(file)], more].concat();
            let ended = Running::start(&mut nobodys(&program, &args)).end();
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(ended.stderr.contains("is written in place, because"), "{ended:?}");
            assert!(ended.stderr.contains(words), "{ended:?}");
            assert!(fs::read(file).unwrap() == pattern(300_000));
        }
        assert_eq!(fs::metadata(file).unwrap().ino(), inode);
    }
    let script = "mount --bind closed/kept closed/kept && $H cp -f source closed/kept && cmp source closed/kept";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).current_dir(directory.path());
    let ended = Running::start(command.env("H", env!("CARGO_BIN_EXE_handoff"))).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("it is mounted there"), "{ended:?}");
}

#[test]
fn needs_root_what_came_of_a_transfer_in_place_is_said_to_be_there() {
    let Some((directory, program)) = for_nobody() else { skip!("only root becomes another user") };
    let file = directory.path().join("theirs");
    fs::write(&file, pattern(400_000)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    let listen = ["-f", "tcp-listen://127.0.0.1:0", path(&file)];
    let receiver = Running::start(&mut nobodys(&program, &listen));
    let address = receiver.address();
    // Nothing is lost before somebody sends.
    assert_eq!(fs::metadata(&file).unwrap().len(), 400_000);
    let mut sender = cp(&["-", &address]);
    let mut sender = Running::start(sender.stdin(Stdio::piped()));
    let mut input = sender.input();
    input.write_all(&pattern(10)).unwrap();
    eventually("it has come", || (fs::read(&file).unwrap() == pattern(10)).then_some(()));
    sender.signal(Signal::KILL);
    receiver.end().says(1, "after 10 bytes: what came is written already");
}

mod guest {
    use handoff_testbed::topology_or_skip;
    use handoff_testbed::{Disk, LoopDisk};

    use super::*;

    /// What a device has is not 0 where the source has a hole.
    #[test]
    fn a_block_device_is_written_over_where_that_is_wanted() {
        const LEN: usize = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let disk = topology_or_skip!(LoopDisk::new(directory.path(), LEN as u64, 512, false));
        let source = directory.path().join("source");
        let file = File::create_new(&source).unwrap();
        file.set_len(LEN as u64 - 4096).unwrap();
        file.write_all_at(&pattern(5000), 200_000).unwrap();
        let expected = || [fs::read(&source).unwrap(), vec![0xff; 4096]].concat();
        run(&[path(&source), path(disk.path())]).says(1, "is a block device: --force writes over");
        for more in [&[][..], &["--direct", "--verify"]] {
            fs::write(disk.path(), vec![0xff; LEN]).unwrap();
            let ended = run(&[&["-f", path(&source), path(disk.path())], more].concat());
            assert_eq!(ended.code, Some(0), "{ended:?}");
            assert!(ended.stderr.contains("because it is a block device"), "{ended:?}");
            assert!(fs::read(disk.path()).unwrap() == expected(), "{more:?}");
            fs::write(disk.path(), vec![0xff; LEN]).unwrap();
            let args = [&["-f"], more].concat();
            let (there, here) = transfer(None, "127.0.0.1", &source, disk.path(), &args, &[]);
            assert_eq!((there.code, here.code), (Some(0), Some(0)), "{there:?} {here:?}");
            assert!(fs::read(disk.path()).unwrap() == expected(), "{more:?}");
        }
        file.set_len(LEN as u64 + 1).unwrap();
        run(&["-f", path(&source), path(disk.path())]).says(1, "no room for 1048577 bytes");
        assert!(
            fs::read(disk.path()).unwrap() == {
                file.set_len(LEN as u64 - 4096).unwrap();
                expected()
            }
        );
    }
}
