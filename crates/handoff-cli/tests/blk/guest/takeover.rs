//! Takeovers, whatever has become meanwhile of the names of the program, the files and the state.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use handoff_testbed::helpers::eventually;
use handoff_testbed::{Disk as _, LoopDisk, RamDisk};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::command::{
    Added, Files, blk, driver_or_skip, kill, nothing_is_left, parent, read_block, refused,
    write_block,
};
use super::processes::log;

/// Kills a device's server, and writes by the next one.
#[track_caller]
fn kill_and_write(device: &Added, byte: u8) {
    let server = device.server(None);
    kill(server);
    device.server(Some(server));
    write_block(&device.node(), byte, byte.into()).expect("written");
    assert_eq!(read_block(&device.node(), byte.into()).expect("read"), [byte; 4096]);
}

/// Leaves a device with neither server nor supervisor.
#[track_caller]
pub(super) fn orphan(device: &Added) {
    let server = device.server(None);
    kill(parent(server));
    kill(server);
    eventually("the driver notices", || (device.show()["state"] == "quiesced").then_some(()));
}

#[track_caller]
pub(super) fn recover(device: &Added) {
    let output = blk(&["recover", &device.id.to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A user who may only read a file waits for a lock on it, and keeps that.
struct Reader(Child);

impl Reader {
    fn of(path: &Path) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["flock", "--shared"]).arg(path).args(["sh", "-c", "echo; exec cat"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Self(child.expect("setpriv starts"))
    }

    /// Waits until it has the lock. That the file is locked says less: a process of the device that is about to end
    /// may still have it.
    fn wait(&mut self) {
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        stdout.read_exact(&mut [0]).expect("it has the lock");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It ends with its input, or still waits for the lock.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_locked(path: &Path) -> bool {
    let file = File::open(path).expect("opens");
    flock(file, FlockOperation::NonBlockingLockExclusive).is_err()
}

#[test]
fn a_device_outlives_its_program_and_the_names_of_its_files() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let (directory, path) = (files.directory.path(), &files.paths[0]);
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("open to all");
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("open to all");
    let (program, next) = (directory.join("handoff"), directory.join("next"));
    fs::copy(env!("CARGO_BIN_EXE_handoff"), &program).expect("copied");
    let mut command = Command::new(&program);
    let output = command.args(["blk", "add", "loop", files.name(0), "--json"]).output();
    let output = output.expect("handoff starts");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an answer");
    let device = Added { id: answer["id"].as_u64().expect("a number"), answer };

    // As a package is upgraded: the servers that are started from here on are none of this program's.
    fs::write(&next, "#!/bin/false\n").expect("written");
    fs::set_permissions(&next, fs::Permissions::from_mode(0o755)).expect("executable");
    fs::rename(&next, &program).expect("replaced");
    kill_and_write(&device, 1);
    let server = device.server(None);
    let comm = fs::read_to_string(format!("/proc/{server}/comm")).expect("it lives");
    assert_eq!(comm.trim(), "handoff");
    let mut reader = Reader::of(path);
    kill_and_write(&device, 2);
    let aside = directory.join("aside");
    fs::rename(path, &aside).expect("moved");
    kill_and_write(&device, 3);
    assert!(is_locked(&aside), "between two servers, too");

    // Its directory comes back at once, with all that it had.
    let state = PathBuf::from(format!("/run/handoff/blk/{}", device.id));
    let record = fs::read(state.join("spec.json")).expect("a record");
    let writes = |show: &serde_json::Value| -> u64 {
        let operations = show["counters"][0]["operations"].as_array().expect("a list");
        let row = operations.iter().find(|row| row["name"] == "write").expect("it has written");
        row["requests"].as_u64().expect("a number")
    };
    let before = writes(&device.show());
    fs::remove_dir_all(&state).expect("removed");
    eventually("the directory is put back", || fs::read(state.join("spec.json")).ok());
    assert_eq!(fs::read(state.join("spec.json")).expect("a record"), record);
    let message = "was removed of the device's directory is back";
    eventually("the log says so", || log(&device).contains(message).then_some(()));
    kill_and_write(&device, 4);
    assert_eq!(writes(&device.show()), before + 1, "the same counters");
    fs::remove_dir_all(&state).expect("removed");
    eventually("the directory is put back", || fs::read(state.join("state")).ok());

    // A reader's lock does not keep a device from a server that has nobody to get its files from.
    fs::rename(&aside, path).expect("back in its place");
    orphan(&device);
    reader.wait();
    recover(&device);
    let text = log(&device);
    assert!(text.contains("goes on with") && text.contains("flock"), "{text}");
    drop(reader);
    kill_and_write(&device, 5);
    let opened = File::open(path).expect("opens");
    fs::remove_file(path).expect("removed");
    kill_and_write(&device, 6);
    for byte in 1..=6u8 {
        let mut block = [0; 4096];
        opened.read_exact_at(&mut block, u64::from(byte) * 4096).expect("read");
        assert_eq!(block, [byte; 4096], "the file has it");
    }
    device.del();
    nothing_is_left();
}

#[test]
fn a_mirror_is_taken_over_without_a_leg_that_is_gone() {
    driver_or_skip!();
    let files = Files::new(2, 8 << 20);
    let device = Added::new(&["mirror", "--no-record", files.name(0), files.name(1), NVME]);
    kill_and_write(&device, 1);
    // One is removed, and one unplugged: no request meets either.
    fs::remove_file(&files.paths[1]).expect("removed");
    unplug();
    kill_and_write(&device, 2);
    assert_eq!(device.show()["failed_legs"], serde_json::json!([2]), "a request met it");
    orphan(&device);
    plug_in();
    // Another file in its place is not the leg either.
    File::create(&files.paths[1]).and_then(|file| file.set_len(8 << 20)).expect("a file");
    recover(&device);
    let show = device.show();
    assert_eq!(show["failed_legs"], serde_json::json!([1, 2]), "{show}");
    let text = String::from_utf8(blk(&["show", &device.id.to_string()]).stdout).expect("UTF-8");
    assert!(text.contains("backing-1  (is out since a recover: Stale file handle"), "{text}");
    kill_and_write(&device, 3);
    // The last good one is not given up.
    orphan(&device);
    let aside = files.directory.path().join("aside");
    fs::rename(&files.paths[0], &aside).expect("moved");
    let line = refused(&["recover", &device.id.to_string()], 2);
    assert!(line.contains("backing-0: No such file"), "{line}");
    fs::rename(&aside, &files.paths[0]).expect("back in its place");
    recover(&device);
    kill_and_write(&device, 4);
    device.del();
    assert_eq!(fs::read(&files.paths[0]).expect("a file")[4 * 4096..5 * 4096], [4; 4096]);
    assert!(fs::read(&files.paths[1]).expect("a file") == vec![0; 8 << 20], "it is left alone");
    nothing_is_left();
    // While somebody had the old disk open, the new one could not have its name.
    unplug();
    plug_in();
}

const NVME: &str = "/dev/disk/by-id/nvme-tests";

/// Takes the guest's NVMe disk out.
fn unplug() {
    let disk = fs::canonicalize(NVME).expect("a disk");
    let disk = Path::new("/sys/block").join(disk.file_name().expect("a name"));
    fs::write(disk.join("device/device/remove"), "1").expect("unplugged");
    eventually("the disk is gone", || (!disk.exists()).then_some(()));
}

/// Puts it back, by whatever name it comes.
fn plug_in() {
    fs::write("/sys/bus/pci/rescan", "1").expect("plugged in");
    let back = eventually("the disk is back", || {
        let disks = fs::read_dir("/sys/block").expect("disks").flatten();
        let mut names = disks.map(|disk| disk.file_name());
        names.find(|name| {
            let serial = Path::new("/sys/block").join(name).join("device/serial");
            fs::read_to_string(serial).is_ok_and(|serial| serial.trim() == "tests")
        })
    });
    fs::remove_file(NVME).expect("a link");
    std::os::unix::fs::symlink(Path::new("/dev").join(back), NVME).expect("linked");
}

/// What direct I/O asks of such a file is stricter from then on.
#[test]
fn a_device_outlives_a_reflink_copy_of_its_file() {
    driver_or_skip!();
    // XFS wants 300 MiB.
    let disk = RamDisk::new(320 << 10).expect("a disk in memory");
    let made = Command::new("mkfs.xfs").args(["-q", "-f"]).arg(disk.path()).output();
    assert!(made.expect("mkfs.xfs starts").status.success());
    let directory = tempfile::tempdir().expect("a directory");
    mount(disk.path(), directory.path(), c"xfs", MountFlags::empty(), None).expect("mounts");
    let image = directory.path().join("image");
    fs::write(&image, vec![7; 8 << 20]).expect("written");
    let device = Added::new(&["loop", image.to_str().expect("UTF-8")]);
    kill_and_write(&device, 1);
    let mut copy = Command::new("cp");
    copy.arg("--reflink=always").arg(&image).arg(directory.path().join("copy"));
    assert!(copy.status().expect("cp starts").success());
    kill_and_write(&device, 2);
    orphan(&device);
    recover(&device);
    kill_and_write(&device, 3);
    device.del();
    unmount(directory.path(), UnmountFlags::empty()).expect("nobody uses it");
    nothing_is_left();
}

#[test]
fn a_file_belongs_to_its_device_while_that_waits_for_a_server() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let (path, name) = (&files.paths[0], files.name(0));
    let device = Added::new(&["loop", name]);
    orphan(&device);
    let link = files.directory.path().join("link");
    fs::hard_link(path, &link).expect("linked");
    let id = device.id;
    let remedies =
        format!("to device {id}, which waits for a server: handoff blk recover {id}, or");
    for other in [path, &link] {
        let line = refused(&["add", "loop", other.to_str().expect("UTF-8")], 2);
        assert!(line.contains(&remedies), "{line}");
    }
    recover(&device);
    write_block(&device.node(), 1, 1).expect("written");
    device.del();
    // The device is gone, and its file is free.
    Added::new(&["loop", name]).del();
    nothing_is_left();
}

#[test]
fn the_same_bytes_are_not_taken_twice() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let (path, name) = (&files.paths[0], files.name(0));
    let locked = File::open(path).expect("opens");
    flock(&locked, FlockOperation::LockShared).expect("locked");
    let line = refused(&["add", "loop", name], 2);
    assert!(line.contains("is in use: another program has locked it (flock)"), "{line}");
    drop(locked);
    let disk = LoopDisk::over(path, 512, false).expect("a loop device");
    let node = disk.path().to_str().expect("UTF-8");
    let line = refused(&["add", "mirror", node, name], 2);
    assert!(line.contains("is given twice: it has bytes of"), "{line}");
    let line = refused(&["add", "loop", name], 2);
    assert!(line.contains(&format!("is in use by {node}: losetup -d")), "{line}");
    let device = Added::new(&["loop", node]);
    let line = refused(&["add", "loop", name], 2);
    assert!(line.contains(&format!("in use as {node} by device {}", device.id)), "{line}");
    device.del();
    drop(disk);

    let place = |name: &str| {
        let path = files.directory.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(place);
    fs::write(lower.join("image"), vec![1; 1 << 20]).expect("written");
    let _ = Command::new("modprobe").arg("overlay").status();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(&merged);
    assert!(mount.status().expect("mount starts").success());
    let [upper, merged_image] = [upper, merged.clone()].map(|it| it.join("image"));
    // As the first write of anybody does.
    let touched = File::options().append(true).open(&merged_image);
    touched.and_then(|file| file.set_len(1 << 20)).expect("copied up");
    let [above, below] = [&merged_image, &upper].map(|it| it.to_str().expect("UTF-8"));
    let line = refused(&["add", "mirror", above, below], 2);
    assert!(line.contains("is given twice: it has bytes of"), "{line}");
    for (one, other) in [(above, below), (below, above)] {
        let device = Added::new(&["loop", one]);
        let line = refused(&["add", "loop", other], 2);
        assert!(line.contains(&format!("in use as {one} by device {}", device.id)), "{line}");
        device.del();
    }
    unmount(&merged, UnmountFlags::empty()).expect("nobody uses it");
    assert_eq!(fs::metadata(path).expect("there").len(), 8 << 20);
    nothing_is_left();
}
