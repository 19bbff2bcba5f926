//! Routes by every engine that needs no module: all bytes arrive, in order, and slow sinks slow their
//! sources.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::{Either, select};
use handoff::{
    Buffer, Carried, Driver, Error, Executor, RingUse, Route, RouteEngine, RouteSink, RouteSource,
    Wait,
};
use handoff_testbed::skip;
use rustix::io::ReadWriteFlags;

use crate::traffic::{self, drivers, narrow_tcp, pattern, read_all, tcp};

const LEN: usize = (3 << 20) + 4_567;
const ENGINES: [RouteEngine; 3] = [RouteEngine::Splice, RouteEngine::Memory, RouteEngine::Copy];

fn every(test: impl Fn(&Driver, RouteEngine)) {
    for driver in drivers() {
        for engine in ENGINES {
            eprintln!("{engine}, ring: {:?}", driver.ring_unavailable());
            test(&driver, engine);
        }
    }
}

fn source_file() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(1, LEN)).unwrap();
    file
}

fn content(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn write_all(mut stream: TcpStream) -> JoinHandle<()> {
    std::thread::spawn(move || stream.write_all(&pattern(1, LEN)).unwrap())
}

fn run(driver: &Driver, route: Route, engine: RouteEngine) -> Carried {
    let mut route = route.only(engine);
    let carried = driver.block_on(route.run()).unwrap();
    carried.result.as_ref().unwrap_or_else(|error| panic!("{engine}: {error}"));
    assert_eq!((carried.engine, carried.bytes), (engine, LEN as u64));
    assert_eq!(carried.taken.total(), LEN as u64, "{:?}", carried.taken);
    assert_eq!(carried.given.total(), LEN as u64, "{:?}", carried.given);
    carried
}

#[test]
fn a_file_goes_to_a_socket() {
    every(|driver, engine| {
        let (near, far) = tcp("127.0.0.1");
        let received = read_all(far);
        let file = driver.file(source_file()).unwrap();
        let socket = driver.socket(near).unwrap();
        let route =
            Route::new(driver, RouteSource::File(file, 0..u64::MAX), RouteSink::Socket(socket));
        let carried = run(driver, route, engine);
        match engine {
            RouteEngine::Splice => assert_eq!(carried.given.unknown, LEN as u64),
            RouteEngine::Copy => assert_eq!(carried.given.copied, LEN as u64),
            _ => assert_eq!(carried.taken.copied, LEN as u64),
        }
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    });
}

#[test]
fn a_head_goes_before_a_file() {
    every(|driver, engine| {
        // The third has nothing behind the head.
        for (len, range) in [(1, 0..u64::MAX), (5_000, 0..u64::MAX), (300, 7..7), (40_000, 0..99)] {
            let (near, far) = tcp("127.0.0.1");
            let received = read_all(far);
            let (file, head) = (driver.file(source_file()).unwrap(), pattern(2, len));
            let socket = driver.socket(near).unwrap();
            let route = Route::new(driver, (&file, range.clone()), &socket);
            let mut route = route.head(head.clone()).only(engine);
            let carried = driver.block_on(route.run()).unwrap();
            carried.result.unwrap();
            let content = pattern(1, LEN);
            let part = &content[range.start as usize..LEN.min(range.end as usize)];
            assert_eq!(carried.bytes, part.len() as u64, "{engine}");
            assert_eq!(carried.given.total(), (part.len() + len) as u64, "{engine}");
            if engine == RouteEngine::Splice {
                assert_eq!(carried.given.copied, len as u64);
            }
            driver.block_on(socket.flush()).unwrap().unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(received.join().unwrap() == [&head[..], part].concat(), "{engine}: {len}");
        }
        let into = driver.file(tempfile::tempfile().unwrap()).unwrap();
        let file = driver.file(source_file()).unwrap();
        let mut route = Route::new(driver, (&file, 0..9), (&into, 0)).head(vec![1]).only(engine);
        let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
        assert!(error.to_string().contains("has no head"), "{error}");
    });
}

#[test]
fn engines_that_are_better_can_be_left_out() {
    let driver = Driver::new().unwrap();
    let file = driver.file(source_file()).unwrap();
    let socket = driver.socket(tcp("127.0.0.1").0).unwrap();
    for engine in ENGINES {
        let route = Route::new(&driver, (&file, 0..9), &socket).starting_with(engine);
        assert_eq!(route.engine(), engine);
    }
}

#[test]
fn a_part_of_a_file_goes_into_another() {
    every(|driver, engine| {
        let sink = tempfile::tempfile().unwrap();
        let file = driver.file(source_file()).unwrap();
        let into = driver.file(sink.try_clone().unwrap()).unwrap();
        let source = RouteSource::File(file, 1_000..2_000_000);
        let mut route = Route::new(driver, source, RouteSink::File(into, 10)).only(engine);
        let carried = driver.block_on(route.run()).unwrap();
        carried.result.unwrap();
        assert_eq!((carried.bytes, carried.given.copied), (1_999_000, 1_999_000));
        let content = content(sink);
        assert!(content[..10] == [0; 10], "something lies before the offset");
        assert!(content[10..] == pattern(1, LEN)[1_000..2_000_000], "content differs");
    });
}

#[test]
fn a_stream_goes_to_another() {
    every(|driver, engine| {
        let ((from, near), (out, far)) = (tcp("127.0.0.1"), tcp("::1"));
        let (sent, received) = (write_all(from), read_all(far));
        let source = RouteSource::Stream(driver.socket(near).unwrap(), None);
        let sink = RouteSink::Socket(driver.socket(out).unwrap());
        run(driver, Route::new(driver, source, sink), engine);
        sent.join().unwrap();
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    });
}

/// A route with all engines to choose from.
fn any(driver: &Driver, near: TcpStream, out: TcpStream) -> Route {
    let source = RouteSource::Stream(driver.socket(near).unwrap(), None);
    Route::new(driver, source, RouteSink::Socket(driver.socket(out).unwrap()))
}

#[test]
fn few_small_pieces_of_a_stream_are_copied() {
    for driver in drivers() {
        let ((mut from, near), (out, far)) = (tcp("127.0.0.1"), tcp("::1"));
        let received = read_all(far);
        let sent = std::thread::spawn(move || {
            for piece in pattern(1, 1_000).chunks(300) {
                from.write_all(piece).unwrap();
            }
        });
        let mut route = any(&driver, near, out);
        let carried = driver.block_on(route.run()).unwrap();
        carried.result.unwrap();
        assert_eq!((carried.engine, carried.bytes), (RouteEngine::Copy, 1_000));
        assert_eq!((carried.taken.copied, carried.given.copied), (1_000, 1_000));
        // What comes after the end is nothing, by another engine.
        let carried = driver.block_on(route.run()).unwrap();
        carried.result.unwrap();
        assert_eq!((carried.engine != RouteEngine::Copy, carried.bytes), (true, 1_000));
        drop(route);
        sent.join().unwrap();
        assert!(received.join().unwrap() == pattern(1, 1_000), "what arrived differs");
    }
}

#[test]
fn a_stream_that_goes_on_is_copied_no_more() {
    for driver in drivers() {
        let ((from, near), (out, far)) = (tcp("127.0.0.1"), tcp("::1"));
        let (sent, received) = (write_all(from), read_all(far));
        let carried = driver.block_on(any(&driver, near, out).run()).unwrap();
        carried.result.as_ref().unwrap();
        assert_ne!(carried.engine, RouteEngine::Copy);
        assert_eq!((carried.bytes, carried.taken.total()), (LEN as u64, LEN as u64));
        // getbuf may have to copy, too, but says so.
        assert!(carried.taken.copied <= 20 << 10, "{carried:?}");
        sent.join().unwrap();
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    }
}

/// The sink is full, and has sends under way when the first piece comes.
#[test]
fn a_first_piece_waits_for_the_sink() {
    for driver in drivers() {
        let ((mut from, near), (out, far)) = (tcp("127.0.0.1"), narrow_tcp());
        let sink = driver.socket(out).unwrap();
        let before = pattern(2, 1 << 20);
        let send = sink.send(Buffer::from(before.clone())).unwrap();
        from.write_all(&pattern(1, 700)).unwrap();
        drop(from);
        let source = driver.socket(near).unwrap();
        let mut route = Route::new(&driver, &source, &sink);
        let mut carry = Box::pin(route.run());
        let polled = driver.block_on(futures_lite::future::poll_once(carry.as_mut())).unwrap();
        assert!(polled.is_none(), "the sink took all");
        let received = read_all(far);
        let carried = driver.block_on(carry.as_mut()).unwrap();
        drop(carry);
        carried.result.unwrap();
        assert_eq!((carried.engine, carried.bytes), (RouteEngine::Copy, 700));
        driver.block_on(send.into_future()).unwrap().unwrap().sent.unwrap();
        drop((route, sink));
        let all = [before, pattern(1, 700)].concat();
        assert!(received.join().unwrap() == all, "what arrived differs");
    }
}

#[test]
fn a_stream_goes_to_a_file() {
    every(|driver, engine| {
        let (from, near) = tcp("127.0.0.1");
        let sent = write_all(from);
        let sink = tempfile::tempfile().unwrap();
        let source = RouteSource::Stream(driver.socket(near).unwrap(), None);
        let into = driver.file(sink.try_clone().unwrap()).unwrap();
        run(driver, Route::new(driver, source, RouteSink::File(into, 0)), engine);
        sent.join().unwrap();
        assert!(content(sink) == pattern(1, LEN), "content differs");
    });
}

fn still_runs(driver: &Driver, carry: Pin<&mut impl Future<Output = Carried>>) {
    let early = driver.block_on(driver.timeout(Duration::from_millis(20), carry)).unwrap();
    assert!(matches!(early, Err(Error::TimedOut { .. })), "{early:?}");
}

#[test]
fn a_file_waits_for_room_at_the_driver() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        for engine in [RouteEngine::Memory, RouteEngine::Copy] {
            let driver = Driver::builder().ring(ring).in_flight(1).build().unwrap();
            let (full, other) = narrow_tcp();
            let full = driver.socket(full).unwrap();
            drop(full.send(Buffer::from(pattern(2, 1 << 20))).unwrap());
            let (near, far) = tcp("127.0.0.1");
            let received = read_all(far);
            let (file, socket) =
                (driver.file(source_file()).unwrap(), driver.socket(near).unwrap());
            let mut route = Route::new(&driver, (&file, 0..u64::MAX), &socket);
            route = route.head(pattern(3, 1_000)).only(engine);
            let mut carry = Box::pin(route.run());
            still_runs(&driver, carry.as_mut());
            let others = read_all(other);
            let carried = driver.block_on(carry.as_mut()).unwrap();
            drop(carry);
            carried.result.unwrap();
            assert_eq!(carried.bytes, LEN as u64);
            drop((route, socket, full));
            // A connection closes when its last loan is back, and only a turn takes it back.
            while driver.loan_stats().unclaimed > 0 {
                driver.turn(Wait::AtMost(Duration::from_millis(20))).unwrap();
            }
            assert!(others.join().unwrap() == pattern(2, 1 << 20), "what arrived differs");
            let all = [pattern(3, 1_000), pattern(1, LEN)].concat();
            assert!(received.join().unwrap() == all, "what arrived differs");
        }
    }
}

#[test]
fn a_stream_waits_for_the_room_of_its_own_pieces() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        for engine in [RouteEngine::Memory, RouteEngine::Copy] {
            let driver = Driver::builder().ring(ring).in_flight(2).build().unwrap();
            let ((from, near), (out, far)) = (tcp("127.0.0.1"), narrow_tcp());
            let sent = write_all(from);
            let (source, sink) = (driver.socket(near).unwrap(), driver.socket(out).unwrap());
            let mut route = Route::new(&driver, &source, &sink).only(engine);
            let mut carry = Box::pin(route.run());
            still_runs(&driver, carry.as_mut());
            let received = read_all(far);
            let carried = driver.block_on(carry.as_mut()).unwrap();
            drop(carry);
            carried.result.unwrap();
            assert_eq!(carried.bytes, LEN as u64);
            sent.join().unwrap();
            drop((route, sink));
            assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
        }
    }
}

#[test]
fn a_sink_that_stands_still_holds_back_its_source() {
    every(|driver, engine| {
        let ((mut from, near), (out, far)) = (narrow_tcp(), narrow_tcp());
        from.set_nonblocking(true).unwrap();
        let source = RouteSource::Stream(driver.socket(near).unwrap(), None);
        let sink = RouteSink::Socket(driver.socket(out).unwrap());
        let mut route = Route::new(driver, source, sink).only(engine);
        let sent = driver
            .block_on(async {
                let carry = std::pin::pin!(route.run());
                let mut carry = carry;
                let piece = pattern(0, 1 << 16);
                let (mut sent, mut idle) = (0, 0);
                std::future::poll_fn(|context| {
                    assert!(carry.as_mut().poll(context).is_pending(), "the sink took all");
                    // A turn with nothing taken is not the end: pages are on their way.
                    while idle < 200 {
                        match from.write(&piece) {
                            Ok(bytes) => (sent, idle) = (sent + bytes, 0),
                            Err(error) => {
                                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                                idle += 1;
                                driver
                                    .turn(Wait::AtMost(std::time::Duration::from_millis(1)))
                                    .unwrap();
                                context.waker().wake_by_ref();
                                return std::task::Poll::Pending;
                            }
                        }
                    }
                    std::task::Poll::Ready(sent)
                })
                .await
            })
            .unwrap();
        // Sixteen pieces, a pipe, and what four narrow socket buffers hold.
        assert!(sent < 16 << 20, "{engine}: {sent} bytes were taken and nobody read any");
        drop(far);
    });
}

#[test]
fn a_socket_is_sent_to_by_other_ways_after_a_route() {
    every(|driver, engine| {
        let (near, far) = tcp("127.0.0.1");
        let received = read_all(far);
        let socket = driver.socket(near).unwrap();
        let source = RouteSource::File(driver.file(source_file()).unwrap(), 0..100);
        let mut route = Route::new(driver, source, RouteSink::Socket(socket.clone())).only(engine);
        driver.block_on(route.run()).unwrap().result.unwrap();
        // More than fits at once, so it has to wait for room.
        let rest = handoff::Buffer::from(pattern(1, LEN).split_off(100));
        let finished =
            driver.block_on(async { socket.send(rest).unwrap().await }).unwrap().unwrap();
        assert_eq!(finished.sent.unwrap(), LEN - 100);
        drop((route, socket));
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    });
}

#[test]
fn a_route_that_never_waits_leaves_others_their_turns() {
    every(|driver, engine| {
        let open = |path| driver.file(File::options().read(true).write(true).open(path).unwrap());
        let source = RouteSource::File(open("/dev/zero").unwrap(), 0..u64::MAX);
        let sink = RouteSink::File(open("/dev/null").unwrap(), 0);
        let mut route = Route::new(driver, source, sink).only(engine);
        let progress = route.progress();
        let executor = Executor::new(driver);
        let task = executor.spawn(async move { route.run().await.result });
        let beside = async {
            while progress.get() < LEN as u64 {
                assert!(!task.is_finished(), "{engine} has ended");
                futures_lite::future::yield_now().await;
            }
        };
        executor.run(beside).unwrap();
    });
}

#[test]
fn a_file_that_ends_early_ends_the_route() {
    every(|driver, engine| {
        let sink = tempfile::tempfile().unwrap();
        let file = driver.file(source_file()).unwrap();
        let into = driver.file(sink.try_clone().unwrap()).unwrap();
        let source = RouteSource::File(file, LEN as u64 - 100..u64::MAX);
        let mut route = Route::new(driver, source, RouteSink::File(into, 0)).only(engine);
        assert_eq!(driver.block_on(route.run()).unwrap().bytes, 100);
        assert!(content(sink) == pattern(1, LEN)[LEN - 100..], "content differs");
    });
}

#[test]
fn a_range_without_bytes_moves_none() {
    every(|driver, engine| {
        for range in [5..5, std::ops::Range { start: 9, end: 2 }] {
            let source = RouteSource::File(driver.file(source_file()).unwrap(), range);
            let into = driver.file(tempfile::tempfile().unwrap()).unwrap();
            let mut route = Route::new(driver, source, RouteSink::File(into, 0)).only(engine);
            let carried = driver.block_on(route.run()).unwrap();
            carried.result.unwrap();
            assert_eq!(carried.bytes, 0, "{engine}");
        }
    });
}

#[test]
fn a_sink_that_appends_is_refused() {
    every(|driver, engine| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sink");
        let sink = File::options().create(true).append(true).open(&path).unwrap();
        let source = RouteSource::File(driver.file(source_file()).unwrap(), 0..10);
        let sink = RouteSink::File(driver.file(sink).unwrap(), 0);
        let mut route = Route::new(driver, source, sink).only(engine);
        let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
        assert!(error.to_string().contains("appending"), "{engine}: {error}");
        assert!(std::fs::read(path).unwrap().is_empty());
    });
}

#[test]
fn a_sink_that_fails_ends_the_route_with_its_error() {
    every(|driver, engine| {
        let ((from, near), (out, far)) = (tcp("127.0.0.1"), tcp("127.0.0.1"));
        let feed = std::thread::spawn(move || {
            let mut from = from;
            // Until the route is gone.
            while from.write_all(&[0; 1 << 16]).is_ok() {}
        });
        socket2::SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(far);
        let source = RouteSource::Stream(driver.socket(near).unwrap(), None);
        let sink = RouteSink::Socket(driver.socket(out).unwrap());
        let mut route = Route::new(driver, source, sink).only(engine);
        let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
        let errno = error.raw_os_error();
        assert!(matches!(errno, Some(libc::ECONNRESET | libc::EPIPE)), "{engine}: {error}");
        drop(route);
        // The driver closes the source when the kernel has let go of it.
        while !feed.is_finished() {
            driver.turn(Wait::AtMost(std::time::Duration::from_millis(5))).unwrap();
        }
        feed.join().unwrap();
    });
}

#[cfg(feature = "getbuf")]
#[test]
fn an_engine_that_can_not_serve_is_passed_over_with_its_reason() {
    let driver = traffic::without_ring();
    let (near, far) = tcp("127.0.0.1");
    let received = read_all(far);
    let source = RouteSource::File(driver.file(source_file()).unwrap(), 0..u64::MAX);
    let sink = RouteSink::Socket(driver.socket(near).unwrap());
    let mut route = Route::new(&driver, source, sink);
    assert_eq!(route.engine(), RouteEngine::GetBuf);
    let carried = driver.block_on(route.run()).unwrap();
    carried.result.unwrap();
    assert_eq!(carried.engine, RouteEngine::Splice);
    let [(engine, reason)] = route.passed_over() else { panic!("{:?}", route.passed_over()) };
    assert_eq!((*engine, reason.is_empty()), (RouteEngine::GetBuf, false));
    drop(route);
    assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
}

/// A file of which nothing is in the page cache.
fn cold_file(len: usize) -> File {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&pattern(1, len)).unwrap();
    file.sync_all().unwrap();
    // SAFETY: the descriptor is open, and no memory is named.
    let told = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(told, 0);
    file
}

/// Whether the kernel says of a new file that it must be read from the disk first. A look begins to read, and a disk
/// that is quick enough has read it then.
fn finds_a_cold_file() -> bool {
    let mut byte = [0];
    let look = &mut [std::io::IoSliceMut::new(&mut byte)];
    let looked = rustix::io::preadv2(cold_file(LEN), look, 0, ReadWriteFlags::NOWAIT);
    looked == Err(rustix::io::Errno::AGAIN)
}

/// Carries a file that is not in memory; returns whether the thread's turn ended before a byte came from the disk.
fn goes_on_before_the_disk_answers(driver: &Driver, at_once: bool) -> bool {
    let (near, far) = tcp("127.0.0.1");
    let received = read_all(far);
    let file = driver.file(cold_file(LEN)).unwrap();
    let socket = driver.socket(near).unwrap();
    socket.never_block().unwrap();
    let route = Route::new(driver, (&file, 0..LEN as u64), &socket);
    let mut route = route.starting_with(RouteEngine::Splice);
    let moved = route.progress();
    let mut went_on = true;
    if at_once {
        let is_all = route.run_at_once();
        went_on = !is_all && moved.get() == 0;
    }
    {
        let mut running = pin!(route.run());
        let first = std::future::poll_fn(|context| {
            let polled = running.as_mut().poll(context);
            went_on &= at_once || (polled.is_pending() && moved.get() == 0);
            Poll::Ready(polled)
        });
        let carried = match driver.block_on(first).unwrap() {
            Poll::Ready(carried) => carried,
            Poll::Pending => driver.block_on(running).unwrap(),
        };
        carried.result.unwrap();
    }
    assert_eq!(route.engine(), RouteEngine::Splice, "{:?}", route.passed_over());
    drop((route, socket));
    assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    went_on
}

#[test]
fn a_cold_file_does_not_hold_up_the_thread() {
    /// A disk may be quick once, but not each time.
    const TRIES: usize = 10;
    let driver = Driver::new().unwrap();
    let is_cold = (0..TRIES).any(|_| finds_a_cold_file());
    if driver.ring_unavailable().is_some() || !is_cold {
        skip!("there is no ring, or no file that is not in memory");
    }
    for at_once in [false, true] {
        let went_on = (0..TRIES).any(|_| goes_on_before_the_disk_answers(&driver, at_once));
        assert!(went_on, "the thread waited for the disk each time, at once: {at_once}");
    }
}

#[test]
fn a_route_without_a_pipe_goes_on_by_the_next_engine() {
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).pipes(1).build().unwrap();
        let (one, other) = (narrow_tcp(), tcp("127.0.0.1"));
        // It has the only pipe as long as nobody reads.
        let mut first = {
            let file = driver.file(source_file()).unwrap();
            let socket = driver.socket(one.0).unwrap();
            Route::new(&driver, (&file, 0..u64::MAX), &socket).starting_with(RouteEngine::Splice)
        };
        let moved = first.progress();
        let mut first = Box::pin(async move { first.run().await });
        let begun = std::future::poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending());
            if moved.get() > 0 { Poll::Ready(()) } else { Poll::Pending }
        });
        driver.block_on(begun).unwrap();

        let (from, into) = tcp("127.0.0.1");
        let feed = std::thread::spawn(move || {
            let mut from = from;
            from.write_all(&pattern(1, LEN)).unwrap();
        });
        let received = read_all(other.1);
        let source = driver.socket(into).unwrap();
        let sink = driver.socket(other.0).unwrap();
        let mut route = Route::new(&driver, &source, &sink).starting_with(RouteEngine::Splice);
        let carried = driver.block_on(route.run()).unwrap();
        carried.result.unwrap();
        assert_ne!(carried.engine, RouteEngine::Splice);
        let (engine, reason) = &route.passed_over()[0];
        assert_eq!(*engine, RouteEngine::Splice);
        assert!(reason.contains("pipe"), "{reason}");
        drop((route, source, sink));
        feed.join().unwrap();
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
        drop(first);
        // Its pipe is free again, and bytes in it went with it.
        let (near, far) = tcp("127.0.0.1");
        let received = read_all(far);
        let file = driver.file(source_file()).unwrap();
        let socket = driver.socket(near).unwrap();
        let mut third =
            Route::new(&driver, (&file, 0..u64::MAX), &socket).starting_with(RouteEngine::Splice);
        let carried = driver.block_on(third.run()).unwrap();
        assert_eq!(carried.engine, RouteEngine::Splice, "{:?}", third.passed_over());
        drop((third, socket));
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    }
}

#[test]
fn a_socket_that_sends_a_file_stays_its_owners() {
    for driver in drivers() {
        let (near, far) = tcp("127.0.0.1");
        let received = read_all(far);
        let socket = driver.socket(near).unwrap();
        let file = driver.file(source_file()).unwrap();
        // More than the socket has room for, and nobody waits for it.
        let before = vec![3; 8 << 20];
        let all = async {
            let _sending = socket.send(handoff::Buffer::from(before.clone())).unwrap();
            let carried = socket.send_file(&file, 1_000..2_000_000).await;
            carried.result.unwrap();
            assert_eq!(carried.bytes, 1_999_000);
            // Past the file's end there is nothing.
            let carried = socket.send_file(&file, LEN as u64 - 5..u64::MAX).await;
            carried.result.unwrap();
            assert_eq!(carried.bytes, 5);
            socket
                .send(handoff::Buffer::from(b"after".to_vec()))
                .unwrap()
                .await
                .unwrap()
                .sent
                .unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
        };
        driver.block_on(all).unwrap();
        let content = pattern(1, LEN);
        let expected = [&before[..], &content[1_000..2_000_000], &content[LEN - 5..], b"after"];
        assert!(received.join().unwrap() == expected.concat(), "what arrived differs");
    }
}

#[test]
fn a_route_is_made_of_what_is_kept() {
    every(|driver, engine| {
        let (near, far) = tcp("127.0.0.1");
        let (into, out) = tcp("127.0.0.1");
        let (writer, received) = (write_all(far), read_all(out));
        let (from, to) = (driver.socket(near).unwrap(), driver.socket(into).unwrap());
        run(driver, Route::new(driver, &from, &to), engine);
        assert_ne!(to.choice(1 << 20).reason, "asked for");
        writer.join().unwrap();
        to.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(received.join().unwrap() == pattern(1, LEN), "what arrived differs");
    });
}

#[test]
fn the_memory_of_a_route_goes_with_it() {
    const NAME: &str = "routes::the_memory_of_a_route_goes_with_it";
    const SLOTS: u32 = 4;
    if !traffic::alone(NAME) {
        return;
    }
    let pinned = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("VmPin:")).unwrap().to_owned()
    };
    let driver = Driver::builder().registered_buffers(SLOTS).build().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    let before = pinned();
    for round in 0..3 * SLOTS {
        let ((from, near), (out, far)) = (tcp("127.0.0.1"), tcp("127.0.0.1"));
        let to = driver.socket(out).unwrap();
        let received = read_all(far);
        if round % 2 == 0 {
            let (sent, from) = (write_all(from), driver.socket(near).unwrap());
            run(&driver, Route::new(&driver, &from, &to), RouteEngine::Memory);
            sent.join().unwrap();
        } else {
            let file = driver.file(source_file()).unwrap();
            run(&driver, Route::new(&driver, (&file, 0..u64::MAX), &to), RouteEngine::Memory);
        }
        drop(to);
        assert_eq!(received.join().unwrap().len(), LEN);
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        }
        driver.turn(Wait::No).unwrap();
        assert_eq!(pinned(), before, "{round}");
    }
    // The table is the user's.
    let regions: Vec<_> = (0..SLOTS).map(|_| handoff::Region::anonymous(1).unwrap()).collect();
    regions.iter().for_each(|region| drop(driver.register(region).unwrap()));
}

/// Each engine alone, and the choice among all.
fn choices() -> impl Iterator<Item = Option<RouteEngine>> {
    ENGINES.into_iter().map(Some).chain([None])
}

fn of_choice(route: Route, engine: Option<RouteEngine>) -> Route {
    match engine {
        Some(engine) => route.only(engine),
        None => route,
    }
}

#[test]
fn bytes_that_a_dropped_receive_took_are_not_passed_over() {
    for (driver, engine) in choices().flat_map(|it| drivers().into_iter().map(move |d| (d, it))) {
        let ((mut peer, near), (out, far)) = (tcp("127.0.0.1"), tcp("127.0.0.1"));
        let (from, to) = (driver.socket(near).unwrap(), driver.socket(out).unwrap());
        peer.write_all(b"0123456789").unwrap();
        let timed_out = driver.block_on(async {
            let receiving = from.receive_exact(Buffer::from(vec![0; 100])).unwrap();
            // Until the kernel has given it the bytes.
            let taken = async {
                while rustix::io::ioctl_fionread(&from).unwrap() > 0 {
                    driver.sleep(Duration::from_millis(1)).await.unwrap();
                }
            };
            let taken = std::pin::pin!(taken);
            matches!(select(receiving, taken).await, Either::Right(_))
        });
        assert!(timed_out.unwrap(), "it waits for 90 more bytes");
        peer.write_all(b"ABCDEFGHIJ").unwrap();
        drop(peer);
        let mut route = of_choice(Route::new(&driver, &from, &to), engine);
        let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
        assert!(matches!(error, Error::ReceivedLost { bytes: 10 }), "{engine:?}: {error}");
        drop((route, from, to));
        assert_eq!(read_all(far).join().unwrap(), b"", "{engine:?}");
    }
}

#[test]
fn a_stream_has_one_receiver_which_may_be_a_route() {
    for (driver, engine) in choices().flat_map(|it| drivers().into_iter().map(move |d| (d, it))) {
        let ((mut peer, near), (out, far)) = (tcp("127.0.0.1"), tcp("127.0.0.1"));
        let (from, to) = (driver.socket(near).unwrap(), driver.socket(out).unwrap());
        let pool = driver.pool(handoff::Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let receiver = from.receive(&pool).unwrap();
        let mut route = of_choice(Route::new(&driver, &from, &to), engine);
        let error = driver.block_on(route.run()).unwrap().result.unwrap_err();
        assert!(error.to_string().contains("has a receiver"), "{engine:?}: {error}");
        drop(receiver);
        // Its request may still be with the kernel, and would take what comes.
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        }
        driver
            .block_on(async {
                let mut route = of_choice(Route::new(&driver, &from, &to), engine);
                let progress = route.progress();
                let mut running = std::pin::pin!(route.run());
                peer.write_all(b"behind").unwrap();
                std::future::poll_fn(|context| {
                    assert!(running.as_mut().poll(context).is_pending());
                    if progress.get() == 0 { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                let refused = from.receive_into(Buffer::from(vec![0; 9])).unwrap_err();
                assert!(refused.error.to_string().contains("has a receiver"), "{engine:?}");
                drop(peer);
                let carried = running.await;
                carried.result.unwrap();
                assert_eq!(carried.bytes, 6, "{engine:?}");
                // The end of the stream is there for whoever receives next.
                let end = from.receive_into(Buffer::from(vec![0; 9])).unwrap().await.unwrap();
                assert_eq!(end.result.unwrap(), 0);
            })
            .unwrap();
        drop((route, from, to));
        assert_eq!(read_all(far).join().unwrap(), b"behind", "{engine:?}");
    }
}

#[test]
fn what_goes_at_once_goes_before_the_rest() {
    const HEAD: &[u8] = b"a head";
    for driver in drivers() {
        let (near, far) = narrow_tcp();
        let file = driver.file(source_file()).unwrap();
        let socket = driver.socket(near).unwrap();
        let route = |range| {
            Route::new(&driver, (&file, range), &socket)
                .starting_with(RouteEngine::Splice)
                .head(HEAD.to_vec())
        };
        // A socket that may block, other engines, and nothing to carry: none goes at once.
        assert!(!route(0..100).run_at_once());
        socket.never_block().unwrap();
        assert!(!route(0..100).only(RouteEngine::Memory).run_at_once());
        assert!(!route(5..5).run_at_once());
        // Nor behind sends that are under way.
        let before = handoff::Buffer::from(pattern(2, 1 << 20));
        let sending = socket.send(before).unwrap();
        driver.turn(Wait::No).unwrap();
        assert!(!route(0..100).run_at_once());
        let received = read_all(far);
        let sent = driver.block_on(async { sending.await.unwrap().sent }).unwrap();
        assert_eq!(sent.unwrap(), 1 << 20);
        driver.block_on(socket.writable().unwrap()).unwrap().unwrap();
        let mut small = route(7..107);
        assert!(small.run_at_once());
        assert!(!small.run_at_once(), "it is over");
        assert_eq!((small.taken().unknown, small.given().unknown), (100, 100));
        assert_eq!(small.given().copied, HEAD.len() as u64);
        // More than there is room for: the rest goes behind the bytes in the pipe.
        let mut large = route(0..LEN as u64);
        assert!(!large.run_at_once());
        let carried = driver.block_on(large.run()).unwrap();
        carried.result.unwrap();
        assert_eq!((carried.engine, carried.bytes), (RouteEngine::Splice, LEN as u64));
        assert_eq!((carried.taken.unknown, carried.given.unknown), (LEN as u64, LEN as u64));
        assert_eq!(carried.given.copied, HEAD.len() as u64);
        // If you drop a route midway, moved bytes stay moved, and the next route uses no pipe with bytes in
        // it.
        let mut dropped = route(0..LEN as u64);
        assert!(!dropped.run_at_once());
        let gone = (dropped.given().copied, dropped.given().unknown);
        drop(dropped);
        let mut last = route(3..1_003);
        if !last.run_at_once() {
            driver.block_on(last.run()).unwrap().result.unwrap();
        }
        drop((last, small, large, socket));
        let mut expected = pattern(2, 1 << 20);
        let whole = pattern(1, LEN);
        for part in [&HEAD, &&whole[7..107], &HEAD, &&whole[..]] {
            expected.extend_from_slice(part);
        }
        expected.extend_from_slice(&HEAD[..gone.0 as usize]);
        expected.extend_from_slice(&whole[..gone.1 as usize]);
        expected.extend_from_slice(HEAD);
        expected.extend_from_slice(&whole[3..1_003]);
        driver.turn(Wait::No).unwrap();
        assert!(received.join().unwrap() == expected, "what arrived differs");
    }
}

#[test]
fn a_socket_that_never_blocks_stays_so_behind_routes() {
    let blocks = |socket: &handoff::Socket| {
        !rustix::fs::fcntl_getfl(socket).unwrap().contains(rustix::fs::OFlags::NONBLOCK)
    };
    for driver in drivers() {
        let (near, far) = tcp("127.0.0.1");
        let received = read_all(far);
        let file = driver.file(source_file()).unwrap();
        let socket = driver.socket(near).unwrap();
        let carry = || {
            let route = Route::new(&driver, (&file, 0..1_000), &socket);
            let carried = driver.block_on(route.only(RouteEngine::Splice).run()).unwrap();
            carried.result.unwrap();
        };
        carry();
        assert!(blocks(&socket), "it is again what it was");
        socket.never_block().unwrap();
        assert!(!blocks(&socket));
        carry();
        assert!(!blocks(&socket));
        drop(socket);
        assert_eq!(received.join().unwrap().len(), 2_000);
    }
}
