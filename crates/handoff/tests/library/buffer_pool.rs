//! A pool of buffers: they come back from every use, and the first waiter gets the first.

use std::collections::HashSet;
use std::future::Future;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use handoff::{Buffer, BufferPool, Driver, Engine, Error, Frozen, Region, Wait};
use proptest::prelude::*;

use crate::traffic::{
    self, attached, drivers, narrow_tcp, pattern, tcp, with_each_driver, with_each_engine, within,
};

const LONG: Duration = Duration::from_secs(60);

fn pool(count: usize, len: usize) -> BufferPool {
    let pool = BufferPool::new(Region::anonymous(count * len).unwrap(), len).unwrap();
    assert_eq!((pool.buffers(), pool.free(), pool.buffer_len()), (count, count, len));
    pool
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_region_gives_as_many_as_it_has_room_for() {
    let of = |region, len| BufferPool::new(Region::anonymous(region).unwrap(), len);
    // The last buffer needs no room behind it.
    assert_eq!(of(4096, 1000).unwrap().buffers(), 4);
    assert_eq!(of(4096, 4096).unwrap().buffers(), 1);
    assert_eq!(of(4096, 1).unwrap().buffers(), 64);
    for len in [0, 4097, usize::MAX] {
        assert!(of(4096, len).unwrap_err().to_string().contains("room for one"), "{len}");
    }
    let mut region = Region::anonymous(4096).unwrap();
    let _cut = region.take(1);
    assert!(BufferPool::new(region, 64).unwrap_err().to_string().contains("cut from it"));
}

#[test]
fn who_waits_first_has_it_first_and_who_leaves_passes_it_on() {
    let pool = pool(1, 4096);
    let out = pool.try_get().unwrap();
    let mut waits: Vec<_> = (0..3).map(|_| Box::pin(pool.get())).collect();
    let woken: Vec<_> = (0..3).map(|_| Arc::new(Woken::default())).collect();
    for (wait, woken) in waits.iter_mut().zip(&woken) {
        let waker = Waker::from(woken.clone());
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let counts = || -> Vec<_> { woken.iter().map(|woken| woken.0.load(SeqCst)).collect() };
    drop(out);
    assert_eq!(counts(), [1, 0, 0]);
    assert!(pool.try_get().is_none(), "it is for who waits");
    let mut waits = waits.into_iter();
    drop(waits.next());
    assert_eq!(counts(), [1, 1, 0]);
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(buffer) = waits.next().unwrap().as_mut().poll(&mut context) else {
        panic!("it was woken for a buffer")
    };
    // A waiter that leaves without a buffer changes nothing.
    drop(waits.next());
    drop(buffer);
    assert_eq!((pool.free(), counts()), (1, vec![1, 1, 0]));
}

/// Many messages from four buffers; nobody waits for the loans.
#[test]
fn memory_for_sends_comes_back() {
    const MESSAGES: usize = 100;
    const LEN: usize = 8192;
    with_each_engine(LONG, |driver, engine| {
        let pool = pool(4, LEN);
        if driver.ring_unavailable().is_none() {
            driver.register(&pool).unwrap();
        }
        let (near, mut far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, engine);
        let reader = thread::spawn(move || {
            let mut got = vec![0; LEN];
            for number in 0..MESSAGES {
                far.read_exact(&mut got).unwrap();
                assert!(got == pattern(number, LEN), "message {number}");
            }
        });
        let send = async {
            for number in 0..MESSAGES {
                let mut buffer = pool.get().await;
                buffer.copy_from_slice(&pattern(number, LEN));
                // Some buffers are frozen, some split: all of it comes back.
                match number % 3 {
                    0 => drop(socket.send(buffer).unwrap()),
                    1 => drop(socket.send(buffer.freeze()).unwrap()),
                    _ => {
                        let head = buffer.split_to(LEN / 2);
                        drop(socket.send(vec![head, buffer]).unwrap());
                    }
                }
            }
        };
        driver.block_on(send).unwrap();
        // The last sends were only accepted.
        while driver.in_flight() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
        reader.join().unwrap();
        assert_eq!(pool.free(), 4, "{engine}");
    });
}

/// If nobody gives a buffer back, the wait ends and names who has what.
#[test]
fn a_wait_that_ends_says_who_has_the_buffers() {
    with_each_driver(LONG, |driver| {
        let pool = pool(4, 1 << 20);
        let pairs = [narrow_tcp(), narrow_tcp()];
        let [one, two] = [0, 1].map(|at| driver.socket(pairs[at].0.try_clone().unwrap()).unwrap());
        for socket in [&one, &two] {
            socket.set_engine(handoff::Engine::Copy).unwrap();
        }
        let news = pool.try_get().unwrap().freeze();
        drop(one.send(news.clone()).unwrap());
        drop(one.send(pool.try_get().unwrap()).unwrap());
        // Listed once, however often it is lent.
        drop(one.send(news.part(5..)).unwrap());
        drop(two.send(news).unwrap());
        let held: Vec<_> = std::iter::from_fn(|| pool.try_get()).collect();
        assert_eq!(held.len(), 2);
        let time = Duration::from_millis(20);
        let error = driver.block_on(driver.get_within(&pool, time)).unwrap().unwrap_err();
        let Error::PoolEmpty { waited, buffers, .. } = error else { panic!("{error}") };
        assert_eq!((waited, buffers), (time, 4));
        let fd = |socket: &handoff::Socket| socket.as_fd().as_raw_fd();
        let text = error.to_string();
        for part in [
            format!("2 are on loan on descriptor {}", fd(&one)),
            format!("1 are on loan on descriptor {}", fd(&two)),
            "2 are with the program".to_owned(),
        ] {
            assert!(text.contains(&part), "{text}");
        }
        // It waits no more, so the next buffer is free for all.
        drop(held);
        assert_eq!(pool.free(), 2);
        assert!(driver.block_on(driver.get_within(&pool, time)).unwrap().is_ok());
    });
}

#[test]
fn a_buffer_that_comes_in_time_is_had() {
    with_each_driver(LONG, |driver| {
        let pool = pool(1, 4096);
        let out = pool.try_get().unwrap();
        let giver = thread::spawn(move || {
            thread::yield_now();
            drop(out);
        });
        let got = driver.block_on(driver.get_within(&pool, LONG)).unwrap().unwrap();
        giver.join().unwrap();
        assert_eq!(got.len(), 4096);
        // Nothing of the wait is left once the kernel has ended it.
        while driver.in_flight() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Get,
    Drop(usize),
    Split(usize, usize),
    Freeze(usize),
    Clone(usize),
    Unfreeze(usize),
}

enum Held {
    Buffer(usize, Buffer),
    Frozen(usize, Frozen),
}

/// A buffer in use is never handed out again, and comes back with its last piece.
fn random_pieces(steps: &[Step]) {
    const COUNT: usize = 4;
    let pool = pool(COUNT, 4096);
    let mut held: Vec<Held> = Vec::new();
    let mut marks = 0;
    for step in steps {
        let pick = |number: usize| (!held.is_empty()).then(|| number % held.len());
        match *step {
            Step::Get => {
                let got = pool.try_get();
                let out: HashSet<_> = held
                    .iter()
                    .map(|(Held::Buffer(mark, _) | Held::Frozen(mark, _))| *mark)
                    .collect();
                assert_eq!(got.is_some(), out.len() < COUNT);
                assert_eq!(pool.free(), COUNT - out.len() - usize::from(got.is_some()));
                if let Some(mut buffer) = got {
                    marks += 1;
                    buffer.fill(marks as u8);
                    held.push(Held::Buffer(marks, buffer));
                }
            }
            Step::Drop(number) => {
                if let Some(at) = pick(number) {
                    held.swap_remove(at);
                }
            }
            Step::Split(number, place) => {
                let Some(at) = pick(number) else { continue };
                match &mut held[at] {
                    Held::Buffer(mark, buffer) => {
                        let (mark, head) = (*mark, buffer.split_to(place % (buffer.len() + 1)));
                        held.push(Held::Buffer(mark, head));
                    }
                    Held::Frozen(mark, frozen) => {
                        let part = frozen.part(place % (frozen.len() + 1)..);
                        let mark = *mark;
                        held.push(Held::Frozen(mark, part));
                    }
                }
            }
            Step::Freeze(number) => {
                let Some(at) = pick(number) else { continue };
                let frozen = match held.swap_remove(at) {
                    Held::Buffer(mark, buffer) => Held::Frozen(mark, buffer.freeze()),
                    frozen => frozen,
                };
                held.push(frozen);
            }
            Step::Clone(number) => {
                let Some(at) = pick(number) else { continue };
                if let Held::Frozen(mark, frozen) = &held[at] {
                    let again = Held::Frozen(*mark, frozen.clone());
                    held.push(again);
                }
            }
            Step::Unfreeze(number) => {
                let Some(at) = pick(number) else { continue };
                let after = match held.swap_remove(at) {
                    Held::Frozen(mark, frozen) => match frozen.try_unfreeze() {
                        Ok(buffer) => Held::Buffer(mark, buffer),
                        Err(frozen) => Held::Frozen(mark, frozen),
                    },
                    buffer => buffer,
                };
                held.push(after);
            }
        }
        for held in &held {
            let (mark, bytes): (_, &[u8]) = match held {
                Held::Buffer(mark, buffer) => (*mark, buffer),
                Held::Frozen(mark, frozen) => (*mark, frozen),
            };
            assert!(bytes.iter().all(|byte| *byte == mark as u8), "two have the same bytes");
        }
    }
    drop(held);
    assert_eq!(pool.free(), COUNT);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
    #[test]
    fn pieces_of_a_pool_in_any_order(steps in prop::collection::vec(prop_oneof![
        3 => Just(Step::Get),
        2 => any::<usize>().prop_map(Step::Drop),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(at, place)| Step::Split(at, place)),
        2 => any::<usize>().prop_map(Step::Freeze),
        1 => any::<usize>().prop_map(Step::Clone),
        2 => any::<usize>().prop_map(Step::Unfreeze),
    ], 1..120)) {
        random_pieces(&steps);
    }
}

/// Tasks of several threads, each with a driver, share two buffers.
#[test]
fn threads_share_a_pool() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    within(LONG, || {
        let pool = pool(2, 4096);
        let run = |number: usize| {
            let driver = if number == 0 { traffic::without_ring() } else { Driver::new().unwrap() };
            let (near, mut far) = tcp("127.0.0.1");
            let socket = driver.socket(near).unwrap();
            let reader = thread::spawn(move || {
                let mut got = vec![0; 4096];
                for round in 0..ROUNDS {
                    far.read_exact(&mut got).unwrap();
                    assert!(got == pattern(1000 * number + round, 4096));
                }
            });
            driver
                .block_on(async {
                    for round in 0..ROUNDS {
                        let mut buffer = pin!(pool.get()).await;
                        buffer.copy_from_slice(&pattern(1000 * number + round, 4096));
                        let finished = socket.send(buffer).unwrap().await.unwrap();
                        assert_eq!(finished.sent.unwrap(), 4096);
                    }
                })
                .unwrap();
            reader.join().unwrap();
        };
        thread::scope(|scope| {
            for number in 0..THREADS {
                let run = &run;
                scope.spawn(move || run(number));
            }
        });
        assert_eq!(pool.free(), 2);
    });
}

/// Handles outlive the last driver, and a buffer that one of them drops may be what others wait for.
#[test]
fn who_waits_is_woken_also_when_the_driver_of_the_last_buffer_is_gone() {
    for driver in drivers() {
        let pool = pool(1, 4096);
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        socket.set_engine(Engine::Copy).unwrap();
        let (sent, loan) = socket.send(pool.try_get().unwrap()).unwrap().split();
        assert_eq!(driver.block_on(sent).unwrap().unwrap(), 4096);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut waits = pin!(pool.get());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(driver);
        drop(loan);
        assert_eq!(woken.0.load(SeqCst), 1);
        assert!(waits.poll(&mut Context::from_waker(&waker)).is_ready());
        drop(socket);
    }
}
