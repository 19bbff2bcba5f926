//! What happens to lends when their holders go.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread;

use handoff_testbed::helpers::{bytes_at, eventually};

use crate::device::{
    Device, Lending, NOWAIT, NULL, Queues, SOURCE, TARGET, connection, in_memory, on_disk, write,
};
use crate::resizing::Resizing;

fn none_out(device: &Device) {
    eventually("no lend is out", || (device.query().module_lends == 0).then_some(()));
}

/// Takes a lend of every kind.
fn take_all(lending: &mut Lending) {
    let file = on_disk();
    std::os::unix::fs::FileExt::write_all_at(&file, &bytes_at(0, 100_000), 0).expect("writes");
    let warm = lending.device.bind(&file, SOURCE).expect("binds");
    let proc = std::fs::File::open("/proc/cpuinfo").expect("opens");
    let proc = lending.device.bind(&proc, SOURCE).expect("binds");
    let (mut from, to) = connection();
    let stream = lending.device.bind(&to, SOURCE).expect("binds");
    from.write_all(&bytes_at(0, 1_000)).expect("sends");
    assert_eq!(lending.run(lending.get(0, NULL, 0, 8)), 8);
    assert_eq!(lending.run(lending.get(1, warm, 0, 100_000)), 100_000);
    assert!(lending.run(lending.get(2, proc, 0, 1_000)) > 0);
    assert_eq!(lending.run(lending.get(3, stream, 0, 500)), 500);
    assert_eq!(lending.run(lending.fresh(4, 5, 200_000)), 200_000);
    assert_eq!(lending.device.query().lends, 5);
}

#[test]
fn a_ring_that_goes_gives_back() {
    let mut lending = Lending::new();
    take_all(&mut lending);
    let Lending { ring, device } = lending;
    drop(ring);
    none_out(&device);
    let query = device.query();
    assert_eq!((query.lent, query.returned, query.bytes), (5, 5, 0), "{query:?}");
}

#[test]
fn a_lend_outlives_the_device_and_the_source() {
    let mut lending = Lending::with(Device::alone());
    take_all(&mut lending);
    let Lending { ring, device } = lending;
    drop(device);
    // The module stays for them.
    let removed = Command::new("rmmod").arg("getbuf").output().expect("starts");
    assert!(!removed.status.success(), "removed while lent");
    let mut lending = Lending { ring, device: Device::open() };
    let target = in_memory();
    assert_eq!(lending.run(write(1, &target, 0, 100_000, 0)), 100_000);
    let mut content = vec![0; 100_000];
    std::os::unix::fs::FileExt::read_exact_at(&target, &mut content, 0).expect("reads");
    assert!(content == bytes_at(0, 100_000), "content differs");
    assert_eq!(lending.device.query().module_lends, 5);
    // Any open file of the device may clear a slot of the ring.
    for slot in 0..6 {
        assert_eq!(lending.run(lending.put(slot)), 0);
    }
    none_out(&lending.device);
}

#[test]
fn the_module_goes_when_all_is_back() {
    let mut lending = Lending::new();
    take_all(&mut lending);
    drop(lending);
    eventually("the module can be removed", || {
        Command::new("rmmod").arg("getbuf").output().expect("starts").status.success().then_some(())
    });
    none_out(&Device::open());
}

#[test]
fn the_kernels_own_way_clears_a_slot() {
    let mut lending = Lending::new();
    take_all(&mut lending);
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    for slot in 0..6 {
        // SAFETY: an empty entry refers to no memory.
        unsafe { lending.ring.submitter().register_buffers_update(slot, &[empty], None) }
            .expect("updates");
    }
    lending.until_all_are_back();
}

#[test]
fn a_kill_gives_back() {
    let device = Device::alone();
    let program = std::env::current_exe().expect("known");
    for _ in 0..3 {
        let mut child = Command::new(&program)
            .args(["--exact", "guest::lifetimes::fixture::holds", "--nocapture"])
            .env("GETBUF_HOLDS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        assert!(output.lines().any(|line| line.expect("reads").contains("holding")));
        assert_eq!(device.query().module_lends, 5);
        child.kill().expect("kills");
        child.wait().expect("ends");
        none_out(&device);
    }
}

mod fixture {
    use std::io::Read;

    use crate::device::{Lending, SOURCE, connection};

    /// Holds lends, and waits for one more, until it is killed.
    #[test]
    fn holds() {
        if std::env::var_os("GETBUF_HOLDS").is_none() {
            return;
        }
        let mut lending = Lending::new();
        super::take_all(&mut lending);
        let (_from, to) = connection();
        let id = lending.device.bind(&to, SOURCE).expect("binds");
        lending.submit(&[lending.get(9, id, 0, 10)]);
        println!("holding");
        let _ = std::io::stdin().read(&mut [0]);
    }
}

#[test]
fn a_lend_in_use_comes_back_after_its_last_use() {
    let mut lending = Lending::new();
    let (out, mut far) = connection();
    assert_eq!(lending.run(lending.fresh(1, 2, 4 << 20)), 4 << 20);
    // More than fits between them: the request is under way until the other end reads.
    let send = io_uring::opcode::SendZc::new(
        io_uring::types::Fd(out.as_raw_fd()),
        std::ptr::null(),
        4 << 20,
    );
    let send = send.buf_index(Some(2)).flags(libc::MSG_WAITALL).build().user_data(1);
    lending.submit(&[send]);
    assert_eq!(lending.run(lending.put(1).user_data(2)), 0);
    assert_eq!(lending.run(lending.put(2).user_data(2)), 0);
    let query = lending.device.query();
    assert_eq!((query.lends, query.returned), (1, 0), "{query:?}");
    let reader = thread::spawn(move || {
        let mut received = vec![1; 4 << 20];
        std::io::Read::read_exact(&mut far, &mut received).expect("receives");
        received
    });
    let done = &lending.wait(1)[0];
    assert_eq!(done.result(), 4 << 20);
    if io_uring::cqueue::more(done.flags()) {
        lending.wait(1);
    }
    assert!(reader.join().expect("ends").iter().all(|&byte| byte == 0));
    lending.until_all_are_back();
}

#[test]
fn a_get_that_waits_outlives_the_queue_that_it_came_by() {
    let ring = Resizing::new(128);
    let mut lending = Lending::on(ring, Device::open());
    let (mut from, to) = connection();
    let id = lending.device.bind(&to, SOURCE).expect("binds");
    let gets = [1, 2, 3].map(|slot| lending.get(slot, id, 0, 10).user_data(u64::from(slot)));
    lending.submit(&gets);
    assert_eq!(lending.device.query().waiting, 3);
    lending.ring.resize(64);
    from.write_all(&bytes_at(0, 10)).expect("sends");
    assert_eq!((lending.wait(1)[0].user_data(), lending.device.query().waiting), (1, 2));
    let cancel = lending.cancel(2, 0).user_data(4);
    lending.submit(&[cancel]);
    let done = lending.wait(2);
    assert_eq!(done.iter().map(|it| it.result()).max(), Some(1));
    lending.ring.resize(256);
    // The kernel cancels the last, and the queue's memory is mapped nowhere now.
    let Lending { ring, device } = lending;
    assert!(Command::new("true").status().expect("starts").success());
    drop(ring);
    eventually("nobody waits", || (device.query().waiting == 0).then_some(()));
    none_out(&device);
}

#[test]
fn a_send_that_waits_goes_with_its_ring() {
    let mut lending = Lending::new();
    let (out, _far) = connection();
    let target = lending.device.bind(&out, TARGET).expect("binds");
    assert_eq!(lending.run(lending.fresh(1, 2, 4 << 20)), 4 << 20);
    // Until the socket takes no more, since nobody reads.
    while lending.run(lending.send(2, target, 0, 4 << 20, NOWAIT)) != -libc::EAGAIN {}
    lending.submit(&[lending.send(2, target, 0, 4 << 20, 0)]);
    let Lending { ring, device } = lending;
    drop(ring);
    none_out(&device);
}

/// `struct io_uring_clone_buffers`.
#[repr(C)]
struct CloneBuffers {
    source: u32,
    flags: u32,
    source_offset: u32,
    target_offset: u32,
    count: u32,
    padding: [u32; 3],
}

#[test]
fn a_lend_in_two_rings_comes_back_from_the_last() {
    /// `IORING_REGISTER_CLONE_BUFFERS`.
    const CLONE: libc::c_uint = 30;
    let mut lending = Lending::new();
    take_all(&mut lending);
    let other = io_uring::IoUring::new(8).expect("a ring");
    let clone = CloneBuffers {
        source: lending.ring.as_raw_fd() as u32,
        flags: 0,
        source_offset: 0,
        target_offset: 0,
        count: 0,
        padding: [0; 3],
    };
    // SAFETY: the structure is read during the call.
    let cloned = unsafe {
        libc::syscall(libc::SYS_io_uring_register, other.as_raw_fd(), CLONE, &raw const clone, 1)
    };
    assert_eq!(cloned, 0, "{}", std::io::Error::last_os_error());
    let Lending { ring, device } = lending;
    drop(ring);
    let mut other = Lending { ring: other, device };
    let target = in_memory();
    assert_eq!(other.run(write(1, &target, 0, 100_000, 0)), 100_000);
    assert_eq!(other.device.query().lends, 5);
    drop(other.ring);
    none_out(&other.device);
}
