//! What a later server finds: the same files or others, its state whole or damaged.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, chown};
use std::path::Path;

use handoff_block::{Engine, Kind, Server, Spec, Start, policy};
use handoff_testbed::{Disk as _, LoopDisk};
use serde_json::Value;

use super::device::{Device, Files, MIB, driver_or_skip, read_at, run, spec, write_at};
use super::fixture;
use super::policies::{object, with_policy};

/// A device whose server was killed, and its number.
fn orphan(spec: &Spec) -> u32 {
    let (mut server, id) = fixture::server(spec);
    server.kill().and_then(|()| server.wait()).expect("killed");
    id
}

fn refused(spec: &Spec, id: u32) -> String {
    Server::start(spec, Start::Recover(id)).expect_err("refused").to_string()
}

#[test]
fn a_server_that_follows_takes_no_other_files() {
    driver_or_skip!();
    let files = Files::new(&[MIB, MIB]);
    let spec = Spec { direct: true, ..spec(Kind::Linear, &files, Engine::UserAuto) };
    let id = orphan(&spec);
    let (path, aside) = (&files.paths[1], files.directory.path().join("aside"));
    fs::rename(path, &aside).expect("moved");
    fs::copy(&aside, path).expect("as long and with the same in it");
    let line = refused(&spec, id);
    assert!(line.contains("backing-1 is another file or disk"), "{line}");
    fs::rename(&aside, path).expect("back in its place");
    let length = |len| fs::File::options().write(true).open(path).expect("opens").set_len(len);
    length(MIB / 2).expect("shrunk");
    let line = refused(&spec, id);
    assert!(line.contains("has 524288 bytes, and had 1048576"), "{line}");
    length(2 * MIB).expect("longer than it was");
    let device = Device::recovered(&spec, id);
    write_at(&device.open(), MIB, &[3; 4096]).expect("written");
    device.end();
    assert_eq!(files.read(1)[..4096], [3; 4096]);
}

#[test]
fn a_server_that_follows_takes_no_other_disk_of_the_same_number() {
    driver_or_skip!();
    let disk = || LoopDisk::new(Path::new("/var/tmp"), 4 * MIB, 512, false).expect("a disk");
    let first = disk();
    let mut files = Files::new(&[]);
    files.paths.push(first.path().to_owned());
    let spec = spec(Kind::Loop, &files, Engine::UserAuto);
    let id = orphan(&spec);
    drop(first);
    // The kernel releases in the background what the killed server held.
    let name = files.paths[0].file_name().expect("a name");
    while Path::new("/sys/block").join(name).join("loop").exists() {
        std::thread::yield_now();
    }
    let second = disk();
    assert_eq!(second.path(), files.paths[0], "the number is given again");
    let line = refused(&spec, id);
    assert!(line.contains("is another file or disk"), "{line}");
    remove(id);
}

/// Removes a device without a server.
fn remove(id: u32) {
    let mut control = handoff_block::Control::open().expect("the driver");
    control.stop(id).expect("stopped");
    handoff_block::state::Directory::of(id).remove();
    control.remove(id).expect("removed");
}

#[test]
fn a_server_that_follows_takes_no_new_file_of_the_old_inode() {
    driver_or_skip!();
    let files = Files::new(&[MIB]);
    let spec = spec(Kind::Loop, &files, Engine::UserAuto);
    let id = orphan(&spec);
    let path = &files.paths[0];
    let inode = || fs::metadata(path).expect("there").ino();
    let old = inode();
    fs::remove_file(path).expect("removed");
    // The file system gives the number again, at the latest when its journal is written.
    let others = tempfile::tempdir_in(files.directory.path()).expect("a directory");
    let directory = fs::File::open(others.path()).expect("opens");
    let is_old = (0..1000).any(|number| {
        fs::File::create(path).and_then(|file| file.set_len(MIB)).expect("a new file");
        let is_old = inode() == old;
        if !is_old {
            fs::rename(path, others.path().join(number.to_string())).expect("aside");
            // Only this file system: the device may owe the kernel its partition table, and nobody serves it.
            rustix::fs::syncfs(&directory).expect("synced");
        }
        is_old
    });
    assert!(is_old, "the number is not given again");
    let line = refused(&spec, id);
    assert!(line.contains("backing-0 is another file or disk"), "{line}");
    remove(id);
}

#[test]
fn what_an_older_program_wrote_is_read_and_what_a_newer_one_wrote_is_not() {
    driver_or_skip!();
    /// Where a state has the number of its layout.
    const NUMBER: u64 = 4092;
    let files = Files::new(&[MIB, MIB]);
    let spec = spec(Kind::Mirror, &files, Engine::UserAuto);
    let id = orphan(&spec);
    let [record, state] =
        ["spec.json", "state"].map(|name| format!("/run/handoff/blk/{id}/{name}"));
    let text = fs::read_to_string(&record).expect("a record");
    let mut old: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(old["version"], 2);
    let number = |number: u32| {
        let state = fs::File::options().write(true).open(&state).expect("opens");
        state.write_all_at(&number.to_ne_bytes(), NUMBER).expect("written");
    };
    let newer = "a newer handoff wrote it (layout 99, and this one reads up to 2): use that one";
    number(99);
    let line = refused(&spec, id);
    assert!(line.contains(newer), "{line}");
    number(0);
    old["version"] = 99.into();
    fs::write(&record, old.to_string()).expect("written");
    let line = refused(&spec, id);
    assert!(line.contains(newer), "{line}");
    // As the layout was before it had a number.
    old.as_object_mut().expect("an object").remove("version");
    for part in old["parts"].as_array_mut().expect("a list") {
        let part = part.as_object_mut().expect("an object");
        for new in ["birth", "handle", "below"] {
            assert!(part.remove(new).is_some(), "{new}");
        }
    }
    fs::write(&record, old.to_string()).expect("written");
    let device = Device::recovered(&spec, id);
    write_at(&device.open(), 0, &[5; 4096]).expect("written");
    let text = fs::read_to_string(&record).expect("a record");
    assert!(text.contains("\"version\": 2"), "{text}");
    device.end();
    for leg in 0..2 {
        assert_eq!(files.read(leg)[..4096], [5; 4096]);
    }
}

#[test]
fn a_damaged_state_is_refused() {
    driver_or_skip!();
    let files = Files::new(&[MIB, MIB]);
    let spec = Spec { chunk: 8192, ..spec(Kind::Stripe, &files, Engine::UserAuto) };
    let (mut server, id) = fixture::server(&spec);
    let disk = fs::File::options().write(true).open(format!("/dev/ublkb{id}")).expect("opens");
    write_at(&disk, 8192, &[9; 8192]).and_then(|()| disk.sync_all()).expect("written");
    drop(disk);
    server.kill().and_then(|()| server.wait()).expect("killed");
    let whole = |name: &str| {
        let path = format!("/run/handoff/blk/{id}/{name}");
        (path.clone(), fs::read(path).expect("a file"))
    };
    let (state, record) = (whole("state"), whole("spec.json"));
    let changed = |place: usize| {
        let mut bytes = state.1.clone();
        bytes[place] ^= 1;
        bytes
    };
    // The files' number, the chunk, a size; half of it; another chunk in the record.
    let text = String::from_utf8(record.1.clone()).expect("JSON");
    for (path, damaged) in [
        (&state.0, changed(4)),
        (&state.0, changed(12)),
        (&state.0, changed(26)),
        (&state.0, state.1[..state.1.len() / 2].to_vec()),
        (&state.0, Vec::new()),
        (&record.0, text.replace("\"chunk\": 8192", "\"chunk\": 4096").into_bytes()),
        (&record.0, text.replace("1048576", "1044480").into_bytes()),
        (&record.0, record.1[..record.1.len() / 2].to_vec()),
    ] {
        fs::write(path, damaged).expect("written");
        let line = refused(&spec, id);
        assert!(line.contains(&format!("device {id}")), "{line}");
        for (path, bytes) in [&state, &record] {
            fs::write(path, bytes).expect("written");
        }
    }
    let device = Device::recovered(&spec, id);
    assert_eq!(read_at(&device.open(), 8192, 8192).expect("read"), [9; 8192]);
    device.end();
}

#[test]
fn maps_are_pinned_in_directories_of_our_own() {
    driver_or_skip!();
    let files = Files::new(&[4 * MIB]);
    let spec = Spec { id: Some(41), ..with_policy(&files, object!("sparse"), 8 * MIB) };
    let pins = policy::pins(41);
    if run("mount", &[]).contains(" on /sys/fs/bpf ") {
        run("umount", &["/sys/fs/bpf"]);
    }
    // The file system is there once a policy was.
    Device::of(&spec).end();
    let mode = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).expect("there").mode() & 0o777
    };
    fs::create_dir(&pins).and_then(|()| chown(&pins, Some(1), Some(1))).expect("another's");
    let line = Server::start(&spec, Start::New).expect_err("refused").to_string();
    assert!(line.contains("is somebody else's"), "{line}");
    fs::remove_dir(&pins).expect("removed");
    let device = Device::of(&spec);
    assert_eq!(mode(&pins), 0o700);
    assert_eq!(mode(pins.parent().expect("a file system")), 0o700);
    device.end();
}
