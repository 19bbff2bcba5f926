//! Devices that are made, shown and removed.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::command::{
    Added, ENGINES, Files, answer, blk, driver_or_skip, nothing_is_left, refused,
};

#[test]
fn a_device_is_added_shown_and_removed() {
    driver_or_skip!();
    let files = Files::new(2, 32 << 20);
    let device = Added::new(&["linear", files.name(0), files.name(1)]);
    assert_eq!(device.answer["size"], 64 << 20);
    assert_eq!(device.answer["engine"], "bpf", "{}", device.answer);
    let disk = fs::File::options().read(true).write(true).open(device.node()).expect("opens");
    disk.write_all_at(&[7; 8192], (32 << 20) - 4096).expect("written");
    disk.sync_all().expect("flushed");
    let show = device.show();
    assert_eq!(show["engine"], "bpf");
    assert_eq!(show["state"], "live");
    assert_eq!(show["copied_bytes"], serde_json::Value::Null, "nobody has counted");
    let operations = show["counters"][0]["operations"].as_array().expect("a list").clone();
    for name in ["read", "write", "flush"] {
        let row = operations.iter().find(|row| row["name"] == name);
        let row = row.unwrap_or_else(|| panic!("no {name}: {show}"));
        assert!(!row["answer"].as_array().expect("buckets").is_empty());
    }
    let list = answer(&["list"]);
    assert_eq!(list[0]["device"], device.node());
    let text = blk(&["show", &device.id.to_string()]);
    let text = String::from_utf8(text.stdout).expect("UTF-8");
    assert!(text.contains("engine       bpf") && text.contains("to the answer"), "{text}");
    assert!(text.contains("copied       unknown"), "{text}");
    drop(disk);
    device.del();
    for file in 0..2 {
        let bytes = fs::read(&files.paths[file]).expect("a file");
        let part = if file == 0 { &bytes[(32 << 20) - 4096..] } else { &bytes[..4096] };
        assert_eq!(part, [7; 4096]);
    }
    nothing_is_left();
}

#[test]
fn a_witness_sees_what_a_device_copies() {
    #[repr(C, align(4096))]
    struct Blocks([u8; 512 << 10]);
    driver_or_skip!();
    let files = Files::new(1, 64 << 20);
    let blocks = Box::new(Blocks([1; 512 << 10]));
    let copied = |arguments: &[&str]| {
        let device = Added::new(&[&["loop", files.name(0)], arguments].concat());
        let options =
            fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(device.node());
        let (disk, over) = (options.expect("opens"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // For a minute at most, and so seldom that the witness has time to attach.
                for place in (0..64 << 20).step_by(blocks.0.len()).cycle().take(1200) {
                    if over.load(Relaxed) {
                        break;
                    }
                    disk.write_all_at(&blocks.0, place).expect("written");
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let show = answer(&["show", &device.id.to_string(), "--witness", "2s"]);
            over.store(true, Relaxed);
            ["copied_bytes", "moved_bytes"].map(|key| show[key].as_u64().expect("a number") as f64)
        })
    };
    let [bytes, moved] = copied(&["--engine", "bpf"]);
    assert!(bytes / moved < 0.02, "{bytes} of {moved} by bpf");
    let [bytes, moved] = copied(&["--engine", "user-copy", "--buffered"]);
    assert!(bytes / moved > 0.9, "{bytes} of {moved} by copying");
    nothing_is_left();
}

#[test]
fn many_devices_at_once() {
    driver_or_skip!();
    // As many as the driver allows.
    let count = if std::env::var_os("HANDOFF_SOAK").is_some() { 64 } else { 6 };
    let files = Files::new(count, 1 << 20);
    // Each engine's are added one by one, and the engines' together.
    let add = |place: usize| {
        let numbers = (place..count).step_by(ENGINES.len());
        let add = |file| {
            let arguments = ["loop", files.name(file), "--engine", ENGINES[place], "--depth", "4"];
            (file, Added::new(&arguments))
        };
        numbers.map(add).collect::<Vec<_>>()
    };
    let devices: Vec<_> = std::thread::scope(|scope| {
        let adding: Vec<_> =
            (0..ENGINES.len()).map(|place| scope.spawn(move || add(place))).collect();
        adding.into_iter().flat_map(|added| added.join().expect("all are added")).collect()
    });
    for (index, device) in &devices {
        let disk = fs::File::options().read(true).write(true).open(device.node()).expect("opens");
        disk.write_all_at(&[*index as u8; 4096], 4096).expect("written");
        disk.sync_all().expect("flushed");
    }
    assert_eq!(answer(&["list"]).as_array().expect("a list").len(), count);
    let removed = answer(&["del", "--all"]);
    assert_eq!(removed["removed"].as_array().expect("a list").len(), count);
    for (index, path) in files.paths.iter().enumerate() {
        assert_eq!(fs::read(path).expect("a file")[4096..8192], [index as u8; 4096]);
    }
    drop(devices);
    nothing_is_left();
}

#[test]
fn a_read_only_device_refuses_writes() {
    driver_or_skip!();
    let files = Files::new(1, 4 << 20);
    let device = Added::new(&["loop", files.name(0), "--read-only"]);
    let written = fs::File::options().write(true).open(device.node());
    let written = written.and_then(|disk| disk.write_all_at(&[1; 4096], 0));
    assert_eq!(written.map_err(|error| error.raw_os_error()), Err(Some(libc::EPERM)));
    assert!(fs::read(device.node()).is_ok_and(|bytes| bytes.len() == 4 << 20));
    device.del();
    nothing_is_left();
}

#[test]
fn a_mounted_device_is_removed_by_force_only() {
    driver_or_skip!();
    let files = Files::new(1, 32 << 20);
    let device = Added::new(&["loop", files.name(0)]);
    let point = files.directory.path().join("mounted");
    fs::create_dir(&point).expect("a directory");
    let run = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program).args(arguments).status();
        assert!(status.expect("starts").success(), "{program}");
    };
    run("mkfs.ext4", &["-q", &device.node()]);
    run("mount", &[&device.node(), point.to_str().expect("UTF-8")]);
    let line = refused(&["del", &device.id.to_string()], 1);
    assert!(line.contains("in use: mounted at ") && line.contains("--force"), "{line}");
    run("umount", &[point.to_str().expect("UTF-8")]);
    run("mkswap", &["-q", &device.node()]);
    run("swapon", &[&device.node()]);
    let line = refused(&["del", &device.id.to_string()], 1);
    assert!(line.contains("in use: used as swap"), "{line}");
    run("swapoff", &[&device.node()]);
    device.del();
    nothing_is_left();
}

#[test]
fn a_device_that_is_open_is_removed_by_force_only() {
    driver_or_skip!();
    let files = Files::new(1, 4 << 20);
    for engine in ["bpf", "user-copy"] {
        let device = Added::new(&["loop", files.name(0), "--engine", engine]);
        let (id, node) = (device.id.to_string(), device.node());
        let disk = fs::File::options().read(true).write(true).open(&node).expect("opens");
        let line = refused(&["del", &id], 1);
        let us = format!("(process {})", std::process::id());
        assert!(line.contains("in use: open in ") && line.contains(&us), "{line}");
        disk.write_all_at(&[4; 4096], 0).and_then(|()| disk.sync_all()).expect("it goes on");
        // A device on top of it is one that holds it.
        let upper = Added::new(&["loop", &node]);
        drop(disk);
        let line = refused(&["del", &id], 1);
        assert!(line.contains("in use: open in handoff (process "), "{line}");
        upper.del();
        // By force it goes at once, whoever has it open, and so do its processes.
        let disk = fs::File::open(&node).expect("opens");
        let output = blk(&["del", "--force", &id]);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success() && stderr.contains(&us), "{engine}: {stderr}");
        disk.read_exact_at(&mut [0; 4096], 1 << 20).expect_err("it is gone");
        nothing_is_left();
        drop(disk);
        // Now its number is free.
        let again = Added::new(&["null", "--id", &id]);
        again.del();
    }
}

#[test]
fn what_is_kept_is_roots_alone_whatever_the_umask_is() {
    driver_or_skip!();
    let files = Files::new(1, 4 << 20);
    let base = std::path::Path::new("/run/handoff");
    fs::create_dir_all(base).expect("made");
    fs::set_permissions(base, fs::Permissions::from_mode(0o777)).expect("open to all");
    let command = format!(
        "umask 0; exec '{}' blk add --id 33 loop '{}'",
        env!("CARGO_BIN_EXE_handoff"),
        files.name(0)
    );
    let status = std::process::Command::new("sh").args(["-c", &command]).status();
    assert!(status.expect("starts").success());
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").mode() & 0o7777;
    let devices = base.join("blk");
    for directory in [base, &devices, &devices.join("33")] {
        assert_eq!(mode(directory), 0o700, "{}", directory.display());
    }
    let kept = fs::read_dir(devices.join("33")).expect("a directory");
    let kept = kept.map(|entry| entry.expect("an entry").path());
    for file in kept.chain([devices.join("33.log")]) {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    answer(&["del", "33"]);
    nothing_is_left();
}
