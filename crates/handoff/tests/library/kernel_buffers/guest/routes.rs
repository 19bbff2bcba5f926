//! Routes of the module, over real file systems, block devices and NICs.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use handoff::{Carried, Driver, Engine, RingUse, Route, RouteEngine, RouteSink, RouteSource};
use handoff_meter::{Meter, Options, Scope};
use handoff_testbed::helpers::{bytes_at, eventually};
use handoff_testbed::{Disk, Pair, RamDisk, load};

use crate::kernel_buffers::testbed::{
    Lending, connection, direct, filled, on_disk, read_all, write_all,
};

const LEN: usize = (2 << 20) + 4_567;

fn run(lending: &Lending, source: RouteSource, sink: RouteSink) -> Carried {
    let mut route = Route::new(&lending.driver, source, sink);
    let carried = lending.run(route.run());
    assert_eq!(route.passed_over(), [], "{carried:?}");
    if let Err(error) = &carried.result {
        panic!("{error}");
    }
    assert_eq!(carried.engine, RouteEngine::GetBuf);
    eventually("all lends are back", || {
        lending.driver.turn(handoff::Wait::No).expect("turns");
        (lending.driver.in_flight() == 0).then_some(())
    });
    carried
}

/// Kernel threads copy for others too, and the meter cannot tell for whom. That only adds, and ends.
const QUIET_WITHIN: Duration = Duration::from_secs(5);

/// Everything is lent in place. The kernel's CPU copies it at the `ends` that have it in user memory, and
/// nowhere between. The kernel's report of sends cannot decide this: it calls a send copied when all its
/// bytes joined the packet of the send before, as small ones do.
fn check_nothing_copied(ends: usize, carry: impl Fn() -> Carried) {
    let scope = Scope::Tree(std::process::id());
    let meter = Meter::attach_with(Options { scope, paths: true, libc: false }).expect("counts");
    let (by_ends, few) = ((ends * LEN) as u64, LEN as u64 / 50);
    // The kernel copies the payload of a small packet to its header while it waits for the socket's lock
    // (`skb_condense`), and what lies there cannot be lent.
    let right = by_ends..by_ends + few;
    let (begun, mut counts) = (Instant::now(), Vec::new());
    while begun.elapsed() < QUIET_WITHIN {
        let before = meter.totals().expect("counts");
        let carried = carry();
        let spent = meter.totals().expect("counts").since(before);
        for tally in [carried.taken, carried.given] {
            assert_eq!(tally.zero_copy + tally.copied, LEN as u64, "{carried:?}");
        }
        assert!(carried.taken.copied < few, "{carried:?}");
        let copied = spent.copied_bytes + spent.unattributed_bytes;
        if right.contains(&copied) {
            return;
        }
        counts.push(copied);
    }
    let report = meter.read().expect("counts");
    panic!("copied {counts:?} bytes, where the ends copy {by_ends}: {report:#?}");
}

fn file(driver: &Driver, file: impl Into<OwnedFd>) -> handoff::File {
    driver.file(file).expect("attaches")
}

#[test]
fn a_file_goes_to_a_socket_and_nothing_is_copied() {
    let pair = Pair::wire(4_148).expect("a pair of NICs");
    let directory = on_disk();
    let content = filled(&directory, LEN);
    let lending = Lending::new();
    // Only the reader of the socket has it in user memory.
    check_nothing_copied(1, || {
        let (near, far) = pair.connection().expect("the hosts connect");
        let received = read_all(far);
        let from = content.try_clone().expect("is open");
        let source = RouteSource::File(file(&lending.driver, from), 0..u64::MAX);
        let socket = lending.driver.socket(near).expect("attaches");
        socket.set_engine(Engine::UringZc).expect("has a ring");
        let carried = run(&lending, source, RouteSink::Socket(socket));
        assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
        assert_eq!(carried.taken.zero_copy, LEN as u64, "{carried:?}");
        carried
    });
}

#[test]
fn a_file_goes_to_a_file_past_the_page_cache_and_through_it() {
    let directory = on_disk();
    let lending = Lending::new();
    let source = || file(&lending.driver, filled(&directory, 2 << 20));
    let into = file(&lending.driver, direct(&directory, "direct"));
    let carried = run(&lending, RouteSource::File(source(), 0..2 << 20), RouteSink::File(into, 0));
    assert_eq!((carried.taken.zero_copy, carried.given.zero_copy), (2 << 20, 2 << 20));
    let buffered = File::create_new(directory.path().join("buffered")).expect("makes");
    let into = file(&lending.driver, buffered);
    let carried = run(&lending, RouteSource::File(source(), 0..2 << 20), RouteSink::File(into, 0));
    assert_eq!((carried.taken.zero_copy, carried.given.copied), (2 << 20, 2 << 20));
    for name in ["direct", "buffered"] {
        let content = std::fs::read(directory.path().join(name)).expect("reads");
        assert!(content == bytes_at(0, 2 << 20), "content differs: {name}");
    }
}

#[test]
fn what_does_not_fill_a_block_says_so_past_the_page_cache() {
    let directory = on_disk();
    let lending = Lending::new();
    let source = RouteSource::File(file(&lending.driver, filled(&directory, 5_000)), 0..u64::MAX);
    let into = file(&lending.driver, direct(&directory, "direct"));
    let mut route = Route::new(&lending.driver, source, RouteSink::File(into, 0));
    let error = lending.run(route.run()).result.expect_err("half a page can't be written");
    assert!(error.to_string().contains("O_DIRECT"), "{error}");
}

#[test]
fn a_stream_goes_to_another_and_nothing_is_copied() {
    let (first, second) = (Pair::wire(1_500).expect("a pair"), Pair::wire(1_500).expect("a pair"));
    let lending = Lending::new();
    // The writer of one stream and the reader of the other have it in user memory.
    check_nothing_copied(2, || {
        let (from, near) = first.connection().expect("the hosts connect");
        let (out, far) = second.connection().expect("the hosts connect");
        let (sent, received) = (write_all(from, LEN), read_all(far));
        let source = RouteSource::Stream(lending.driver.socket(near).expect("attaches"), None);
        let socket = lending.driver.socket(out).expect("attaches");
        socket.set_engine(Engine::UringZc).expect("has a ring");
        let carried = run(&lending, source, RouteSink::Socket(socket));
        sent.join().expect("ends");
        assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
        carried
    });
}

/// The driver and all its routes have the module in common.
#[test]
fn a_stream_counts_its_own_copies() {
    const LEN: usize = 100_000;
    let pair = Pair::new(1_500).expect("a pair of interfaces");
    // Packets in one piece, which is not of whole pages.
    pair.left.ethtool("-K", &["tx-scatter-gather", "off"]).expect("is set");
    let lending = Lending::new();
    let streams = [pair.connection().expect("the hosts connect"), connection()];
    let copied = streams.map(|(from, near)| {
        let (out, far) = connection();
        let (sent, received) = (write_all(from, LEN), read_all(far));
        let source = RouteSource::Stream(lending.driver.socket(near).expect("attaches"), None);
        let sink = RouteSink::Socket(lending.driver.socket(out).expect("attaches"));
        let taken = run(&lending, source, sink).taken;
        sent.join().expect("ends");
        assert!(received.join().expect("ends") == bytes_at(0, LEN), "what arrived differs");
        assert_eq!((taken.total(), taken.unknown), (LEN as u64, 0), "{taken:?}");
        taken.copied
    });
    // Over loopback the kernel joins short packets, by copying.
    assert!(copied[0] > LEN as u64 / 2 && copied[1] < LEN as u64 / 10, "{copied:?}");
}

#[test]
fn a_stream_goes_to_a_file() {
    let (from, near) = connection();
    let sent = write_all(from, LEN);
    let directory = on_disk();
    let lending = Lending::new();
    let source = RouteSource::Stream(lending.driver.socket(near).expect("attaches"), None);
    let sink = File::create_new(directory.path().join("sink")).expect("makes");
    let carried = run(&lending, source, RouteSink::File(file(&lending.driver, sink), 0));
    assert_eq!(carried.given.copied, LEN as u64, "the page cache takes a copy");
    sent.join().expect("ends");
    let content = std::fs::read(directory.path().join("sink")).expect("reads");
    assert!(content == bytes_at(0, LEN), "content differs");
}

#[test]
fn routes_do_not_look_again_for_a_device_that_is_missing() {
    let driver = Driver::builder().ring(RingUse::Require).build().expect("a ring");
    let directory = on_disk();
    let content = file(&driver, filled(&directory, LEN));
    let engine = |of_choice: fn(Route) -> Route| {
        let (near, far) = connection();
        let received = read_all(far);
        let socket = driver.socket(near).expect("attaches");
        let carried = driver
            .block_on(of_choice(Route::new(&driver, (&content, 0..LEN as u64), &socket)).run());
        drop(socket);
        let received = received.join().expect("ends");
        let carried = carried.expect("runs");
        carried.result.map(|()| (carried.engine, received == bytes_at(0, LEN)))
    };
    load("getbuf", &[]).expect("the lab's kernel has it");
    eventually("the module can be removed", || {
        Command::new("rmmod").arg("getbuf").output().expect("starts").status.success().then_some(())
    });
    assert_eq!(engine(|any| any).expect("runs"), (RouteEngine::Splice, true));
    let error = engine(|any| any.only(RouteEngine::GetBuf)).expect_err("there is none");
    assert!(error.to_string().contains("the module getbuf is not loaded"), "{error}");

    load("getbuf", &[]).expect("the lab's kernel has it");
    eventually("the device is there", || Path::new("/dev/getbuf").exists().then_some(()));
    assert_eq!(engine(|any| any).expect("runs"), (RouteEngine::Splice, true));
    // Who asks for it gets it, and so do all afterwards.
    let asked = engine(|any| any.only(RouteEngine::GetBuf)).expect("runs");
    assert_eq!(asked, (RouteEngine::GetBuf, true));
    assert_eq!(engine(|any| any).expect("runs"), (RouteEngine::GetBuf, true));
}

#[test]
fn every_file_system_and_block_devices_lend() {
    let disk = RamDisk::new(64 << 10).expect("a disk in memory");
    let node = disk.path().to_path_buf();
    let content = bytes_at(0, LEN);
    let check = |path: &Path| {
        let (near, far) = connection();
        let received = read_all(far);
        let lending = Lending::new();
        let from = File::open(path).expect("opens");
        let source = RouteSource::File(file(&lending.driver, from), 0..LEN as u64);
        let socket = lending.driver.socket(near).expect("attaches");
        let carried = run(&lending, source, RouteSink::Socket(socket));
        assert_eq!(carried.taken.zero_copy, LEN as u64, "{}: {carried:?}", path.display());
        assert!(
            received.join().expect("ends") == content,
            "what arrived differs: {}",
            path.display()
        );
    };
    OpenOptions::new().write(true).open(&node).expect("opens").write_all(&content).expect("writes");
    check(&node);
    let directory = on_disk();
    let mount = |arguments: &[&str]| Mounted::new(&directory, arguments);
    {
        let mounted = mount(&["-t", "tmpfs", "none"]);
        fs::write(mounted.0.join("file"), &content).expect("writes");
        check(&mounted.0.join("file"));
    }
    run_command("mkfs.ext4", &["-qF", node.to_str().expect("text")]);
    {
        let mounted = mount(&[node.to_str().expect("text")]);
        fs::write(mounted.0.join("file"), &content).expect("writes");
        check(&mounted.0.join("file"));
    }
    let (below, upper, work) = (
        directory.path().join("below"),
        directory.path().join("upper"),
        directory.path().join("work"),
    );
    for made in [&below, &upper, &work] {
        fs::create_dir(made).expect("makes");
    }
    fs::write(below.join("file"), &content).expect("writes");
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        below.display(),
        upper.display(),
        work.display()
    );
    let mounted = mount(&["-t", "overlay", "overlay", "-o", &layers]);
    check(&mounted.0.join("file"));
}

struct Mounted(PathBuf);

impl Mounted {
    fn new(directory: &tempfile::TempDir, arguments: &[&str]) -> Self {
        let point = directory.path().join("mounted");
        fs::create_dir_all(&point).expect("makes");
        let mut all = arguments.to_vec();
        let text = point.to_str().expect("text").to_owned();
        // Options come last.
        let place = all.iter().position(|argument| *argument == "-o").unwrap_or(all.len());
        all.insert(place, &text);
        run_command("mount", &all);
        Self(point)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run_command("umount", &[self.0.to_str().expect("text")]);
    }
}

fn run_command(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().expect("starts");
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
