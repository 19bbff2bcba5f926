//! Any mix of sends on a stream: what arrives is what the accepted sends report, in order.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, Readiness, Region, RingUse, Sent, Socket, Wait};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendFlags, send};
use socket2::SockRef;

use crate::traffic::{self, attached, narrow_tcp, pattern};

#[derive(Clone, Debug)]
enum Step {
    Send {
        len: usize,
        header: usize,
        pieces: usize,
        heap: bool,
    },
    Engine(usize),
    /// Cancels one of the sends that are not over.
    Cancel(prop::sample::Index),
    Turn(u64),
    /// Awaits the oldest send.
    Await,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![Just(0usize), 1usize..200, 1000usize..20_000, 50_000usize..200_000];
    let send = (len, 0usize..=64, 0usize..5, any::<bool>())
        .prop_map(|(len, header, pieces, heap)| Step::Send { len, header, pieces, heap });
    prop_oneof![
        12 => send,
        3 => (0usize..4).prop_map(Step::Engine),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        3 => (0u64..3).prop_map(Step::Turn),
        2 => Just(Step::Await),
    ]
}

/// A connection with little room, and what arrives at its slow end.
fn slow(delay: u64) -> (TcpStream, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SockRef::from(&near).set_send_buffer_size(32 << 10).unwrap();
    let mut far = listener.accept().unwrap().0;
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

/// A send under way, or its result.
type Accepted = Result<Sent, Result<usize, Error>>;

struct Stream {
    driver: Driver,
    socket: Socket,
    region: Region,
    /// The payload of each send, and its handle until its result is known.
    sends: Vec<(Vec<u8>, Accepted)>,
    seed: usize,
}

impl Stream {
    fn send(&mut self, len: usize, header: usize, pieces: usize, heap: bool) {
        self.seed += 1;
        let bytes = pattern(self.seed, len);
        let mut piece = |bytes: &[u8]| match self.region.take(bytes.len()).filter(|_| !heap) {
            Some(mut buffer) => {
                buffer.copy_from_slice(bytes);
                buffer
            }
            None => Buffer::from(bytes.to_vec()),
        };
        let header = pattern(self.seed + 7, header);
        let sending = if pieces == 0 {
            let message = self.socket.message(piece(&bytes)).header(&header);
            message.send().map(drop_loan).map_err(|refused| refused.error)
        } else {
            let cuts: Vec<_> = (0..=pieces).map(|cut| len * cut / pieces).collect();
            let buffers: Vec<_> =
                cuts.windows(2).map(|cut| piece(&bytes[cut[0]..cut[1]])).collect();
            let message = self.socket.message(buffers).header(&header);
            message.send().map(drop_loan).map_err(|refused| refused.error)
        };
        match sending {
            Ok(sent) => self.sends.push(([header, bytes].concat(), Ok(sent))),
            Err(error) => assert!(matches!(error, Error::StreamBroken { .. }), "{error}"),
        }
    }

    fn finish(&mut self, place: usize) {
        let result = &mut self.sends[place].1;
        if result.is_ok() {
            let sent = std::mem::replace(result, Err(Ok(0))).unwrap();
            *result = Err(self.driver.block_on(sent).unwrap());
        }
    }

    fn act(&mut self, step: Step, engines: &[Engine]) {
        match step {
            Step::Send { len, header, pieces, heap } => self.send(len, header, pieces, heap),
            Step::Engine(place) => {
                self.socket.set_engine(engines[place % engines.len()]).unwrap();
            }
            Step::Cancel(index) => {
                let open: Vec<_> =
                    self.sends.iter().filter_map(|(_, sent)| sent.as_ref().ok()).collect();
                if !open.is_empty() {
                    index.get(&open).cancel();
                }
            }
            Step::Turn(time) => {
                self.driver.turn(Wait::AtMost(Duration::from_millis(time))).unwrap();
            }
            Step::Await => {
                if let Some(place) = self.sends.iter().position(|(_, sent)| sent.is_ok()) {
                    self.finish(place);
                }
            }
        }
    }

    /// Waits for all, and returns what the peer should get.
    fn finish_all(&mut self) -> Vec<u8> {
        let mut expected = Vec::new();
        let mut broken = false;
        for place in 0..self.sends.len() {
            self.finish(place);
            let (bytes, result) = &self.sends[place];
            let taken = match result.as_ref().unwrap_err() {
                Ok(taken) => {
                    assert_eq!(*taken, bytes.len());
                    *taken
                }
                Err(Error::Canceled { done }) => *done,
                Err(Error::StreamBroken { .. }) if broken => 0,
                Err(error) => panic!("{error}"),
            };
            assert!(!broken || taken == 0, "bytes after a send that stopped midway");
            broken |= taken > 0 && taken < bytes.len();
            expected.extend_from_slice(&bytes[..taken]);
        }
        expected
    }
}

fn drop_loan<B: handoff::Payload>(sending: handoff::Sending<B>) -> Sent {
    sending.split().0
}

fn check(ring: RingUse, entries: u32, registered: bool, delay: u64, steps: Vec<Step>) {
    let driver = Driver::builder().ring(ring).entries(entries).build().unwrap();
    let (near, reader) = slow(delay);
    let region = Region::anonymous(4 << 20).unwrap();
    if registered && driver.ring_unavailable().is_none() {
        driver.register(&region).unwrap();
    }
    let socket = driver.socket(near).unwrap();
    let engines = traffic::engines(&driver);
    let mut stream = Stream { driver, socket, region, sends: Vec::new(), seed: 0 };
    for step in steps {
        stream.act(step, &engines);
    }
    let expected = stream.finish_all();
    let driver = stream.driver.clone();
    drop(stream);
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(Duration::from_millis(100))).unwrap();
    }
    let got = reader.join().unwrap();
    traffic::assert_same(&got, &expected);
}

/// Fewer where processors are emulated: the kernel differs there, not the mix.
fn cases() -> u32 {
    if std::env::var_os("HANDOFF_EMULATED").is_some() { 30 } else { 100 }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_is_the_concatenation_of_its_sends(
        ring in any::<bool>(),
        entries in prop_oneof![Just(2u32), Just(8), Just(256)],
        registered in any::<bool>(),
        delay in 0u64..200,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let ring = if ring { RingUse::Prefer } else { RingUse::Avoid };
        check(ring, entries, registered, delay, steps);
    }
}

/// More pieces than one request names: later sends wait for all of them.
#[test]
fn a_send_of_several_requests_stays_whole() {
    traffic::within(Duration::from_secs(60), || {
        for driver in traffic::drivers() {
            for engine in traffic::engines(&driver) {
                let (near, mut far) = traffic::tcp("127.0.0.1");
                let socket = attached(&driver, near, engine);
                let many = pattern(1, 3000);
                let pieces: Vec<Buffer> =
                    many.iter().map(|byte| Buffer::from(vec![*byte])).collect();
                let last = pattern(2, 5000);
                let first = socket.send(pieces).unwrap();
                let second = socket.send(Buffer::from(last.clone())).unwrap();
                let sent = driver
                    .block_on(async {
                        (first.await.unwrap().sent.unwrap(), second.await.unwrap().sent.unwrap())
                    })
                    .unwrap();
                assert_eq!(sent, (3000, 5000), "{engine}");
                let mut arrived = vec![0; 8000];
                far.read_exact(&mut arrived).unwrap();
                assert!(arrived == [many, last].concat(), "{engine}: out of order");
            }
        }
    });
}

/// How a send that waits for room ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ends {
    Reset,
    Canceled,
}

/// More than the buffers of both sides hold, so it never goes whole: what a full socket has sent may still arrive, and
/// make room.
const LONGER_THAN_ROOM: usize = 1 << 20;

/// Waits for sockets, and what makes the sockets ready.
fn waits(driver: &Driver, count: usize) -> (Vec<Readiness>, Vec<UnixStream>) {
    let pair = || UnixStream::pair().unwrap();
    let waiting = |near: UnixStream| driver.socket(near).unwrap().readable().unwrap();
    (0..count).map(|_| pair()).map(|(near, far)| (waiting(near), far)).unzip()
}

/// A header and its payload wait for room, and end in a turn in which so many other sockets are ready. A kernel that
/// runs few deferred tasks in a call then tells of the payload in the next turn.
fn end_among_others(driver: &Driver, ends: Ends, others: usize, keeps_loan: bool) {
    let (near, far) = narrow_tcp();
    let full = near.try_clone().unwrap();
    while send(&full, &[0; 1 << 16], SendFlags::DONTWAIT).is_ok() {}
    let socket = attached(driver, near, Engine::UringZc);
    let (waiting, mut ready) = waits(driver, others);
    let payload = Buffer::from(vec![1; LONGER_THAN_ROOM]);
    let sending = socket.message(payload).header(b"header").send().unwrap();
    driver.turn(Wait::No).unwrap();
    let (sent, on_loan) = sending.split();
    let on_loan = keeps_loan.then_some(on_loan);
    let mut make_ready = || ready.iter_mut().for_each(|far| far.write_all(b"x").unwrap());
    let reset = |far: TcpStream| SockRef::from(&far).set_linger(Some(Duration::ZERO)).unwrap();
    let far = match ends {
        Ends::Reset => {
            reset(far);
            // The header's request is the first to hear of it.
            poll(&mut [PollFd::new(&full, PollFlags::empty())], None).unwrap();
            make_ready();
            None
        }
        Ends::Canceled => {
            make_ready();
            sent.cancel();
            Some(far)
        }
    };
    let mut taken = Err(sent);
    let error = loop {
        driver.turn(Wait::No).unwrap();
        taken = match taken.or_else(Sent::try_take) {
            Ok(result) => break result.unwrap_err(),
            again => again,
        };
    };
    match ends {
        // A request that had sent a part ends with that, though it was told of the reset, and the next hears of a pipe.
        Ends::Reset => {
            assert!(matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE)), "{error}")
        }
        Ends::Canceled => assert!(matches!(error, Error::Canceled { .. }), "{error}"),
    }
    for _ in 0..4 {
        driver.turn(Wait::No).unwrap();
    }
    // What the kernel has taken comes back with the connection's end.
    far.into_iter().for_each(reset);
    if let Some(on_loan) = on_loan {
        assert_eq!(driver.block_on(on_loan).unwrap().unwrap().buffer.len(), LONGER_THAN_ROOM);
    }
    drop((waiting, socket));
    while driver.in_flight() > 0 {
        driver.turn(Wait::AtMost(Duration::from_millis(100))).unwrap();
    }
}

#[test]
fn a_send_whose_header_ends_before_its_payload_ends_once() {
    const NAME: &str = "a_send_whose_header_ends_before_its_payload_ends_once";
    traffic::within(Duration::from_secs(60), || {
        let driver = Driver::new().unwrap();
        if let Some(reason) = driver.ring_unavailable() {
            return traffic::skip(NAME, reason);
        }
        for ends in [Ends::Reset, Ends::Canceled] {
            for others in (0..100).step_by(10) {
                for keeps_loan in [false, true] {
                    end_among_others(&driver, ends, others, keeps_loan);
                }
            }
        }
    });
}
