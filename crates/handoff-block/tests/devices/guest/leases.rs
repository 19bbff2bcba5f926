//! Requests that the library's driver takes; it sends, writes and fills their memory as leases.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use handoff::{Driver, Request, RequestKind, RingUse};
use handoff_block::{OwnDevice, Spec};
use handoff_testbed::Pair;
use handoff_testbed::helpers::bytes_at;

use super::device::{MIB, driver_or_skip};

const SIZE: u64 = 8 * MIB;
const DEPTH: u16 = 8;

fn device() -> OwnDevice {
    let spec = Spec { depth: DEPTH, max_request: MIB as u32, ..Spec::default() };
    OwnDevice::new(SIZE, &spec).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a thread that takes all requests of a device, one after the other, until it is stopped.
fn serve<S: AsyncFnMut(&Driver, Request)>(
    device: OwnedFd,
    server: impl FnOnce(&Driver) -> S + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let driver = Driver::builder().ring(RingUse::Require).build().expect("a ring");
        let mut server = server(&driver);
        let queue = driver.requests(device, 0, DEPTH).expect("asks for requests");
        let work = async {
            while let Some(request) = queue.next().await.expect("served") {
                server(&driver, request).await;
            }
        };
        driver.block_on(work).expect("runs");
    })
}

/// Past the page cache, for whole blocks in memory that is aligned.
fn open(device: &OwnDevice) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    options.open(device.path()).expect("the device opens")
}

/// In memory fit for direct I/O.
fn aligned(content: &[u8]) -> (Vec<u8>, usize) {
    let mut memory = vec![0; content.len() + 4_096];
    let start = memory.as_ptr().align_offset(4_096);
    memory[start..start + content.len()].copy_from_slice(content);
    (memory, start)
}

fn nothing(request: Request) {
    // Others may look at a disk; only the test's own requests count.
    let len = request.len();
    request.answer(Ok(len));
}

#[test]
fn what_is_written_to_a_disk_is_sent_as_it_lies_in_the_writers_memory() {
    driver_or_skip!();
    let pair = Pair::wire(1_500).expect("software NICs");
    let (near, mut far) = pair.connection().expect("the hosts connect");
    let (told, tallies) = mpsc::channel();

    let mut device = device();
    let serving = serve(device.open().expect("opens"), move |driver| {
        let socket = driver.socket(near).expect("attaches");
        socket.set_engine(handoff::Engine::UringZc).expect("on TCP");
        async move |_: &Driver, request: Request| {
            let Some(lease) = request.source() else { return nothing(request) };
            let sent = socket.send(lease).expect("begins").await.unwrap();
            let taken = sent.sent.expect("sends");
            told.send((request.offset(), sent.receipt.tally)).expect("the test waits");
            request.answer(Ok(taken));
        }
    });
    device.start().expect("starts");
    let content = bytes_at(0, 3 * MIB as usize);
    let receiving = thread::spawn({
        let len = content.len();
        move || {
            let mut received = vec![0; len];
            far.read_exact(&mut received).expect("receives");
            received
        }
    });
    let disk = open(&device);
    let (memory, start) = aligned(&content);
    disk.write_all_at(&memory[start..start + content.len()], MIB).expect("writes");
    assert!(receiving.join().expect("ends") == content, "content differs");
    drop(disk);
    device.stop().expect("stops");
    serving.join().expect("ends");
    let (offsets, tallies): (Vec<_>, Vec<_>) = tallies.into_iter().unzip();
    assert!(offsets[0] == MIB && offsets.is_sorted(), "{offsets:?}");
    let total: u64 = tallies.iter().map(|tally| tally.total()).sum();
    let lent: u64 = tallies.iter().map(|tally| tally.zero_copy).sum();
    assert_eq!((lent, total), (content.len() as u64, content.len() as u64), "{tallies:?}");
}

/// A disk behind a connection: for each read its server asks for the bytes, and receives them directly into
/// the reader's memory.
#[test]
fn what_a_disk_is_asked_for_is_received_into_the_readers_memory() {
    driver_or_skip!();
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    let (mut far, _) = listener.accept().expect("accepts");
    let answering = thread::spawn(move || {
        let mut asked = [0; 16];
        while far.read_exact(&mut asked).is_ok() {
            let (offset, len) = asked.split_at(8);
            let [offset, len] = [offset, len].map(|it| u64::from_le_bytes(it.try_into().unwrap()));
            far.write_all(&bytes_at(offset as usize, len as usize)).expect("answers");
        }
    });
    let mut device = device();
    let serving = serve(device.open().expect("opens"), move |driver| {
        let socket = driver.socket(near).expect("attaches");
        async move |_: &Driver, mut request: Request| {
            let (offset, len) = (request.offset(), request.len() as u64);
            let Some(lease) = request.destination() else { return nothing(request) };
            let asked = [offset.to_le_bytes(), len.to_le_bytes()].concat();
            let sent = socket.send(handoff::Buffer::from(asked)).expect("begins").await.unwrap();
            sent.sent.expect("asks");
            let received = socket.receive_exact(lease).expect("begins").await.unwrap();
            request.answer(Ok(received.result.expect("receives")));
        }
    });
    device.start().expect("starts");
    let mut disk = open(&device);
    let content = bytes_at(MIB as usize, 3 * MIB as usize);
    let (mut memory, start) = aligned(&vec![0; content.len()]);
    disk.seek(std::io::SeekFrom::Start(MIB)).expect("goes there");
    disk.read_exact(&mut memory[start..start + content.len()]).expect("reads");
    assert!(memory[start..start + content.len()] == content, "what was read differs");
    drop(disk);
    device.stop().expect("stops");
    serving.join().expect("ends");
    answering.join().expect("ends");
}

#[test]
fn files_are_written_from_requests_and_read_into_them() {
    driver_or_skip!();
    let backing = tempfile::tempfile_in("/var/tmp").expect("a file");
    backing.set_len(SIZE).expect("grows");
    let served = backing.try_clone().expect("duplicates");
    let mut device = device();
    let serving = serve(device.open().expect("opens"), move |driver| {
        let file = driver.file(served).expect("attaches");
        async move |_: &Driver, mut request: Request| {
            let offset = request.offset();
            let moved = match (request.source(), request.destination()) {
                (Some(lease), _) => {
                    file.write_at(lease, offset).expect("begins").await.unwrap().result
                }
                (_, Some(lease)) => {
                    file.read_at(lease, offset).expect("begins").await.unwrap().result
                }
                _ => return nothing(request),
            };
            request.answer(Ok(moved.expect("moves")));
        }
    });
    device.start().expect("starts");
    let mut disk = open(&device);
    let content = bytes_at(7, MIB as usize);
    let (mut memory, start) = aligned(&content);
    let end = start + content.len();
    disk.write_all_at(&memory[start..end], 2 * MIB).expect("writes");
    let mut below = vec![0; content.len()];
    backing.read_exact_at(&mut below, 2 * MIB).expect("reads");
    assert!(below == content, "the file differs");
    memory.fill(0);
    disk.seek(std::io::SeekFrom::Start(2 * MIB)).expect("goes there");
    disk.read_exact(&mut memory[start..end]).expect("reads");
    assert!(memory[start..end] == content, "what was read differs");
    drop(disk);
    device.stop().expect("stops");
    serving.join().expect("ends");
}

#[test]
fn a_request_is_over_when_it_is_answered_and_its_last_lease_is_gone() {
    driver_or_skip!();
    let (give_back, wait) = mpsc::channel::<()>();
    let (asked, begun) = mpsc::channel();
    let mut device = device();
    let serving = serve(device.open().expect("opens"), move |_| {
        async move |driver: &Driver, request: Request| {
            if request.kind() != RequestKind::Write {
                return nothing(request);
            }
            let lease = request.source().expect("a write brings bytes");
            let part = lease.part(..512);
            nothing(request);
            drop(lease);
            // The rest of it, with nothing else for the driver to do.
            driver.turn(handoff::Wait::No).expect("turns");
            asked.send(()).expect("the test waits");
            wait.recv().expect("the test says when");
            drop(part);
        }
    });
    device.start().expect("starts");
    let disk = open(&device);
    let (written, done) = mpsc::channel();
    let writing = thread::spawn(move || {
        let (memory, start) = aligned(&[5; 4_096]);
        disk.write_all_at(&memory[start..start + 4_096], 0).expect("writes");
        written.send(()).expect("the test waits");
    });
    begun.recv().expect("the request came");
    let early = done.recv_timeout(Duration::from_millis(300));
    assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it was over while it was on loan");
    give_back.send(()).expect("the server waits");
    done.recv_timeout(Duration::from_secs(30)).expect("it is over");
    writing.join().expect("ends");
    device.stop().expect("stops");
    serving.join().expect("ends");
}

#[test]
fn a_request_that_nobody_answers_has_failed() {
    driver_or_skip!();
    let mut device = device();
    let serving = serve(device.open().expect("opens"), |_| {
        async |_: &Driver, request: Request| match request.kind() {
            RequestKind::Write => drop(request),
            _ => nothing(request),
        }
    });
    device.start().expect("starts");
    let disk = open(&device);
    let (memory, start) = aligned(&[5; 4_096]);
    let failed = (&disk).write_all(&memory[start..start + 4_096]).expect_err("nobody answers");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    drop(disk);
    device.stop().expect("stops");
    serving.join().expect("ends");
}

#[test]
fn a_driver_that_goes_fails_its_requests_whose_leases_may_stay() {
    driver_or_skip!();
    let mut device = device();
    let served = device.open().expect("opens");
    let (let_go, wait) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        let driver = Driver::builder().ring(RingUse::Require).build().expect("a ring");
        let queue = driver.requests(served, 0, DEPTH).expect("asks for requests");
        let held = driver.block_on(async {
            loop {
                let request = queue.next().await.expect("served").expect("not stopped");
                match request.source() {
                    Some(lease) => break (request, lease),
                    None => nothing(request),
                }
            }
        });
        let held = held.expect("runs");
        drop((queue, driver));
        // Not for ever, since a process whose own device stalls cannot be ended.
        let waited = wait.recv_timeout(Duration::from_secs(30));
        drop(held);
        waited.expect("the write has failed, whatever is on loan");
    });
    device.start().expect("starts");
    let disk = open(&device);
    let (memory, start) = aligned(&[5; 4_096]);
    let failed = (&disk).write_all(&memory[start..start + 4_096]).expect_err("nobody serves");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    let_go.send(()).expect("the server waits");
    serving.join().expect("ends");
}
