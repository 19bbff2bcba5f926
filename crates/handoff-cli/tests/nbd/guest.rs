//! The kernel's client, and pages of the page cache lent to software NICs: nothing is copied.

use std::fs::{self, File};
use std::io::Read as _;
use std::net::TcpStream;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::thread;

use handoff_testbed::helpers::{bytes_at, eventually};
use handoff_testbed::{Pair, load};

use crate::raw::{Raw, negotiate};
use crate::server::{Server, command, empty, run};

#[test]
fn reads_of_64_kib_and_more_leave_without_a_copy() {
    const PIECES: [u32; 4] = [64 << 10, 256 << 10, 1 << 20, 100_001];
    load("getbuf", &[]).expect("the lab's kernel has it");
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("image");
    let all = bytes_at(0, 4 << 20);
    fs::write(&file, &all).expect("writes");
    let listen = format!("{}:0", pair.right.v4());
    let from = format!("{}/32", pair.left.v4());
    let mut command = command(&["--json", "--listen", &listen, "--from", &from, "--read-only"]);
    pair.right.namespace().attach(command.arg(&file));
    let serving = Server::start_as(command);
    let stream = pair.left.namespace().run(|| TcpStream::connect(serving.address));
    let mut raw = Raw::new(stream.expect("enters").expect("connects"), "");
    for (number, len) in PIECES.into_iter().enumerate() {
        let at = number * 70_000 + 11;
        let bytes = raw.read(at as u64, len);
        assert!(bytes == all[at..at + len as usize], "{len}");
    }
    let report = serving.stop();
    assert_eq!(report["exports"][0]["io"], "cache", "{report}");
    let bytes = PIECES.iter().map(|len| u64::from(*len)).sum::<u64>();
    assert_eq!(report["read"]["zero_copy"], bytes, "{report}");
    assert_eq!(report["read"]["copied"], 0, "{report}");
    let sent = report["sent"]["zero_copy"].as_u64().expect("a number");
    // What joins the packet of a header is called copied.
    assert!(sent > bytes / 10 * 9, "{report}");
    assert_eq!(report["notes"], serde_json::json!([]), "{report}");
}

/// `include/uapi/linux/nbd.h`.
const SET_SOCK: u64 = 0xab00;
const SET_BLKSIZE: u64 = 0xab01;
const DO_IT: u64 = 0xab03;
const SET_SIZE_BLOCKS: u64 = 0xab07;
const DISCONNECT: u64 = 0xab08;
const SET_FLAGS: u64 = 0xab0a;

fn ioctl(device: &File, request: u64, value: u64) -> i32 {
    // SAFETY: these calls take a number, and touch no memory of this process.
    unsafe { libc::ioctl(device.as_raw_fd(), request, value) }
}

#[test]
fn the_kernels_client_has_a_file_system_on_it() {
    const SIZE: u64 = 64 << 20;
    load("nbd", &[]).expect("the lab's kernel has it");
    let place = tempfile::tempdir().expect("a directory");
    let (image, mounted) = (place.path().join("image"), place.path().join("mounted"));
    empty(&image, SIZE);
    fs::create_dir(&mounted).expect("makes");
    let serving = Server::start(&[image.to_str().expect("UTF-8")]);
    let mut stream = serving.connect();
    stream.set_read_timeout(None).expect("sets");
    negotiate(&mut stream, "", None).expect("is agreed");
    let device = File::options().read(true).write(true).open("/dev/nbd0").expect("is there");
    // Flags, flush, FUA, trim.
    let flags = 1 | 1 << 2 | 1 << 3 | 1 << 5;
    for (request, value) in [
        (SET_SOCK, stream.as_raw_fd() as u64),
        (SET_BLKSIZE, 4096),
        (SET_SIZE_BLOCKS, SIZE / 4096),
        (SET_FLAGS, flags),
    ] {
        assert_eq!(ioctl(&device, request, value), 0, "{request:#x}");
    }
    thread::scope(|scope| {
        let served = scope.spawn(|| ioctl(&device, DO_IT, 0));
        eventually("the device has its size", || {
            let size = fs::read_to_string("/sys/block/nbd0/size").ok()?;
            (size.trim() == (SIZE / 512).to_string() || served.is_finished()).then_some(())
        });
        run("mkfs.ext4", &["-q", "/dev/nbd0"]);
        let at = mounted.to_str().expect("UTF-8");
        run("mount", &["/dev/nbd0", at]);
        let bytes = bytes_at(7, 8 << 20);
        let file = File::create(mounted.join("file")).expect("creates");
        file.write_all_at(&bytes, 0).and_then(|()| file.sync_all()).expect("is on the disk");
        drop(file);
        run("umount", &[at]);
        run("mount", &["-o", "ro", "/dev/nbd0", at]);
        let mut again = Vec::new();
        File::open(mounted.join("file"))
            .and_then(|mut it| it.read_to_end(&mut again))
            .expect("reads");
        run("umount", &[at]);
        assert!(again == bytes);
        let checked = Command::new("e2fsck").args(["-fn", "/dev/nbd0"]).status().expect("starts");
        assert!(checked.success());
        assert_eq!(ioctl(&device, DISCONNECT, 0), 0);
    });
    let report = serving.stop();
    assert!(report["requests"]["flush"].as_u64() > Some(0), "{report}");
    assert_eq!(report["failures"], serde_json::json!({}), "{report}");
}
