//! A ring whose queue a thread of the kernel polls.

use std::ffi::CString;
use std::future::{Future as _, IntoFuture as _};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, RingUse, Wait};
use io_uring::{opcode, squeue, types};

use crate::refusals::refuse_calls;
use crate::traffic::{self, POLLED, attached, pattern, read_all, tcp, within};

const LONG: Duration = Duration::from_secs(30);

/// The main tests, which find the driver by [`traffic::drivers`] and the like.
const MAIN: &[&str] = &[
    "send::",
    "order::",
    "deadlines::",
    "files::calls::",
    "files::opening::",
    "fork::",
    "raw::",
    "receive_into::what_a_dropped_receive_had_taken",
];

/// What does not hold there: the kernel may not come to the queue for as long as it likes.
const OTHERWISE: &[&str] = &["deadlines::a_task_that_yields_for_ever_holds_nobody_up"];

/// A driver whose queue is polled for so long; `None`, with a line for the summary, where there can be no ring.
fn polled(idle: Duration, test: &str) -> Option<Driver> {
    let driver = Driver::builder().sq_poll(idle).build().unwrap();
    if let Some(reason) = driver.sq_poll_unavailable().or(driver.ring_unavailable()) {
        traffic::skip(&format!("sq_poll::{test}"), reason);
        return None;
    }
    Some(driver)
}

#[test]
fn the_main_tests_pass_with_a_queue_that_the_kernel_polls() {
    let test = "the_main_tests_pass_with_a_queue_that_the_kernel_polls";
    if polled(Duration::from_millis(1), test).is_none() {
        return;
    }
    let run = Command::new(std::env::current_exe().unwrap())
        .args(MAIN)
        .args(OTHERWISE.iter().chain(&["guest"]).flat_map(|name| ["--skip", name]))
        .env(POLLED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    let passed = said.rsplit_once("test result: ok. ").map(|(_, rest)| rest);
    let passed = passed.and_then(|rest| rest.split_once(' ')?.0.parse::<u32>().ok());
    assert!(passed > Some(35), "{said}");
}

#[test]
fn a_hot_path_makes_no_call() {
    within(LONG, || {
        let Some(driver) = polled(Duration::from_secs(20), "a_hot_path_makes_no_call") else {
            return;
        };
        let (near, mut far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, Engine::UringZc);
        let echo = std::thread::spawn(move || {
            let mut bytes = [0; 1000];
            while far.read_exact(&mut bytes).is_ok() {
                far.write_all(&bytes).unwrap();
            }
        });
        let mut buffer = Some((Buffer::from(pattern(1, 1000)), Buffer::from(vec![0; 1000])));
        let mut exchange = |rounds| {
            for _ in 0..rounds {
                let (question, room) = buffer.take().unwrap();
                let mut sending = pin!(socket.send(question).unwrap().into_future());
                let mut receiving = pin!(socket.receive_exact(room).unwrap());
                let mut context = Context::from_waker(Waker::noop());
                let (mut sent, mut received) = (Poll::Pending, Poll::Pending);
                while sent.is_pending() || received.is_pending() {
                    driver.turn(Wait::No).unwrap();
                    if sent.is_pending() {
                        sent = sending.as_mut().poll(&mut context);
                    }
                    if received.is_pending() {
                        received = receiving.as_mut().poll(&mut context);
                    }
                    std::thread::yield_now();
                }
                let (Poll::Ready(sent), Poll::Ready(received)) = (sent, received) else {
                    unreachable!("both are over")
                };
                let (sent, received) = (sent.unwrap(), received.unwrap());
                assert_eq!((sent.sent.unwrap(), received.result.unwrap()), (1000, 1000));
                assert!(received.buffer[..] == pattern(1, 1000));
                buffer = Some((sent.buffer, received.buffer));
            }
        };
        exchange(10);
        let before = driver.ring_calls();
        // The count is not the only witness: from here on this thread's calls fail.
        refuse_calls([(libc::SYS_io_uring_enter, vec![])], libc::EPERM);
        exchange(100);
        assert_eq!(driver.ring_calls(), before);
        drop(socket);
        drop(driver);
        echo.join().unwrap();
    });
}

#[test]
fn a_thread_that_sleeps_is_woken() {
    within(LONG, || {
        let Some(driver) = polled(Duration::ZERO, "a_thread_that_sleeps_is_woken") else { return };
        let (near, far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, Engine::UringZc);
        let got = read_all(far);
        let (mut slept, mut seed) = (0, 0);
        // It sleeps when it has been scheduled, which a busy machine may put off.
        while slept == 0 || seed < 20 {
            let before = driver.ring_calls();
            let sending = socket.send(Buffer::from(pattern(seed, 3000))).unwrap();
            // It is submitted; who waits by turns enters no kernel for that.
            driver.turn(Wait::No).unwrap();
            slept += driver.ring_calls() - before;
            let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
            assert_eq!(finished.sent.unwrap(), 3000);
            std::thread::sleep(Duration::from_millis(5));
            seed += 1;
        }
        drop(socket);
        let expected: Vec<u8> = (0..seed).flat_map(|seed| pattern(seed, 3000)).collect();
        assert!(got.join().unwrap() == expected);
    });
}

/// Chains are published whole, also where the queue is full.
#[test]
fn a_full_queue_keeps_a_stream_in_order() {
    within(LONG, || {
        for entries in [2, 8] {
            let driver = Driver::builder()
                .sq_poll(Duration::from_millis(1))
                .entries(entries)
                .build()
                .unwrap();
            if let Some(reason) = driver.sq_poll_unavailable() {
                return traffic::skip("sq_poll::a_full_queue_keeps_a_stream_in_order", reason);
            }
            let (near, far) = tcp("127.0.0.1");
            let socket = attached(&driver, near, Engine::UringZc);
            let got = read_all(far);
            let sendings: Vec<_> = (0..2000)
                .map(|seed| {
                    let message = socket.message(Buffer::from(pattern(seed, 100 + seed)));
                    message.header(&[seed as u8; 3]).send().unwrap()
                })
                .collect();
            driver
                .block_on(async {
                    for (seed, sending) in sendings.into_iter().enumerate() {
                        assert_eq!(sending.await.unwrap().sent.unwrap(), 103 + seed);
                    }
                })
                .unwrap();
            drop(socket);
            let expected: Vec<u8> = (0..2000)
                .flat_map(|seed| [vec![seed as u8; 3], pattern(seed, 100 + seed)].concat())
                .collect();
            assert!(got.join().unwrap() == expected);
        }
    });
}

/// A worker of the kernel's thread waits for somebody who opens the other end.
#[test]
fn what_a_worker_of_the_thread_waits_for_ends_with_the_driver() {
    within(LONG, || {
        let test = "what_a_worker_of_the_thread_waits_for_ends_with_the_driver";
        let Some(driver) = polled(Duration::from_millis(1), test) else { return };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fifo");
        let path = CString::new(path.into_os_string().into_vec()).unwrap();
        // SAFETY: the path ends in a zero byte.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
            .flags(libc::O_RDONLY)
            .build()
            .flags(squeue::Flags::ASYNC);
        // SAFETY: the path is on the heap, and the owner has it.
        let request = unsafe { driver.raw_request(entry, path) }.unwrap();
        for _ in 0..10 {
            driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        drop(driver);
        let ended = request.try_take().expect("the driver has taken its end");
        // The kernel's internal error for a call that is cut short gets here, too.
        assert!(matches!(-ended.result, libc::ECANCELED | libc::EINTR | 512), "{}", ended.result);
    });
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    let idle = Duration::from_millis(1);
    let builder = || Driver::builder().sq_poll(idle);
    for refused in [builder().ring(RingUse::Avoid), builder().zero_copy_receive(true)] {
        let error = refused.build().unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
}

#[test]
fn a_processor_that_there_is_not_is_named() {
    let test = "a_processor_that_there_is_not_is_named";
    if polled(Duration::from_millis(1), test).is_none() {
        return;
    }
    let builder = || Driver::builder().sq_poll_on(Duration::from_millis(1), 1 << 20);
    let driver = builder().build().unwrap();
    assert_eq!(driver.ring_unavailable(), None);
    let reason = driver.sq_poll_unavailable().unwrap();
    assert!(reason.contains("processor 1048576"), "{reason}");
    let error = builder().ring(RingUse::Require).build().unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
}
