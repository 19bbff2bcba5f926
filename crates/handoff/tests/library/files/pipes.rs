//! Pipes as ends of routes: all bytes go over in order, and a pipe that is empty or full holds nobody.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::thread::{self, JoinHandle};

use handoff::{Carried, Driver, Route, RouteEngine, RouteSink, RouteSource};

use super::{LONG, file_of, make_nonblocking, pipe};
use crate::traffic::{assert_same, pattern, read_all, tcp, with_each_driver};

const LEN: usize = (256 << 10) + 4_567;
const ENGINES: [RouteEngine; 3] = [RouteEngine::Splice, RouteEngine::Memory, RouteEngine::Copy];

fn fill(end: OwnedFd) -> JoinHandle<()> {
    thread::spawn(move || File::from(end).write_all(&pattern(1, LEN)).unwrap())
}

fn drain(end: OwnedFd) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        File::from(end).read_to_end(&mut all).unwrap();
        all
    })
}

fn run(
    driver: &Driver,
    engine: RouteEngine,
    source: impl Into<RouteSource>,
    sink: impl Into<RouteSink>,
) -> Carried {
    let mut route = Route::new(driver, source, sink).only(engine);
    let carried = driver.block_on(route.run()).unwrap();
    carried.result.as_ref().unwrap_or_else(|error| panic!("{engine}: {error}"));
    assert_eq!(carried.bytes, LEN as u64);
    assert_eq!((carried.taken.total(), carried.given.total()), (LEN as u64, LEN as u64));
    carried
}

#[test]
fn a_pipe_is_carried_to_its_end_and_takes_all_in_order() {
    with_each_driver(LONG, |driver| {
        for engine in ENGINES {
            for nonblocking in [false, true] {
                let ends = || {
                    let (reader, writer) = pipe();
                    if nonblocking {
                        make_nonblocking(&reader);
                        make_nonblocking(&writer);
                    }
                    (reader, writer)
                };
                // Pipe to pipe.
                let ((from, filled), (drained, to)) = (pipe(), pipe());
                let (filler, drainer) = (fill(filled), drain(drained));
                if nonblocking {
                    make_nonblocking(&from);
                    make_nonblocking(&to);
                }
                let (from, to) = (driver.file(from).unwrap(), driver.file(to).unwrap());
                let carried = run(&driver, engine, &from, &to);
                match engine {
                    RouteEngine::Splice => assert_eq!(carried.given.unknown, LEN as u64),
                    _ => assert_eq!(
                        (carried.taken.copied, carried.given.copied),
                        (LEN as u64, LEN as u64)
                    ),
                }
                drop((from, to));
                filler.join().unwrap();
                assert_same(&drainer.join().unwrap(), &pattern(1, LEN));

                // File to pipe, and pipe to file.
                let (drained, to) = pipe();
                let drainer = drain(drained);
                let (file, to) =
                    (driver.file(file_of(&pattern(1, LEN))).unwrap(), driver.file(to).unwrap());
                run(&driver, engine, (&file, 0..u64::MAX), &to);
                drop(to);
                assert_same(&drainer.join().unwrap(), &pattern(1, LEN));
                let (from, filled) = pipe();
                let filler = fill(filled);
                let into = tempfile::tempfile().unwrap();
                let file = driver.file(into.try_clone().unwrap()).unwrap();
                run(&driver, engine, &driver.file(from).unwrap(), (&file, 10));
                filler.join().unwrap();
                let mut got = vec![0; LEN];
                into.read_exact_at(&mut got, 10).unwrap();
                assert_same(&got, &pattern(1, LEN));

                // Socket to pipe, and pipe to socket.
                let ((drained, to), (near, mut far)) = (ends(), tcp("127.0.0.1"));
                rustix::io::ioctl_fionbio(&drained, false).unwrap();
                let drainer = drain(drained);
                let filler = thread::spawn(move || far.write_all(&pattern(1, LEN)).unwrap());
                let to = driver.file(to).unwrap();
                run(&driver, engine, &driver.socket(near).unwrap(), &to);
                drop(to);
                filler.join().unwrap();
                assert_same(&drainer.join().unwrap(), &pattern(1, LEN));
                let ((from, filled), (near, far)) = (ends(), tcp("127.0.0.1"));
                rustix::io::ioctl_fionbio(&filled, false).unwrap();
                let (filler, reader) = (fill(filled), read_all(far));
                let socket = driver.socket(near).unwrap();
                run(&driver, engine, &driver.file(from).unwrap(), &socket);
                drop(socket);
                filler.join().unwrap();
                assert_same(&reader.join().unwrap(), &pattern(1, LEN));
            }
        }
        assert_eq!(driver.in_flight(), 0);
    });
}

/// As for standard input and output, which may be anything.
#[test]
fn a_file_without_an_offset_goes_on_from_its_position() {
    with_each_driver(LONG, |driver| {
        for engine in ENGINES {
            let mut from = file_of(&pattern(1, LEN + 100));
            std::io::Seek::seek(&mut from, std::io::SeekFrom::Start(100)).unwrap();
            let into = file_of(b"before");
            let source = driver.file(from).unwrap();
            let sink = driver.file(into.try_clone().unwrap()).unwrap();
            run(&driver, engine, &source, &sink);
            let mut got = vec![0; LEN + 6];
            into.read_exact_at(&mut got, 0).unwrap();
            assert_eq!(&got[..6], b"before");
            assert_same(&got[6..], &pattern(1, LEN + 100)[100..]);
        }
    });
}

#[test]
fn a_pipe_without_a_reader_ends_its_route() {
    with_each_driver(LONG, |driver| {
        for engine in ENGINES {
            let (reader, writer) = pipe();
            drop(reader);
            let file = driver.file(file_of(&pattern(1, LEN))).unwrap();
            let sink = driver.file(writer).unwrap();
            let mut route = Route::new(&driver, (&file, 0..u64::MAX), &sink).only(engine);
            let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPIPE), "{engine}: {error}");
            let mut route = Route::new(&driver, (&file, 0..9), &sink).head(vec![1]).only(engine);
            let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
            assert!(error.to_string().contains("has no head"), "{error}");
        }
    });
}
