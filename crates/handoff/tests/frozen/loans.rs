//! While anybody has a frozen buffer on loan, nobody writes it.

use std::collections::VecDeque;
use std::io::Read;
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;

use handoff::{Driver, Engine, Frozen, Region, RingUse, Socket, Wait};

use crate::LONG;
use crate::readers::Readers;
use crate::traffic::{self, attached, filled, narrow_tcp, pattern, tcp, with_each_engine, within};

const SHORT: usize = 6000;

/// A frozen buffer on its way to a peer that does not read, whose send is dropped.
fn on_its_way(driver: &Driver, engine: Engine) -> (Socket, TcpStream, Frozen) {
    let (near, far) = narrow_tcp();
    let socket = attached(driver, near, engine);
    let mut region = Region::anonymous(1 << 20).unwrap();
    let frozen = filled(&mut region, 3, 1 << 20).freeze();
    drop(socket.send(frozen.clone()).unwrap());
    driver.turn(Wait::No).unwrap();
    (socket, far, frozen)
}

/// On its way to a peer that does not read, by each engine, and then dropped: it is frozen until the peer has it.
#[test]
fn what_is_on_loan_is_not_written() {
    with_each_engine(LONG, |driver, engine| {
        let (_socket, mut far, frozen) = on_its_way(&driver, engine);
        let frozen = frozen.try_unfreeze().expect_err("it is on loan");
        // The same from another thread, which does not touch the driver.
        let frozen = thread::spawn(|| frozen.try_unfreeze().expect_err("it is on loan"));
        let frozen = frozen.join().unwrap();
        let reader = thread::spawn(move || {
            let mut got = vec![0; 1 << 20];
            far.read_exact(&mut got).unwrap();
            got
        });
        while driver.in_flight() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
        assert!(reader.join().unwrap() == pattern(3, 1 << 20), "{engine}");
        assert_eq!(frozen.try_unfreeze().expect("all is over").len(), 1 << 20);
    });
}

/// The kernel may still have pages when a driver goes; then nobody may write them again.
#[test]
fn a_driver_that_goes_gives_back_only_what_the_kernel_let_go() {
    within(LONG, || {
        for engine in [Engine::Copy, Engine::MsgZerocopy, Engine::UringZc] {
            let ring = if engine == Engine::UringZc { RingUse::Prefer } else { RingUse::Avoid };
            let driver = Driver::builder().ring(ring).build().unwrap();
            if engine == Engine::UringZc && driver.ring_unavailable().is_some() {
                continue;
            }
            let (socket, mut far, frozen) = on_its_way(&driver, engine);
            drop((socket, driver));
            // Bytes in the socket's buffer at the end are read from the lent pages only now.
            if let Ok(mut buffer) = frozen.try_unfreeze() {
                buffer.fill(0xff);
            }
            let mut got = Vec::new();
            let _ = far.read_to_end(&mut got);
            traffic::assert_same(&got, &pattern(3, 1 << 20)[..got.len()]);
            assert!(!got.is_empty());
        }
    });
}

/// Threads with their own drivers hand clones around and write buffers that they could unfreeze.
#[test]
fn threads_that_share_never_see_a_byte_change() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    const MOST: usize = 2 * THREADS;
    within(LONG, || {
        let mut region = Region::anonymous(THREADS * 8192).unwrap();
        let first = |seed| (seed, filled(&mut region, seed, SHORT).freeze());
        let bag = Mutex::new(VecDeque::from_iter((0..THREADS).map(first)));
        let run = |number: usize| {
            let ring = if number == 1 { RingUse::Avoid } else { RingUse::Prefer };
            let driver = Driver::builder().ring(ring).build().unwrap();
            if number != 2 {
                let _ = driver.register(&region);
            }
            let (near, far) = tcp("127.0.0.1");
            let mut readers = Readers::new();
            readers.add(far);
            let socket = driver.socket(near).unwrap();
            let mut expected = Vec::new();
            let mut seed = 1000 * (number + 1);
            for _ in 0..ROUNDS {
                let (of, frozen) = loop {
                    match bag.lock().unwrap().pop_front() {
                        Some(next) => break next,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(frozen[..], pattern(of, SHORT));
                expected.extend_from_slice(&frozen);
                drop(socket.send(frozen.clone()).unwrap());
                driver.turn(Wait::No).unwrap();
                let next = match frozen.try_unfreeze() {
                    Ok(mut buffer) => {
                        seed += 1;
                        buffer.copy_from_slice(&pattern(seed, SHORT));
                        (seed, buffer.freeze())
                    }
                    Err(frozen) => (of, frozen),
                };
                let mut bag = bag.lock().unwrap();
                // Two others may have it at once.
                if bag.len() < MOST {
                    bag.push_back(next.clone());
                }
                bag.push_back(next);
            }
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            drop(socket);
            driver.turn(Wait::No).unwrap();
            traffic::assert_same(&readers.end()[0], &expected);
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let run = &run;
                scope.spawn(move || run(number));
            }
        });
    });
}
