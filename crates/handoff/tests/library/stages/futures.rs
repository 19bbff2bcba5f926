//! Futures that panic, and tasks that are dropped midway.

use std::panic::{AssertUnwindSafe, catch_unwind};

use handoff::{Buffer, Executor};

use crate::stages::stage::{LONG, STAGES, STALLED, at_stage, settle};
use crate::traffic::{
    attached, engines_apart, narrow_tcp, pattern, read_all, with_each_engine, within,
};

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
                    let reader = read_all(far);
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
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let executor = Executor::new(&driver);
        let mut expected = Vec::new();
        let mut tasks = Vec::new();
        for (seed, len) in [STALLED, 1000, 70_000].into_iter().enumerate() {
            expected.extend(pattern(seed, len));
            let socket = socket.clone();
            tasks.push(executor.spawn(async move {
                let sending = socket.send(Buffer::from(pattern(seed, len))).unwrap();
                sending.await.unwrap().sent.unwrap();
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
        let reader = read_all(far);
        settle(&driver);
        assert!(reader.join().unwrap() == expected, "{engine}");
    });
}
