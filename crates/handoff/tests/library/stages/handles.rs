//! Handles of sends, groups and sockets that are dropped, forgotten or cancelled.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

use handoff::{Buffer, Driver, Error, RingUse};

use crate::stages::stage::{LONG, STAGES, STALLED, Stage, at_stage, settle, turn_for};
use crate::traffic::{attached, narrow_tcp, pattern, read_all, with_each_engine, within};

#[test]
fn dropped_sends_go_on() {
    with_each_engine(LONG, |driver, engine| {
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
                let reader = read_all(far);
                driver
                    .block_on(async {
                        for sent in kept.0 {
                            sent.await.unwrap();
                        }
                        for loan in kept.1 {
                            loan.await.unwrap();
                        }
                    })
                    .unwrap();
                settle(&driver);
                assert!(reader.join().unwrap() == expected, "{engine} {stage:?} {half}");
            }
        }
    });
}

#[test]
fn forgotten_sends_go_on_and_keep_their_place() {
    with_each_engine(LONG, |driver, engine| {
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
            let reader = read_all(far);
            // A last one shows that the others are through.
            driver
                .block_on(socket.send(Buffer::from(vec![9])).unwrap().into_future())
                .unwrap()
                .unwrap();
            // A forgotten handle keeps its socket too.
            rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
            let got = reader.join().unwrap();
            assert!(got[..got.len() - 1] == expected, "{engine} {stage:?}");
            assert_eq!(driver.in_flight(), before + count, "{engine} {stage:?}");
        }
    });
}

#[test]
fn cancelled_sends_end_and_break_the_stream_only_midway() {
    with_each_engine(LONG, |driver, engine| {
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
            let reader = read_all(far);
            driver
                .block_on(async {
                    for loan in loans {
                        loan.await.unwrap();
                    }
                })
                .unwrap();
            settle(&driver);
            assert!(reader.join().unwrap() == expected[..taken], "{engine} {stage:?}");
        }
    });
}

#[test]
fn groups_are_dropped_and_forgotten() {
    with_each_engine(LONG, |driver, engine| {
        for stage in 0..5 {
            let (near, far) = narrow_tcp();
            let socket = attached(&driver, near, engine);
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
                    let reader = read_all(far);
                    let back = driver.block_on(other.flush()).unwrap().unwrap();
                    assert_eq!(back.buffer.len(), 1);
                    drop(socket);
                    settle(&driver);
                    assert!(reader.join().unwrap() == expected, "{engine}");
                    continue;
                }
            }
            drop(socket);
            let reader = read_all(far);
            settle(&driver);
            assert!(reader.join().unwrap() == expected, "{engine} {stage}");
        }
    });
}

#[test]
fn sockets_close_when_their_last_send_is_through() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let fd = near.as_raw_fd();
        let socket = attached(&driver, near, engine);
        drop(socket.send(Buffer::from(pattern(1, STALLED))).unwrap());
        drop(socket);
        turn_for(&driver, Duration::from_millis(5));
        assert!(std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists());
        let reader = read_all(far);
        settle(&driver);
        assert_eq!(reader.join().unwrap().len(), STALLED, "{engine}");
    });
}

#[test]
fn operations_that_are_not_taken_up_count_against_the_limit() {
    within(LONG, || {
        for ring in [RingUse::Prefer, RingUse::Avoid] {
            let driver = Driver::builder().ring(ring).in_flight(3).build().unwrap();
            let (near, mut far) = narrow_tcp();
            let socket = driver.socket(near).unwrap();
            let sendings: Vec<_> =
                (0..3).map(|byte| socket.send(Buffer::from(vec![byte])).unwrap()).collect();
            let refused = socket.send(Buffer::from(vec![7])).unwrap_err();
            assert!(matches!(refused.error, Error::Busy { limit: 3 }), "{}", refused.error);
            assert_eq!(&refused.buffer[..], [7]);
            drop(sendings);
            settle(&driver);
            driver.block_on(socket.send(refused.buffer).unwrap().into_future()).unwrap().unwrap();
            let mut got = [0; 4];
            far.read_exact(&mut got).unwrap();
            assert_eq!(got, [0, 1, 2, 7]);
            far.write_all(b"x").unwrap();
        }
    });
}
