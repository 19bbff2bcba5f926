use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread::JoinHandle;

use handoff_testbed::helpers::{bytes_at, eventually};
use io_uring::{cqueue, squeue};

use crate::device::{
    CANCEL_ALL, Device, Lending, NOWAIT, NULL, REPLACE, SOURCE, TARGET, connection, further,
    long_form, on_disk,
};
use crate::failing::{AtRandom, ready};

const BYTES: u32 = 300_000;

/// The counter of the calling thread.
struct Failing(File);

impl Failing {
    fn new() -> Self {
        let path = "/proc/thread-self/fail-nth";
        Self(File::options().read(true).write(true).open(path).expect("opens"))
    }

    /// From here on, the allocation of this number fails.
    fn arm(&self, number: u32) {
        self.0.write_all_at(number.to_string().as_bytes(), 0).expect("sets");
    }

    /// None fails any more; returns whether one has.
    fn disarm(&self) -> bool {
        let mut left = [0; 16];
        let read = self.0.read_at(&mut left, 0).expect("reads");
        self.arm(0);
        std::str::from_utf8(&left[..read]).expect("digits").trim() == "0"
    }
}

/// Runs requests once for each allocation that they cause, with that one failing; returns the number.
fn run(
    lending: &mut Lending,
    failing: &Failing,
    name: &str,
    make: &mut dyn FnMut(&Lending) -> Vec<squeue::Entry>,
) -> u32 {
    for number in 1.. {
        for slot in 0..8 {
            let _ = lending.run(lending.put(slot));
        }
        let entries = make(lending);
        for entry in &entries {
            // SAFETY: the test keeps what the requests refer to until they have completed.
            unsafe { lending.ring.submission().push(entry) }.expect("room");
        }
        failing.arm(number);
        let _ = lending.ring.submit();
        let failed = failing.disarm();
        // Requests that did not begin for lack of memory.
        lending.ring.submit().expect("submits");
        let done = lending.wait(entries.len());
        // From EFAULT on: requests whose slot stayed empty, or whose GET never waited.
        let foreseen =
            [libc::ENOMEM, libc::EAGAIN, libc::ECANCELED, libc::EFAULT, libc::EINVAL, libc::ENOENT];
        for result in done.iter().map(cqueue::Entry::result) {
            assert!(result >= 0 || foreseen.contains(&-result), "{name}: {result}");
        }
        if !failed {
            println!("{name}: {} allocations", number - 1);
            return number - 1;
        }
    }
    unreachable!("one always fails")
}

/// A device, its sources and its targets.
struct Testbed {
    lending: Lending,
    file: File,
    cached: u16,
    direct: u16,
    made: u16,
    stream: u16,
    still: u16,
    target: u16,
    from: TcpStream,
    out: TcpStream,
    /// The unused ends.
    _open: [TcpStream; 3],
    reader: JoinHandle<io::Result<u64>>,
}

impl Testbed {
    fn new() -> Self {
        let lending = Lending::new();
        let file = on_disk();
        file.write_all_at(&bytes_at(0, 1 << 20), 0).expect("writes");
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .expect("opens");
        let made = File::open("/proc/cpuinfo").expect("opens");
        let ((from, to), (out, mut far), (silent, still)) =
            (connection(), connection(), connection());
        let reader = std::thread::spawn(move || io::copy(&mut far, &mut io::sink()));
        let bind = |fd: &dyn AsRawFd| lending.device.bind(&fd.as_raw_fd(), SOURCE).expect("binds");
        Self {
            cached: bind(&file),
            direct: bind(&direct),
            made: bind(&made),
            stream: bind(&to),
            still: bind(&still),
            target: lending.device.bind(&out, TARGET).expect("binds"),
            lending,
            file,
            from,
            out,
            _open: [to, silent, still],
            reader,
        }
    }

    /// Everything is back, and the device of this test and others has nothing left.
    fn end(mut self) {
        for slot in 0..8 {
            let _ = self.lending.run(self.lending.put(slot));
        }
        let query = self.lending.until_all_are_back();
        assert_eq!((query.user_bytes, query.waiting), (0, 0), "{query:?}");
        drop(self.lending);
        self.out.shutdown(Shutdown::Both).expect("ends");
        self.reader.join().expect("ends").expect("receives");
        let device = Device::open();
        eventually("all lends are back", || (device.query().module_lends == 0).then_some(()));
        assert_eq!(device.query().user_bound, 0);
    }
}

#[test]
fn any_allocation_may_fail() {
    if !ready() {
        handoff_testbed::skip!("this kernel fails no allocations on demand");
    }
    let mut testbed = Testbed::new();
    let failing = Failing::new();
    let Testbed { cached, direct, made, stream, still, target, .. } = testbed;

    let mut count = 0;
    let (lending, from) = (&mut testbed.lending, &mut testbed.from);
    let mut each = |name: &str, make: &mut dyn FnMut(&Lending) -> Vec<squeue::Entry>| {
        count += run(lending, &failing, name, make);
    };
    each("null", &mut |it| vec![it.get_with(0, NULL, 0, 64, REPLACE | further(7))]);
    each("cache", &mut |it| vec![it.get(0, cached, 0, BYTES)]);
    each("cache, many", &mut |it| vec![it.get_with(0, cached, 0, 5_000, further(3))]);
    each("past the cache", &mut |it| vec![it.get(0, direct, 0, 65_536)]);
    each("made", &mut |it| vec![it.get(0, made, 0, 1_000)]);
    each("stream", &mut |it| {
        from.write_all(&[1; 5_000]).expect("sends");
        vec![it.get(0, stream, 0, 5_000)]
    });
    each("waiting", &mut |it| vec![it.get(0, still, 0, 10), it.cancel(0, CANCEL_ALL)]);
    each("fresh", &mut |it| vec![it.fresh(0, 1, BYTES)]);
    each("fresh, sent and put", &mut |it| {
        vec![it.fresh(0, 1, 5_000), it.send(1, target, 0, 5_000, 0), it.put(0), it.put(1)]
    });
    // The ring's requests are in its own cache by now, so these are the module's and the sockets'.
    assert!(count > 20, "{count}");

    let open = || {
        let device = Device(OpenOptions::new().read(true).write(true).open("/dev/getbuf")?);
        device.bind(&testbed.file, SOURCE)
    };
    for number in 1.. {
        failing.arm(number);
        let opened = open();
        if !failing.disarm() {
            opened.expect("no allocation failed");
            assert!(number > 3, "{number}");
            break;
        }
    }
    testbed.end();
}

#[test]
fn allocations_of_workers_may_fail() {
    if !ready() {
        handoff_testbed::skip!("this kernel fails no allocations on demand");
    }
    let mut testbed = Testbed::new();
    let (mut failed, mut done) = (0, 0);
    let failing = AtRandom::below("getbuf", 10);
    for _ in 0..if long_form() { 2_000 } else { 50 } {
        testbed.from.write_all(&[1; 5_000]).expect("sends");
        let it = &testbed.lending;
        let entries = [
            it.get_with(0, NULL, 0, 64, REPLACE | further(7)),
            it.put(0),
            it.get(0, testbed.cached, 0, BYTES),
            it.put(1),
            it.get(1, testbed.direct, 0, 65_536),
            it.put(2),
            it.get(2, testbed.made, 0, 1_000),
            it.put(3),
            it.get_with(3, testbed.stream, 0, 5_000, NOWAIT),
            it.put(4),
            it.put(5),
            it.fresh(4, 5, BYTES),
            it.send(5, testbed.target, 0, 5_000, 0),
        ];
        for entry in entries {
            match testbed.lending.run(entry.flags(squeue::Flags::ASYNC)) {
                0.. => done += 1,
                error if error == -libc::ENOMEM => failed += 1,
                // For slots that stayed empty, or full, since another command failed.
                error => {
                    let foreseen = [libc::EAGAIN, libc::EFAULT, libc::EINVAL, libc::EBUSY];
                    assert!(foreseen.contains(&-error), "{error}");
                }
            }
        }
    }
    drop(failing);
    assert!(failed > 0 && done > failed, "{done} done, {failed} failed");
    testbed.end();
}
