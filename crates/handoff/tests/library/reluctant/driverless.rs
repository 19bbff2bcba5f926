//! Handles on what the kernel still has when the last driver goes: they end with an error, and what came before with its
//! result.

use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::fuse::Unanswered;
use super::*;
use crate::traffic;

/// What a future says when it is asked once.
fn ask<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// It has ended because of its driver.
fn check_gone<T: std::fmt::Debug>(asked: Poll<handoff::Result<T>>) {
    assert!(matches!(asked, Poll::Ready(Err(Error::DriverGone))), "{asked:?}");
}

/// What a future that has ended gives.
fn given<T: std::fmt::Debug>(asked: Poll<handoff::Result<T>>) -> T {
    match asked {
        Poll::Ready(Ok(output)) => output,
        other => panic!("its result had come: {other:?}"),
    }
}

/// Sends on a connection in each way to wait for a buffer: its loan, a group's, both events, and these with a time.
struct Waits {
    loan: handoff::OnLoan<Buffer>,
    group: handoff::GroupOnLoan<Buffer>,
    both: handoff::Finishing<Buffer>,
    timed: Pin<Box<dyn Future<Output = handoff::Result<handoff::Finished<Buffer>>>>>,
}

impl Waits {
    fn new(driver: &Driver, socket: &Socket) -> Self {
        let send = |seed| socket.send(Buffer::from(pattern(seed, TAKEN))).unwrap();
        let loan = send(0).split().1;
        let mut group = driver.group();
        let message = socket.message(Buffer::from(pattern(1, TAKEN)));
        drop(message.send_in(&mut group).unwrap());
        let both = send(2).into_future();
        let timed = Box::pin(driver.cancel_after(LONG, send(3).into_future()));
        driver.block_on(socket.flush()).unwrap().unwrap();
        Self { loan, group: group.flush(), both, timed }
    }
}

#[test]
fn a_loan_without_a_driver_ends_with_an_error() {
    const NAME: &str = "a_loan_without_a_driver_ends_with_an_error";
    let Some(road) = Road::new(NAME) else { return };
    within(LONG, move || {
        for ring in [RingUse::Prefer, RingUse::Avoid] {
            let mut lending = engines(&super::driver(ring));
            // Auto may find that copying is cheaper.
            lending.retain(|it| !matches!(it, Engine::Auto | Engine::Copy));
            for engine in lending {
                eprintln!("{engine}, {ring:?}");
                let driver = super::driver(ring);
                let (near, mut far) = road.connection(1 << 20);
                let read = attached(&driver, near, engine);
                let before = Waits::new(&driver, &read);
                far.read_exact(&mut [0; 4 * TAKEN]).unwrap();
                let last = read.send(Buffer::from(vec![0])).unwrap();
                // Behind all others.
                driver.block_on(async { last.await.unwrap() }).unwrap();
                let (near, _far) = road.connection(4096);
                let stalled = attached(&driver, near, engine);
                let mut after = Waits::new(&driver, &stalled);
                drop(driver);

                let Waits { loan, group, both, timed } = before;
                assert!(given(ask(loan)).buffer[..] == pattern(0, TAKEN));
                assert_eq!(given(ask(group)).buffer.len(), 1);
                assert_eq!(given(ask(both)).sent.unwrap(), TAKEN);
                assert_eq!(given(ask(timed)).sent.unwrap(), TAKEN);
                // Also when they are asked again.
                for _ in 0..2 {
                    check_gone(ask(&mut after.loan));
                    check_gone(ask(&mut after.group));
                    check_gone(ask(&mut after.both));
                }
                check_gone(ask(after.timed));
                stalled.abort();
            }
        }
    });
}

#[test]
fn a_read_that_does_not_end_with_its_driver_ends_with_an_error() {
    const NAME: &str = "a_read_that_does_not_end_with_its_driver_ends_with_an_error";
    let driver = driver(RingUse::Prefer);
    if let Some(reason) = driver.ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    drop(driver);
    within(LONG, || {
        let Unanswered { file, server } = match Unanswered::new() {
            Ok(unanswered) => unanswered,
            Err(error) => return traffic::skip(NAME, &format!("mounting FUSE: {error}")),
        };
        let driver = super::driver(RingUse::Prefer);
        let file = driver.file(file).unwrap();
        let mut read = file.read_at(Buffer::from(vec![0; 4096]), 0).unwrap();
        while !server.is_finished() {
            driver.turn(Wait::AtMost(STEP)).unwrap();
        }
        drop(driver);
        for _ in 0..2 {
            check_gone(ask(&mut read));
        }
        // The kernel ends the read, and with it the thread's last request.
        drop(server.join().unwrap());
    });
}
