//! Lanes of sockets: pushed buffers arrive and come back, whatever happens meanwhile.

use std::collections::VecDeque;
use std::future::Future;
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, Finished, Lane, Region, RingUse, Socket, Wait};
use proptest::prelude::*;
use socket2::SockRef;

use crate::stages::stage::{LONG, settle, turn_for};
use crate::traffic::{
    assert_same, filled, narrow_tcp, pattern, read_all, skip, stay_on_one_processor, tcp, within,
};

/// A driver with a ring, which lanes need.
fn driver(test: &str) -> Option<Driver> {
    let driver = Driver::new().unwrap();
    match driver.ring_unavailable() {
        None => Some(driver),
        Some(reason) => {
            skip(test, reason);
            None
        }
    }
}

fn udp() -> (UdpSocket, UdpSocket) {
    let (near, far) =
        (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    near.connect(far.local_addr().unwrap()).unwrap();
    SockRef::from(&far).set_recv_buffer_size(1 << 20).unwrap();
    (near, far)
}

fn push(lane: &Lane, buffer: Buffer) {
    lane.push(buffer).map_err(|refused| refused.error).unwrap();
}

/// Takes back all pushed buffers.
fn take_all(driver: &Driver, lane: &Lane) -> Vec<Finished<Buffer>> {
    let mut all = Vec::new();
    while !lane.is_empty() {
        driver.turn(Wait::Event).unwrap();
        all.extend(std::iter::from_fn(|| lane.take()));
    }
    all
}

#[test]
fn datagrams_arrive_and_come_back_in_order() {
    within(LONG, || {
        let test = "lanes::datagrams_arrive_and_come_back_in_order";
        stay_on_one_processor();
        for (registered, nonblocking) in [(false, false), (true, false), (true, true)] {
            let Some(driver) = driver(test) else { return };
            let (near, far) = udp();
            near.set_nonblocking(nonblocking).unwrap();
            let mut region = Region::anonymous(1 << 20).unwrap();
            if registered {
                driver.register(&region).unwrap();
            }
            let socket = driver.socket(near).unwrap();
            let lane = socket.lane(&region, 5).unwrap();
            let mut free: VecDeque<Buffer> = (0..5).map(|_| region.take(9000).unwrap()).collect();
            let (mut pushed, mut back) = (0, 0);
            while back < 100 {
                while pushed < 100
                    && let Some(mut buffer) = free.pop_front()
                {
                    let len = pushed * 89 % 9000;
                    buffer.set_len(len);
                    buffer.copy_from_slice(&pattern(pushed, len));
                    push(&lane, buffer);
                    pushed += 1;
                }
                driver.turn(Wait::Event).unwrap();
                while let Some(finished) = lane.take() {
                    let expected = pattern(back, back * 89 % 9000);
                    assert_eq!(finished.sent.unwrap(), expected.len());
                    assert_eq!(finished.receipt.tally.total(), expected.len() as u64);
                    assert!(finished.buffer[..] == expected);
                    let mut space = [0; 9001];
                    let got = far.recv(&mut space).unwrap();
                    assert!(space[..got] == expected, "datagram {back} differs");
                    let mut buffer = finished.buffer;
                    buffer.set_len(0);
                    free.push_back(buffer);
                    back += 1;
                }
            }
            assert_eq!(driver.in_flight(), 0);
            let stats = socket.send_stats();
            let total = (0..100).map(|message| message * 89 % 9000).sum::<u64>();
            assert_eq!((stats.messages, stats.returned.total()), (100, total));
        }
    });
}

#[test]
fn a_lane_takes_what_it_was_made_for() {
    let Some(driver) = driver("lanes::a_lane_takes_what_it_was_made_for") else { return };
    let (near, _far) = udp();
    let socket = driver.socket(near).unwrap();
    let mut region = Region::anonymous(1 << 16).unwrap();
    let mut other = Region::anonymous(1 << 16).unwrap();
    let lane = socket.lane(&region, 3).unwrap();
    assert_eq!((lane.capacity(), lane.len(), lane.is_empty()), (3, 0, true));
    let refused = lane.push(filled(&mut other, 1, 50)).unwrap_err();
    assert!(matches!(refused.error, Error::Invalid(_)), "{refused}");
    assert!(refused.buffer[..] == pattern(1, 50));
    let refused = lane.push(Buffer::from(vec![1])).unwrap_err();
    assert_eq!(&refused.buffer[..], [1]);
    (0..3).for_each(|seed| push(&lane, filled(&mut region, seed, 50)));
    let refused = lane.push(filled(&mut region, 3, 50)).unwrap_err();
    assert!(matches!(refused.error, Error::LaneFull { capacity: 3 }), "{refused}");
    assert!(refused.buffer[..] == pattern(3, 50));
    assert_eq!(driver.in_flight(), 3);
    let first = loop {
        driver.turn(Wait::Event).unwrap();
        // Its bytes may be lent for longer than its send takes.
        if let Some(first) = lane.take() {
            break first;
        }
    };
    assert_eq!(first.sent.unwrap(), 50);
    push(&lane, refused.buffer);
    assert_eq!(take_all(&driver, &lane).len(), 3);
    for capacity in [0, 32_769] {
        assert!(matches!(socket.lane(&region, capacity), Err(Error::Invalid(_))));
    }
    socket.set_engine(Engine::Copy).unwrap();
    assert!(matches!(socket.lane(&region, 3), Err(Error::EngineUnavailable { .. })));
    let without = Driver::builder().ring(RingUse::Avoid).build().unwrap();
    let socket = without.socket(udp().0).unwrap();
    assert!(socket.lane(&region, 3).is_err());
}

#[test]
fn a_stream_with_a_lane_takes_nothing_else() {
    within(LONG, || {
        let Some(driver) = driver("lanes::a_stream_with_a_lane_takes_nothing_else") else { return };
        let (near, far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(1 << 16).unwrap();
        socket.set_engine(Engine::UringZc).unwrap();
        let sending = socket.send(Buffer::from(pattern(0, 100))).unwrap();
        assert!(matches!(socket.lane(&region, 3), Err(Error::Invalid(_))));
        driver.block_on(async { sending.await.unwrap().sent }).unwrap().unwrap();
        let lane = socket.lane(&region, 3).unwrap();
        assert!(matches!(socket.lane(&region, 3), Err(Error::Invalid(_))));
        push(&lane, filled(&mut region, 1, 100));
        let refused = socket.send(Buffer::from(pattern(2, 100))).unwrap_err();
        assert!(matches!(refused.error, Error::Invalid(_)), "{refused}");
        // Pushed buffers still go first.
        drop(lane);
        let refused = socket.send(refused.buffer).unwrap_err();
        driver.turn(Wait::Event).unwrap();
        let sending = socket.send(refused.buffer).unwrap();
        driver.block_on(async { sending.await.unwrap().sent }).unwrap().unwrap();
        settle(&driver);
        drop(socket);
        let got = read_all(far).join().unwrap();
        assert!(got == [pattern(0, 100), pattern(1, 100), pattern(2, 100)].concat());
    });
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push(usize),
    Turn(u64),
    Take(usize),
    Register,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![Just(0usize), 1usize..200, 1000usize..20_000, 50_000usize..200_000];
    prop_oneof![
        12 => len.prop_map(Step::Push),
        4 => (0u64..3).prop_map(Step::Turn),
        3 => (1usize..5).prop_map(Step::Take),
        1 => Just(Step::Register),
    ]
}

struct Model {
    driver: Driver,
    lane: Lane,
    region: Region,
    registered: bool,
    expected: Vec<u8>,
    lens: VecDeque<(usize, usize)>,
    seed: usize,
}

impl Model {
    fn act(&mut self, step: Step) {
        match step {
            Step::Push(len) => {
                let Some(mut buffer) = self.region.take(len) else { return };
                buffer.copy_from_slice(&pattern(self.seed, len));
                match self.lane.push(buffer) {
                    Ok(()) => {
                        self.expected.extend(pattern(self.seed, len));
                        self.lens.push_back((self.seed, len));
                    }
                    Err(refused) => {
                        assert!(matches!(refused.error, Error::LaneFull { .. }), "{refused}");
                        assert_eq!(self.lens.len(), self.lane.capacity());
                    }
                }
                self.seed += 1;
            }
            Step::Turn(time) => {
                self.driver.turn(Wait::AtMost(Duration::from_millis(time))).unwrap();
            }
            Step::Take(most) => while self.take() && !self.lens.len().is_multiple_of(most) {},
            Step::Register if self.registered => {
                self.driver.unregister(&self.region).unwrap();
                self.registered = false;
            }
            Step::Register => {
                self.driver.register(&self.region).unwrap();
                self.registered = true;
            }
        }
        assert_eq!(self.lane.len(), self.lens.len());
    }

    /// Whether anything was back.
    fn take(&mut self) -> bool {
        let Some(finished) = self.lane.take() else { return false };
        let (seed, len) = self.lens.pop_front().expect("no more comes back than was pushed");
        assert_eq!(finished.sent.unwrap(), len);
        assert_eq!(finished.receipt.tally.total(), len as u64);
        assert!(finished.buffer[..] == pattern(seed, len), "a buffer changed on its way");
        true
    }
}

/// A connection with little room, and what arrives at its slow end.
fn slow(delay: u64) -> (TcpStream, thread::JoinHandle<Vec<u8>>) {
    let (near, mut far) = narrow_tcp();
    let reader = thread::spawn(move || {
        let mut all = Vec::new();
        let mut space = vec![0; 64 << 10];
        loop {
            thread::sleep(Duration::from_micros(delay));
            match far.read(&mut space).unwrap() {
                0 => return all,
                got => all.extend_from_slice(&space[..got]),
            }
        }
    });
    (near, reader)
}

fn check(entries: u32, capacity: usize, nonblocking: bool, delay: u64, steps: Vec<Step>) {
    let driver = Driver::builder().entries(entries).build().unwrap();
    if driver.ring_unavailable().is_some() {
        return;
    }
    let (near, reader) = slow(delay);
    near.set_nonblocking(nonblocking).unwrap();
    let region = Region::anonymous(4 << 20).unwrap();
    let socket = driver.socket(near).unwrap();
    let lane = socket.lane(&region, capacity).unwrap();
    let mut model = Model {
        driver,
        lane,
        region,
        registered: false,
        expected: Vec::new(),
        lens: VecDeque::new(),
        seed: 0,
    };
    steps.into_iter().for_each(|step| model.act(step));
    while !model.lane.is_empty() {
        model.driver.turn(Wait::Event).unwrap();
        while model.take() {}
    }
    assert_eq!(model.driver.in_flight(), 0);
    let expected = std::mem::take(&mut model.expected);
    drop((socket, model));
    let got = reader.join().unwrap();
    assert_same(&got, &expected);
}

/// Fewer where processors are emulated.
fn cases() -> u32 {
    if std::env::var_os("HANDOFF_EMULATED").is_some() { 20 } else { 60 }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_is_what_was_pushed(
        entries in prop_oneof![Just(2u32), Just(8), Just(256)],
        capacity in 1usize..40,
        nonblocking in any::<bool>(),
        delay in 0u64..200,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        check(entries, capacity, nonblocking, delay, steps);
    }
}

/// A lane on a narrow connection whose peer reads nothing, with more in it than fits.
fn stalled(driver: &Driver) -> (Socket, Lane, TcpStream, Vec<u8>) {
    let (near, far) = narrow_tcp();
    let socket = driver.socket(near).unwrap();
    let mut region = Region::anonymous(4 << 20).unwrap();
    driver.register(&region).unwrap();
    let lane = socket.lane(&region, 8).unwrap();
    let mut expected = Vec::new();
    for seed in 0..6 {
        push(&lane, filled(&mut region, seed, 500_000));
        expected.extend(pattern(seed, 500_000));
    }
    (socket, lane, far, expected)
}

#[test]
fn a_reset_ends_a_stream_and_gives_back_every_buffer() {
    within(LONG, || {
        let test = "lanes::a_reset_ends_a_stream_and_gives_back_every_buffer";
        let Some(driver) = driver(test) else { return };
        let (socket, lane, far, _) = stalled(&driver);
        turn_for(&driver, Duration::from_millis(10));
        SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
        drop(far);
        let all = take_all(&driver, &lane);
        assert_eq!(all.len(), 6);
        let mut failed = 0;
        for (seed, finished) in all.into_iter().enumerate() {
            assert!(finished.buffer[..] == pattern(seed, 500_000));
            match finished.sent {
                Ok(sent) => assert!(sent == 500_000 && failed == 0),
                Err(error) if failed == 0 => {
                    let reset = [Some(libc::ECONNRESET), Some(libc::EPIPE)];
                    assert!(reset.contains(&error.raw_os_error()), "{error}");
                    failed = 1;
                }
                Err(error) => assert!(matches!(error, Error::StreamBroken { .. }), "{error}"),
            }
        }
        assert_eq!(failed, 1);
        let mut region = Region::anonymous(4096).unwrap();
        let refused = lane.push(region.take(9).unwrap()).unwrap_err();
        assert!(matches!(refused.error, Error::StreamBroken { .. }), "{refused}");
        drop(lane);
        let refused = socket.send(Buffer::from(vec![7; 9])).unwrap_err();
        assert!(matches!(refused.error, Error::StreamBroken { .. }), "{refused}");
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn datagrams_that_nobody_listens_for_fail_alone() {
    within(LONG, || {
        let test = "lanes::datagrams_that_nobody_listens_for_fail_alone";
        let Some(driver) = driver(test) else { return };
        let (near, far) = udp();
        drop(far);
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(1 << 16).unwrap();
        let lane = socket.lane(&region, 4).unwrap();
        let mut refused = 0;
        for seed in 0..20 {
            push(&lane, filled(&mut region, seed, 3000));
            for finished in take_all(&driver, &lane) {
                assert!(finished.buffer[..] == pattern(seed, 3000));
                match finished.sent {
                    Ok(sent) => assert_eq!(sent, 3000),
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0);
        // Longer than any datagram, and it blocks nobody.
        let mut region = Region::anonymous(1 << 20).unwrap();
        let lane = socket.lane(&region, 4).unwrap();
        push(&lane, filled(&mut region, 0, 70_000));
        push(&lane, filled(&mut region, 1, 700));
        let all = take_all(&driver, &lane);
        assert!(matches!(all[0].sent, Err(Error::MessageTooLong { size: 70_000, .. })));
        assert!(all[1].sent.is_ok() || all[1].receipt.tally.total() == 0);
    });
}

#[test]
fn a_dropped_lane_sends_what_was_pushed() {
    within(LONG, || {
        for time in [0, 10] {
            let Some(driver) = driver("lanes::a_dropped_lane_sends_what_was_pushed") else {
                return;
            };
            let (socket, lane, far, expected) = stalled(&driver);
            turn_for(&driver, Duration::from_millis(time));
            drop((lane, socket));
            assert_eq!(driver.in_flight(), 6);
            let reader = read_all(far);
            settle(&driver);
            assert!(reader.join().unwrap() == expected);
        }
    });
}

#[test]
fn a_forgotten_lane_sends_what_was_pushed_and_keeps_its_buffers() {
    within(LONG, || {
        let test = "lanes::a_forgotten_lane_sends_what_was_pushed_and_keeps_its_buffers";
        let Some(driver) = driver(test) else { return };
        let (socket, lane, mut far, expected) = stalled(&driver);
        std::mem::forget(lane);
        let reader = thread::spawn(move || {
            let mut all = vec![0; expected.len()];
            far.read_exact(&mut all).unwrap();
            assert!(all == expected);
        });
        while !reader.is_finished() {
            driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        }
        reader.join().unwrap();
        assert_eq!(driver.in_flight(), 6);
        drop(socket);
    });
}

#[test]
fn a_cancelled_lane_gives_back_every_buffer() {
    within(LONG, || {
        for (turns, time, nonblocking) in
            [(0, 0, false), (1, 0, false), (1, 10, false), (1, 10, true)]
        {
            let test = "lanes::a_cancelled_lane_gives_back_every_buffer";
            let Some(driver) = driver(test) else { return };
            let (socket, lane, far, expected) = stalled(&driver);
            SockRef::from(&socket).set_nonblocking(nonblocking).unwrap();
            let turn = |turns| (0..turns).for_each(|_| _ = driver.turn(Wait::No).unwrap());
            turn(turns);
            turn_for(&driver, Duration::from_millis(time));
            lane.cancel();
            lane.cancel();
            // The kernel may have looked for it in vain, more than once.
            turn(20);
            let reader = read_all(far);
            let all = take_all(&driver, &lane);
            assert_eq!(all.len(), 6);
            let mut taken = 0;
            for (seed, finished) in all.into_iter().enumerate() {
                assert!(finished.buffer[..] == pattern(seed, 500_000));
                taken += match finished.sent {
                    Ok(sent) => sent,
                    Err(Error::Canceled { done }) => done,
                    Err(error) => panic!("{error}"),
                };
            }
            let mut region = Region::anonymous(4096).unwrap();
            let refused = lane.push(region.take(9).unwrap()).unwrap_err();
            assert!(matches!(refused.error, Error::Canceled { .. }), "{refused}");
            drop(lane);
            let midway = taken % 500_000 > 0;
            // Nobody had read anything by then.
            assert_eq!(midway, turns > 0, "{taken}");
            assert_eq!(socket.send(Buffer::from(vec![7; 9])).is_err(), midway);
            settle(&driver);
            drop(socket);
            let got = reader.join().unwrap();
            let more = if midway { 0 } else { 9 };
            assert_eq!(got.len(), taken + more);
            assert!(got[..taken] == expected[..taken]);
        }
    });
}

/// The peer gets what the kernel has taken, and then sees the connection end.
#[test]
fn lanes_outlive_their_driver() {
    within(LONG, || {
        for time in [0, 10] {
            for first in 0..2 {
                let Some(driver) = driver("lanes::lanes_outlive_their_driver") else { return };
                let (socket, lane, far, expected) = stalled(&driver);
                turn_for(&driver, Duration::from_millis(time));
                let kept = Some(lane).filter(|_| first == 0);
                drop(driver);
                let reader = read_all(far);
                if let Some(lane) = kept {
                    let mut region = Region::anonymous(4096).unwrap();
                    let refused = lane.push(region.take(9).unwrap()).unwrap_err();
                    assert!(matches!(refused.error, Error::DriverGone), "{refused}");
                    let mut seed = 0;
                    while let Some(finished) = lane.take() {
                        assert!(finished.buffer[..] == pattern(seed, 500_000));
                        seed += 1;
                    }
                    let mut returned = std::pin::pin!(lane.returned());
                    let mut context = Context::from_waker(Waker::noop());
                    let polled = returned.as_mut().poll(&mut context);
                    assert!(matches!(polled, Poll::Ready(Err(Error::DriverGone))));
                    if time == 0 {
                        assert_eq!(seed, 6, "the kernel had none of them");
                    }
                }
                drop(socket);
                let got = reader.join().unwrap();
                assert!(got[..] == expected[..got.len()]);
            }
        }
    });
}

/// The driver's end turns, since a read is under way: by then the lane has let go of its socket.
#[test]
fn a_dropped_lane_with_waiting_buffers_ends_with_its_driver() {
    within(LONG, || {
        for stream in [false, true] {
            let test = "lanes::a_dropped_lane_with_waiting_buffers_ends_with_its_driver";
            let Some(driver) = driver(test) else { return };
            let mut region = Region::anonymous(4096).unwrap();
            let (datagrams, connection) = (udp(), tcp("127.0.0.1"));
            let socket = match stream {
                true => driver.socket(connection.0),
                false => driver.socket(datagrams.0),
            };
            let socket = socket.unwrap();
            let lane = socket.lane(&region, 3).unwrap();
            let (pipe, _kept) = std::io::pipe().unwrap();
            let pipe = driver.file(std::os::fd::OwnedFd::from(pipe)).unwrap();
            let _reading = pipe.read(Buffer::from(vec![0; 10])).unwrap();
            driver.turn(Wait::No).unwrap();
            push(&lane, filled(&mut region, 0, 195));
            drop(lane);
            drop(driver);
        }
    });
}

#[test]
fn futures_wait_for_room_and_for_what_comes_back() {
    within(LONG, || {
        let test = "lanes::futures_wait_for_room_and_for_what_comes_back";
        let Some(driver) = driver(test) else { return };
        let (near, far) = tcp("127.0.0.1");
        let reader = read_all(far);
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(8 << 20).unwrap();
        let lane = socket.lane(&region, 3).unwrap();
        let pushing = async {
            for seed in 0..100 {
                lane.room().await.unwrap();
                push(&lane, filled(&mut region, seed, 50_000));
            }
        };
        let taking = async {
            for seed in 0..100 {
                let finished = lane.returned().await.unwrap();
                assert_eq!(finished.sent.unwrap(), 50_000);
                assert!(finished.buffer[..] == pattern(seed, 50_000));
            }
        };
        driver.block_on(futures_lite::future::zip(pushing, taking)).unwrap();
        drop((lane, socket));
        let expected: Vec<u8> = (0..100).flat_map(|seed| pattern(seed, 50_000)).collect();
        assert!(reader.join().unwrap() == expected);
    });
}

/// Notifications that come late, or for an earlier use of a place, are told apart.
#[test]
fn lanes_come_and_go_under_one_driver() {
    within(LONG, || {
        let Some(driver) = driver("lanes::lanes_come_and_go_under_one_driver") else { return };
        let (near, far) = tcp("127.0.0.1");
        let reader = read_all(far);
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(8 << 20).unwrap();
        let mut expected = Vec::new();
        for seed in 0..50 {
            let lane = loop {
                match socket.lane(&region, 1 + seed % 4) {
                    Ok(lane) => break lane,
                    Err(Error::Invalid(_)) => assert!(driver.turn(Wait::Event).is_ok()),
                    Err(error) => panic!("{error}"),
                }
            };
            push(&lane, filled(&mut region, seed, 3000));
            expected.extend(pattern(seed, 3000));
            if seed % 3 == 0 {
                take_all(&driver, &lane);
            }
        }
        settle(&driver);
        drop(socket);
        assert!(reader.join().unwrap() == expected);
    });
}
