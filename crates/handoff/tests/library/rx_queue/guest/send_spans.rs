//! Spans of a queue on other threads: their chunks come home, and the ring stays open for them.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use handoff::{SendSpan, Wait};
use handoff_testbed::helpers::{byte_at, eventually};

use crate::rx_queue::receiving::{
    LONG, MIB, QUEUE, area, bound, driver, exchange, receiver, whole,
};
use crate::rx_queue::testbed::{Testbed, send};
use crate::traffic::within;

/// Whether it has the bytes of the stream from there on.
fn is_of_stream(span: &SendSpan, position: usize) -> bool {
    span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at))
}

#[test]
fn a_stream_goes_through_another_thread_and_its_chunks_come_home() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, &queue);
        let (to_worker, work) = mpsc::sync_channel::<SendSpan>(64);
        let worker = thread::spawn(move || {
            let mut position = 0;
            for span in work {
                assert!(is_of_stream(&span, position), "something differs at {position}");
                position += span.len();
            }
            position
        });
        // Takes the chunks of the area several times.
        let sender = send(left, 4 * MIB);
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    to_worker.send(span.expect("receives").into_send().expect("leaves")).unwrap();
                }
            })
            .expect("runs");
        drop(to_worker);
        assert_eq!(worker.join().expect("ends"), 4 * MIB);
        sender.join().expect("ends");
        assert_eq!(receiver.tally(), whole(4 * MIB));
        while queue.held() > 0 {
            driver.turn(Wait::Event).expect("turns");
        }
    });
}

#[test]
fn the_queue_stays_bound_for_spans_on_other_threads_and_is_free_then() {
    within(LONG, || {
        let (testbed, driver) = (Testbed::new(1_500), driver());
        let queue = bound(&testbed, &driver, 1_024);
        let (left, far) = testbed.stream(testbed.pair.right.v4(), QUEUE);
        let mut receiver = receiver(&driver, far, &queue);
        let sender = send(left, MIB);
        let mut sent = Vec::new();
        driver
            .block_on(async {
                while let Some(span) = receiver.next_span().await {
                    sent.push(span.expect("receives").into_send().expect("leaves"));
                }
            })
            .expect("runs");
        sender.join().expect("ends");
        assert_eq!(queue.held(), sent.len());
        drop((receiver, queue, driver));
        let next = self::driver();
        thread::sleep(Duration::from_millis(50));
        assert!(testbed.bind(&next, QUEUE, area(1_024), None).is_err(), "it is bound");
        // The NIC writes to none of them meanwhile.
        thread::spawn(move || {
            let mut position = 0;
            for span in sent {
                assert!(is_of_stream(&span, position), "a kept span has changed at {position}");
                position += span.len();
            }
            assert_eq!(position, MIB);
        })
        .join()
        .expect("ends");
        let queue =
            eventually("the queue is free", || testbed.bind(&next, QUEUE, area(1_024), None).ok());
        assert_eq!(exchange(&testbed, &next, &queue, false, MIB).copied, 0);
    });
}
