//! Handles dropped, forgotten and cancelled, and futures that panic, at every stage of an operation:
//! nothing is freed early, nothing hangs, and the driver's end ends everything within a second.

#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

use std::future::IntoFuture;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Buffer, Driver, Engine, Error, Executor, Region, Socket, Wait};
use traffic::{drivers, engines_apart, filled, narrow_tcp, patience, pattern, within};

const LONG: Duration = Duration::from_secs(30);
/// More than the buffers of a narrow connection take.
const STALLED: usize = 2 << 20;

/// How far a send is when something happens to it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Accepted,
    Blocked,
    /// Taken by the kernel, and maybe not returned.
    Sent,
    Returned,
}

const STAGES: [Stage; 4] = [Stage::Accepted, Stage::Blocked, Stage::Sent, Stage::Returned];

fn reader(mut far: TcpStream) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        far.read_to_end(&mut all).unwrap();
        all
    })
}

fn turn_for(driver: &Driver, time: Duration) {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        driver.turn(Wait::AtMost(left)).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Turns until nothing is under way.
fn settle(driver: &Driver) {
    let end = Instant::now() + Duration::from_secs(5);
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(Duration::from_millis(50))).unwrap();
        assert!(Instant::now() < end, "{driver:?}");
    }
}

/// A connection with an engine, and everything that a send of `len` bytes needs to reach a stage.
fn at_stage(
    driver: &Driver,
    engine: Engine,
    stage: Stage,
) -> (Socket, TcpStream, Vec<handoff::Sending<Buffer>>, Vec<u8>) {
    let (near, far) = narrow_tcp();
    let socket = driver.socket(near).unwrap();
    socket.set_engine(engine).unwrap();
    let lens: &[usize] = match stage {
        Stage::Accepted | Stage::Blocked => &[STALLED, 70_000, 0, 1000],
        Stage::Sent | Stage::Returned => &[1000, 60_000],
    };
    let mut sendings = Vec::new();
    let mut expected = Vec::new();
    for (seed, len) in lens.iter().enumerate() {
        expected.extend(pattern(seed, *len));
        sendings.push(socket.send(Buffer::from(pattern(seed, *len))).unwrap());
    }
    match stage {
        Stage::Accepted => {}
        Stage::Blocked => turn_for(driver, Duration::from_millis(10)),
        Stage::Sent => drop(driver.turn(Wait::No).unwrap()),
        Stage::Returned => turn_for(driver, Duration::from_millis(10)),
    }
    (socket, far, sendings, expected)
}

#[test]
fn dropped_sends_go_on() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            for stage in STAGES {
                for half in 0..3 {
                    let (socket, far, sendings, expected) = at_stage(&driver, engine, stage);
                    let mut kept = (Vec::new(), Vec::new());
                    for sending in sendings {
                        let (sent, loan) = sending.split();
                        match half {
                            0 => drop((sent, loan)),
                            1 => kept.0.push(sent),
                            _ => kept.1.push(loan),
                        }
                    }
                    drop(socket);
                    let reader = reader(far);
                    driver
                        .block_on(async {
                            for sent in kept.0 {
                                sent.await.unwrap();
                            }
                            for loan in kept.1 {
                                loan.await;
                            }
                        })
                        .unwrap();
                    settle(&driver);
                    assert!(reader.join().unwrap() == expected, "{engine} {stage:?} {half}");
                }
            }
        }
    });
}

#[test]
fn forgotten_sends_go_on_and_keep_their_place() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            for stage in STAGES {
                let (socket, far, sendings, expected) = at_stage(&driver, engine, stage);
                let before = driver.in_flight() - sendings.len();
                let count = sendings.len();
                for (place, sending) in sendings.into_iter().enumerate() {
                    let (sent, loan) = sending.split();
                    match place % 3 {
                        0 => std::mem::forget((sent, loan)),
                        1 => std::mem::forget(sent),
                        _ => std::mem::forget(loan),
                    }
                }
                let reader = reader(far);
                // A last one shows that the others are through.
                driver.block_on(socket.send(Buffer::from(vec![9])).unwrap().into_future()).unwrap();
                // What is forgotten keeps its socket too.
                rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
                let got = reader.join().unwrap();
                assert!(got[..got.len() - 1] == expected, "{engine} {stage:?}");
                assert_eq!(driver.in_flight(), before + count, "{engine} {stage:?}");
            }
        }
    });
}

#[test]
fn cancelled_sends_end_and_break_the_stream_only_midway() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            for stage in STAGES {
                let (socket, far, sendings, expected) = at_stage(&driver, engine, stage);
                let (sents, loans): (Vec<_>, Vec<_>) =
                    sendings.into_iter().map(handoff::Sending::split).unzip();
                for sent in &sents {
                    sent.cancel();
                }
                let results = driver
                    .block_on(async {
                        let mut results = Vec::new();
                        for sent in sents {
                            results.push(sent.await);
                        }
                        results
                    })
                    .unwrap();
                let mut taken = 0;
                let mut midway = false;
                for result in &results {
                    match result {
                        Ok(bytes) => taken += bytes,
                        Err(Error::Canceled { done }) => {
                            taken += done;
                            midway |= *done > 0;
                        }
                        Err(Error::StreamBroken { .. }) if midway => {}
                        Err(error) => panic!("{engine} {stage:?}: {error}"),
                    }
                }
                if stage == Stage::Returned {
                    assert!(results.iter().all(Result::is_ok), "{engine}: {results:?}");
                }
                assert_eq!(socket.send(Buffer::from(vec![])).is_err(), midway);
                drop(socket);
                let reader = reader(far);
                driver
                    .block_on(async {
                        for loan in loans {
                            loan.await;
                        }
                    })
                    .unwrap();
                settle(&driver);
                assert!(reader.join().unwrap() == expected[..taken], "{engine} {stage:?}");
            }
        }
    });
}

/// The far ends of sockets that a driver leaves behind, and whether they see their end.
fn ends(mut far: TcpStream, engine: Engine) {
    far.set_read_timeout(Some(patience(Duration::from_secs(2)))).unwrap();
    let mut space = vec![0; 1 << 20];
    loop {
        match far.read(&mut space) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            // What the ring left to be done interrupts a read that has a time limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{engine}: the connection does not end: {error}"),
        }
    }
}

#[test]
fn a_driver_that_goes_takes_stalled_sends_along() {
    within(LONG, || {
        for forget in [false, true] {
            for (driver, engine) in engines_apart() {
                let (near, far) = narrow_tcp();
                let socket = driver.socket(near).unwrap();
                socket.set_engine(engine).unwrap();
                let mut region = Region::anonymous(2 * STALLED).unwrap();
                let buffers = [
                    filled(&mut region, 1, STALLED),
                    Buffer::from(pattern(2, STALLED)),
                    filled(&mut region, 3, 1000),
                ];
                for buffer in buffers {
                    let sending = socket.message(buffer).header(b"header").send().unwrap();
                    turn_for(&driver, Duration::from_millis(5));
                    if forget {
                        std::mem::forget(sending);
                    }
                }
                drop(socket);
                let start = Instant::now();
                // Forgotten handles hold the driver too: its end is then that of the process.
                drop(driver);
                assert!(
                    start.elapsed() < patience(Duration::from_secs(5)),
                    "{engine} {:?}",
                    start.elapsed()
                );
                if !forget {
                    ends(far, engine);
                }
            }
        }
    });
}

#[test]
fn heap_memory_is_not_used_again_while_the_kernel_sends_it() {
    const LEN: usize = 50_000;
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            let (near, far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(engine).unwrap();
            let mut expected = Vec::new();
            for seed in 0..40 {
                expected.extend(pattern(seed, LEN));
                drop(socket.send(Buffer::from(pattern(seed, LEN))).unwrap());
                driver.turn(Wait::No).unwrap();
            }
            turn_for(&driver, Duration::from_millis(5));
            drop((socket, driver));
            let overwriting: Vec<_> = (0..80).map(|_| vec![0xee; LEN]).collect();
            let mut got = Vec::new();
            // What was not with the kernel yet is not sent; a reset cuts the rest off.
            let _ = { far }.read_to_end(&mut got);
            assert!(got.len() < expected.len(), "{engine}: the peer was not stalled");
            assert!(got == expected[..got.len()], "{engine}");
            drop(overwriting);
        }
    });
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// In a program of its own run, since it looks at the whole process.
#[test]
fn drivers_that_go_leave_nothing() {
    const NAME: &str = "drivers_that_go_leave_nothing";
    if !traffic::alone(NAME) {
        return;
    }
    let round = |engine: Engine, driver: Driver| {
        let (near, far) = narrow_tcp();
        let socket = driver.socket(near).unwrap();
        socket.set_engine(engine).unwrap();
        let mut region = Region::anonymous(STALLED).unwrap();
        let sending = socket.send(filled(&mut region, 1, STALLED)).unwrap();
        let (read, _write) = std::io::pipe().unwrap();
        let reading = (driver.ring_unavailable().is_none()).then(|| {
            let file = driver.file(read).unwrap();
            file.read(region.take(0).unwrap()).unwrap()
        });
        turn_for(&driver, Duration::from_millis(5));
        drop((sending, reading, socket, driver));
        drop(far);
    };
    for (driver, engine) in engines_apart() {
        round(engine, driver);
    }
    let before = (resident(), descriptors());
    for (driver, engine) in engines_apart() {
        round(engine, driver);
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!(descriptors(), before.1);
    let grown = resident().saturating_sub(before.0);
    assert!(grown < STALLED / 2, "{grown} bytes more after {} rounds", engines_apart().len());
}

#[test]
fn a_panicking_future_leaves_the_driver_usable() {
    within(LONG, || {
        std::panic::set_hook(Box::new(|info| {
            if info.payload_as_str() != Some("on purpose") {
                eprintln!("{info}");
            }
        }));
        for (driver, engine) in engines_apart() {
            for stage in STAGES {
                for on_executor in [false, true] {
                    let (socket, far, sendings, expected) = at_stage(&driver, engine, stage);
                    let future = async move {
                        let mut last = None;
                        for sending in sendings {
                            let (sent, loan) = sending.split();
                            drop(last.replace((sent, loan)));
                        }
                        panic!("on purpose");
                    };
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        if on_executor {
                            let executor = Executor::new(&driver);
                            let task = executor.spawn(future);
                            executor.run(task)
                        } else {
                            driver.block_on(future)
                        }
                    }));
                    assert!(outcome.is_err());
                    drop(socket);
                    let reader = reader(far);
                    settle(&driver);
                    assert!(reader.join().unwrap() == expected, "{engine} {stage:?}");
                }
            }
        }
        let _ = std::panic::take_hook();
    });
}

#[test]
fn tasks_dropped_midway_let_their_sends_go_on() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            let (near, far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(engine).unwrap();
            let executor = Executor::new(&driver);
            let mut expected = Vec::new();
            let mut tasks = Vec::new();
            for (seed, len) in [STALLED, 1000, 70_000].into_iter().enumerate() {
                expected.extend(pattern(seed, len));
                let socket = socket.clone();
                tasks.push(executor.spawn(async move {
                    let sending = socket.send(Buffer::from(pattern(seed, len))).unwrap();
                    sending.await.sent.unwrap();
                }));
                executor
                    .run(async {
                        for _ in 0..3 {
                            futures_lite::future::yield_now().await;
                        }
                    })
                    .unwrap();
            }
            tasks.remove(1).detach();
            drop(tasks);
            drop(executor);
            drop(socket);
            let reader = reader(far);
            settle(&driver);
            assert!(reader.join().unwrap() == expected, "{engine}");
        }
    });
}

#[test]
fn groups_are_dropped_and_forgotten() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            for stage in 0..5 {
                let (near, far) = narrow_tcp();
                let socket = driver.socket(near).unwrap();
                socket.set_engine(engine).unwrap();
                let mut group = driver.group();
                let mut expected = Vec::new();
                for (seed, len) in [1000, STALLED, 1000].into_iter().enumerate() {
                    expected.extend(pattern(seed, len));
                    let buffer = Buffer::from(pattern(seed, len));
                    drop(socket.message(buffer).send_in(&mut group).unwrap());
                }
                turn_for(&driver, Duration::from_millis(5));
                match stage {
                    0 => drop(group),
                    1 => drop(group.flush()),
                    2 => std::mem::forget(group),
                    3 => std::mem::forget(group.flush()),
                    _ => {
                        let mut other = driver.group();
                        drop(socket.message(Buffer::from(vec![])).send_in(&mut other).unwrap());
                        drop(group);
                        let reader = reader(far);
                        let back = driver.block_on(other.flush()).unwrap();
                        assert_eq!(back.buffer.len(), 1);
                        drop(socket);
                        settle(&driver);
                        assert!(reader.join().unwrap() == expected, "{engine}");
                        continue;
                    }
                }
                drop(socket);
                let reader = reader(far);
                settle(&driver);
                assert!(reader.join().unwrap() == expected, "{engine} {stage}");
            }
        }
    });
}

#[test]
fn sockets_close_when_their_last_send_is_through() {
    within(LONG, || {
        for (driver, engine) in engines_apart() {
            let (near, far) = narrow_tcp();
            let fd = near.as_raw_fd();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(engine).unwrap();
            drop(socket.send(Buffer::from(pattern(1, STALLED))).unwrap());
            drop(socket);
            turn_for(&driver, Duration::from_millis(5));
            assert!(std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists());
            let reader = reader(far);
            settle(&driver);
            assert_eq!(reader.join().unwrap().len(), STALLED, "{engine}");
        }
    });
}

#[test]
fn operations_that_are_not_taken_up_count_against_the_limit() {
    for _ in drivers() {
        let driver = Driver::builder().in_flight(3).build().unwrap();
        let (near, mut far) = narrow_tcp();
        let socket = driver.socket(near).unwrap();
        let sendings: Vec<_> =
            (0..3).map(|byte| socket.send(Buffer::from(vec![byte])).unwrap()).collect();
        let refused = socket.send(Buffer::from(vec![7])).unwrap_err();
        assert!(matches!(refused.error, Error::Busy { limit: 3 }), "{}", refused.error);
        assert_eq!(&refused.buffer[..], [7]);
        drop(sendings);
        settle(&driver);
        driver.block_on(socket.send(refused.buffer).unwrap().into_future()).unwrap();
        let mut got = [0; 4];
        far.read_exact(&mut got).unwrap();
        assert_eq!(got, [0, 1, 2, 7]);
        far.write_all(b"x").unwrap();
    }
}
