//! Operations with a time: sleeping, giving up, and what a time-out leaves behind at each stage of a send and
//! of a receive.

use std::cell::{Cell, RefCell};
use std::future::{IntoFuture, pending, poll_fn};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Buffer, Error, Executor, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::traffic::{
    self, assert_same, attached, narrow_tcp, pattern, read_all, tcp, with_each_driver,
    with_each_engine, without_ring,
};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);
/// More than the buffers of a narrow connection hold.
const BLOCKED: usize = 1 << 20;

#[test]
fn sleepers_wake_in_the_order_of_their_times_and_not_before() {
    with_each_driver(LONG, |driver| {
        let executor = Executor::new(&driver);
        let woken = Rc::new(RefCell::new(Vec::new()));
        let begin = Instant::now();
        let tasks: Vec<_> = [30, 10, 20, 0, 10]
            .into_iter()
            .map(|time| {
                let time = Duration::from_millis(time);
                // Its deadline lies between these: the clock of a guest jumps.
                let earliest = Instant::now() + time;
                let mut sleep = Box::pin(driver.sleep(time));
                let (latest, woken) = (Instant::now() + time, woken.clone());
                executor.spawn(async move {
                    let mut looks = 0;
                    let sleep = poll_fn(|context| {
                        looks += 1;
                        sleep.as_mut().poll(context)
                    });
                    sleep.await.unwrap();
                    assert!(begin.elapsed() >= time);
                    // On a slow machine its time may be over before the executor first looks at it. Then it is
                    // not woken.
                    if looks > 1 {
                        woken.borrow_mut().push((earliest, latest));
                    }
                })
            })
            .collect();
        executor
            .run(async {
                for task in tasks {
                    task.await;
                }
            })
            .unwrap();
        for woken in woken.borrow().windows(2) {
            let [(earliest, _), (_, latest)] = [woken[0], woken[1]];
            assert!(earliest <= latest, "{woken:?}");
        }
    });
}

#[test]
fn a_time_past_the_end_of_time_does_not_come() {
    with_each_driver(LONG, |driver| {
        let wait = driver.timeout(SHORT, driver.sleep(Duration::MAX));
        assert!(matches!(driver.block_on(wait).unwrap(), Err(Error::TimedOut { .. })));
    });
}

/// The kernel's clock has an end, and must not be asked to wait past it.
#[test]
fn a_far_deadline_lets_a_wait_be_long() {
    with_each_driver(LONG, |driver| {
        let mut far = pin!(driver.sleep(Duration::from_millis(u64::MAX)));
        assert!(far.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let (near, mut peer) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let mut receiving = socket.receive_exact(Buffer::from(vec![0; 4])).unwrap();
        let peer = thread::spawn(move || {
            thread::sleep(SHORT);
            peer.write_all(b"come").unwrap();
        });
        let mut rounds = 0;
        loop {
            receiving = match receiving.try_take() {
                Ok(_) => break,
                Err(receiving) => receiving,
            };
            driver.turn(Wait::Event).unwrap();
            rounds += 1;
        }
        assert!(rounds < 30, "{rounds} rounds for one receive");
        peer.join().unwrap();
    });
}

#[test]
fn a_thread_with_a_loop_of_its_own_waits_no_longer_than_a_deadline() {
    with_each_driver(LONG, |driver| {
        let executor = Executor::new(&driver);
        let done = Rc::new(RefCell::new(false));
        let (sleep, told) = (driver.sleep(SHORT), done.clone());
        let task = executor.spawn(async move {
            sleep.await.unwrap();
            told.replace(true);
        });
        // It begins to sleep.
        executor.run(futures_lite::future::yield_now()).unwrap();
        executor.run(futures_lite::future::yield_now()).unwrap();
        while !*done.borrow() {
            driver.turn(Wait::Event).unwrap();
            executor.run(futures_lite::future::yield_now()).unwrap();
        }
        drop(task);
    });
}

/// The driver's descriptor reports a deadline, and nothing before it: a foreign loop neither sleeps through it
/// nor spins until then.
#[test]
fn a_foreign_loop_is_told_of_a_deadline() {
    with_each_driver(LONG, |driver| {
        let executor = Executor::new(&driver);
        let mut rounds = 0;
        for time in [100, 50] {
            let done = Rc::new(RefCell::new(false));
            let (sleep, told) = (driver.sleep(Duration::from_millis(time)), done.clone());
            let task = executor.spawn(async move {
                sleep.await.unwrap();
                told.replace(true);
            });
            let long = Timespec { tv_sec: 50, tv_nsec: 0 };
            while !*done.borrow() {
                executor.run(futures_lite::future::yield_now()).unwrap();
                driver.turn(Wait::No).unwrap();
                if *done.borrow() {
                    break;
                }
                let fd = driver.as_fd();
                let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&long)).unwrap();
                assert_eq!(ready, 1, "the loop slept through a deadline");
                rounds += 1;
                driver.turn(Wait::No).unwrap();
            }
            drop(task);
        }
        assert!(rounds < 30, "{rounds} rounds for two deadlines");
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tokio_is_told_of_a_deadline() {
    with_each_driver(LONG, |driver| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let tasks = tokio::task::LocalSet::new();
        tasks.block_on(&runtime, async {
            let turning = tokio::task::spawn_local(handoff::tokio::drive(driver.clone()));
            tokio::task::yield_now().await;
            for _ in 0..3 {
                driver.sleep(SHORT).await.unwrap();
            }
            turning.abort();
        });
    });
}

#[test]
fn a_sleeper_hears_of_the_end_of_its_driver() {
    with_each_driver(LONG, |driver| {
        let sleep = driver.sleep(LONG);
        drop(driver);
        let ended = without_ring().block_on(sleep).unwrap();
        assert!(matches!(ended, Err(Error::DriverGone)), "{ended:?}");
    });
}

#[test]
fn deadlines_that_are_not_reached_leave_nothing_behind() {
    with_each_driver(LONG, |driver| {
        for _ in 0..10_000 {
            let both = async {
                let quick = driver.timeout(LONG, driver.sleep(Duration::ZERO)).await;
                quick.unwrap().unwrap();
                let pending = pending::<()>();
                futures_lite::future::or(
                    async { drop(driver.timeout(LONG, pending).await) },
                    futures_lite::future::yield_now(),
                )
                .await;
            };
            driver.block_on(both).unwrap();
        }
        // With none left there is nothing to wait for.
        driver.turn(Wait::Event).unwrap();
        assert_eq!(driver.in_flight(), 0);
    });
}

/// Also one whose time is over when it has just begun: the kernel is then about to go on with it, and does not find
/// it.
#[test]
fn a_send_that_is_cancelled_by_time_says_what_was_sent_and_gives_its_buffer_back() {
    with_each_engine(LONG, |driver, engine| {
        for time in [Duration::ZERO, SHORT] {
            let (near, far) = narrow_tcp();
            let socket = attached(&driver, near, engine);
            // Sent in time: the time-out changes nothing.
            let quick = socket.send(Buffer::from(pattern(1, 1_000))).unwrap().into_future();
            let quick = driver.block_on(driver.cancel_after(LONG, quick)).unwrap().unwrap();
            assert_eq!(quick.sent.unwrap(), 1_000);
            // One send is midway, and one waits behind it.
            let [(first, first_back), (second, second_back)] = [(2, BLOCKED), (3, 500)]
                .map(|(seed, len)| socket.send(Buffer::from(pattern(seed, len))).unwrap().split());
            driver.turn(Wait::No).unwrap();
            // Nobody reads, so both end by their time.
            let both = futures_lite::future::zip(
                driver.cancel_after(time, first),
                driver.cancel_after(time, second),
            );
            let (first, second) = driver.block_on(both).unwrap();
            let Err(Error::Canceled { done }) = first else { panic!("{engine}: {first:?}") };
            assert!(done < BLOCKED, "{engine}: {done}");
            // Nothing follows a part.
            assert!(
                matches!(second, Err(Error::StreamBroken { .. } | Error::Canceled { done: 0 })),
                "{engine}: {second:?}"
            );
            let reader = read_all(far);
            assert_same(
                &driver.block_on(first_back).unwrap().unwrap().buffer,
                &pattern(2, BLOCKED),
            );
            assert_same(&driver.block_on(second_back).unwrap().unwrap().buffer, &pattern(3, 500));
            drop(socket);
            let got = reader.join().unwrap();
            // The count that it reports is what came.
            assert_same(&got[..1_000], &pattern(1, 1_000));
            assert_same(&got[1_000..], &pattern(2, BLOCKED)[..done]);
        }
    });
}

/// The kernel has both in one chain, and finds the second only when the first is through.
#[test]
fn a_cancelled_send_ends_once_the_one_before_it_has_gone() {
    with_each_engine(LONG, |driver, engine| {
        let (near, mut far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let [(first, first_back), (second, second_back)] =
            [2, 3].map(|seed| socket.send(Buffer::from(pattern(seed, BLOCKED))).unwrap().split());
        driver.turn(Wait::No).unwrap();
        second.cancel();
        let reader = thread::spawn(move || {
            let mut got = vec![0; BLOCKED];
            far.read_exact(&mut got).unwrap();
            (got, far)
        });
        assert_eq!(driver.block_on(first).unwrap().unwrap(), BLOCKED, "{engine}");
        // Nobody reads on, so it ends because it was asked to.
        let second = driver.block_on(second).unwrap();
        let Err(Error::Canceled { done }) = second else { panic!("{engine}: {second:?}") };
        let (got, far) = reader.join().unwrap();
        assert_same(&got, &pattern(2, BLOCKED));
        let reader = read_all(far);
        for (back, seed) in [(first_back, 2), (second_back, 3)] {
            assert_same(&driver.block_on(back).unwrap().unwrap().buffer, &pattern(seed, BLOCKED));
        }
        drop(socket);
        assert_same(&reader.join().unwrap(), &pattern(3, BLOCKED)[..done]);
    });
}

#[test]
fn a_send_behind_a_time_out_ends_where_that_was_asked_for() {
    with_each_engine(LONG, |driver, engine| {
        for cancels in [false, true] {
            let (near, far) = narrow_tcp();
            let socket = attached(&driver, near, engine);
            let sending = socket.send(Buffer::from(pattern(2, BLOCKED))).unwrap();
            let (sent, loan) = sending.split();
            let sent = if cancels { sent.cancel_on_drop() } else { sent };
            // It is midway before its time is over.
            driver.turn(Wait::No).unwrap();
            let gave_up = driver.block_on(driver.timeout(SHORT, sent)).unwrap();
            assert!(matches!(gave_up, Err(Error::TimedOut { .. })), "{gave_up:?}");
            driver.turn(Wait::No).unwrap();
            driver.block_on(driver.sleep(SHORT)).unwrap().unwrap();
            let next = socket.send(Buffer::from(pattern(3, 500)));
            let reader = read_all(far);
            let back = driver.block_on(loan).unwrap().unwrap();
            assert_same(&back.buffer, &pattern(2, BLOCKED));
            if cancels {
                let error = next.unwrap_err().error;
                let Error::StreamBroken { sent, total: BLOCKED } = error else {
                    panic!("{engine}: {error}")
                };
                drop(socket);
                assert_same(&reader.join().unwrap(), &pattern(2, BLOCKED)[..sent]);
            } else {
                let next = driver.block_on(next.unwrap().into_future()).unwrap().unwrap();
                assert_eq!(next.sent.unwrap(), 500);
                drop(socket);
                let all = [pattern(2, BLOCKED), pattern(3, 500)].concat();
                assert_same(&reader.join().unwrap(), &all);
            }
        }
    });
}

#[test]
fn a_receive_that_is_cancelled_by_time_gives_back_what_it_has() {
    with_each_driver(LONG, |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        // Nothing came; some came; all came.
        for came in [0, 300, 1_000] {
            far.write_all(&pattern(came, came)).unwrap();
            if came > 0 {
                // One segment comes whole.
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], None).unwrap();
            }
            let receive = socket.receive_exact(Buffer::from(vec![0; 1_000])).unwrap();
            // It has what came before its time is over.
            driver.turn(Wait::No).unwrap();
            let time = if came == 1_000 { LONG } else { SHORT };
            let over = driver.block_on(driver.cancel_after(time, receive)).unwrap().unwrap();
            match over.result {
                Ok(1_000) if came == 1_000 => {}
                Err(Error::Canceled { done }) => assert_eq!(done, came),
                other => panic!("{other:?}"),
            }
            assert_same(&over.buffer[..came], &pattern(came, came));
        }
        // Dropped by a time-out before anything came, it takes nothing from the next.
        let receive = socket.receive_exact(Buffer::from(vec![0; 10])).unwrap();
        assert!(driver.block_on(driver.timeout(SHORT, receive)).unwrap().is_err());
        far.write_all(&pattern(9, 10)).unwrap();
        let next = socket.receive_exact(Buffer::from(vec![0; 10])).unwrap();
        assert_same(&driver.block_on(next).unwrap().unwrap().buffer, &pattern(9, 10));
    });
}

/// A task that wakes itself runs only a few times per turn of the driver.
#[test]
fn a_task_that_yields_for_ever_holds_nobody_up() {
    const SENDS: usize = 20;
    with_each_engine(LONG, |driver, engine| {
        let executor = Executor::new(&driver);
        let polls = Rc::new(Cell::new(0));
        let counted = polls.clone();
        let greedy = executor.spawn(async move {
            loop {
                counted.update(|polls| polls + 1);
                futures_lite::future::yield_now().await;
            }
        });
        let (near, mut far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, engine);
        let sending = async {
            for round in 0..SENDS {
                let (sent, _loan) =
                    socket.send(Buffer::from(pattern(round, 3_000))).unwrap().split();
                assert_eq!(sent.await.unwrap(), 3_000, "{engine}");
                far.read_exact(&mut [0; 3_000]).unwrap();
            }
            driver.sleep(Duration::from_millis(1)).await.unwrap();
            let before = polls.get();
            for round in 0..SENDS {
                let (sent, _loan) =
                    socket.send(Buffer::from(pattern(round, 3_000))).unwrap().split();
                assert_eq!(sent.await.unwrap(), 3_000, "{engine}");
                far.read_exact(&mut [0; 3_000]).unwrap();
            }
            polls.get() - before
        };
        let polled = executor.run(sending).unwrap();
        assert!(polled < SENDS * 150, "{engine}: {polled} polls beside {SENDS} sends");
        drop(greedy);
    });
}

/// Small copied sends are over as soon as they are awaited, and so is each next one.
#[test]
fn a_task_whose_sends_are_over_at_once_holds_nobody_up() {
    with_each_engine(LONG, |driver, engine| {
        let (socket, _far) = traffic::udp(&driver, engine);
        let executor = Executor::new(&driver);
        let over = Rc::new(Cell::new(false));
        let (told, clock) = (over.clone(), driver.clone());
        let waiting = executor.spawn(async move {
            clock.sleep(SHORT).await.unwrap();
            told.set(true);
        });
        let sending = async {
            let mut buffer = Buffer::from(vec![7; 100]);
            // In less than that the time is over.
            for _ in 0..300_000 {
                if over.get() {
                    break;
                }
                let finished = socket.send(buffer).unwrap().await.unwrap();
                assert_eq!(finished.sent.unwrap(), 100, "{engine}");
                buffer = finished.buffer;
            }
            over.get()
        };
        assert!(executor.run(sending).unwrap(), "{engine}: nobody else had a turn");
        drop(waiting);
    });
}
