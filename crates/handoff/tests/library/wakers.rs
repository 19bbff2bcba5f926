//! Wakers of any kind, and from any thread: awaited operations go on, and a waker may use the driver.

use std::cell::RefCell;
use std::future::{Future, IntoFuture, poll_fn};
use std::io::Write;
use std::net::UdpSocket;
use std::panic;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Executor, Region, Wait};

use crate::traffic::{
    self, attached, tcp, telling, udp_pair, with_each_driver, with_each_engine, within,
};

const LONG: Duration = Duration::from_secs(30);

thread_local! {
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
}

/// Uses the driver whenever it is woken or dropped.
struct Meddler {
    woken: AtomicUsize,
}

impl Meddler {
    fn meddle() {
        DRIVER.with_borrow(|driver| {
            let Some(driver) = driver else { return };
            driver.in_flight();
            drop(driver.group::<Buffer>());
            let far = UdpSocket::bind("127.0.0.1:0").unwrap();
            let socket = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
            let message = socket.message(Buffer::from(vec![1])).to(far.local_addr().unwrap());
            drop(message.send().unwrap());
        });
    }
}

impl Wake for Meddler {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, SeqCst);
        Self::meddle();
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        Self::meddle();
    }
}

/// Polls once with a waker that goes away, and then with another until the end.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let meddler = || Arc::new(Meddler { woken: AtomicUsize::new(0) });
    let first = Waker::from(meddler());
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&first)) {
        return value;
    }
    drop(first);
    let meddler = meddler();
    let waker = Waker::from(Arc::clone(&meddler));
    loop {
        let before = meddler.woken.load(SeqCst);
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        while meddler.woken.load(SeqCst) == before {
            let driver = DRIVER.with_borrow(|driver| driver.clone().unwrap());
            driver.turn(Wait::Event).unwrap();
        }
    }
}

#[test]
fn a_waker_may_use_the_driver() {
    with_each_engine(LONG, |driver, engine| {
        DRIVER.set(Some(driver.clone()));
        let (near, far) = tcp("127.0.0.1");
        let drain = thread::spawn(move || std::io::copy(&mut &far, &mut std::io::sink()));
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(32 << 20).unwrap();
        let mut take = || region.take(8 << 20).unwrap();
        run(socket.send(take()).unwrap().into_future()).unwrap().sent.unwrap();
        let mut group = driver.group();
        drop(socket.message(take()).send_in(&mut group).unwrap());
        assert_eq!(run(group.flush()).unwrap().buffer.len(), 1);

        let (near, mut far) = tcp("127.0.0.1");
        let receiving = driver.socket(near).unwrap();
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let mut receiver = receiving.receive(&pool).unwrap();
        driver.turn(Wait::No).unwrap();
        let (span, waits) = telling(receiver.next_span());
        let writer = thread::spawn(move || {
            waits.recv().unwrap();
            far.write_all(b"handoff").unwrap();
        });
        assert_eq!(&run(span).unwrap().unwrap()[..], b"handoff");
        writer.join().unwrap();

        if driver.ring_unavailable().is_none() {
            let (read, write) = std::io::pipe().unwrap();
            let file = driver.file(read).unwrap();
            let read = file.read(Buffer::from(vec![0; 9])).unwrap();
            driver.turn(Wait::No).unwrap();
            let (read, waits) = telling(read);
            let writer = thread::spawn(move || {
                waits.recv().unwrap();
                (&write).write_all(b"handoff").unwrap();
            });
            assert_eq!(run(read).unwrap().result.unwrap(), 7);
            writer.join().unwrap();
        }
        drop((socket, receiver, receiving));
        drain.join().unwrap().unwrap();
        DRIVER.set(None);
    });
}

/// An event that another thread completes.
#[derive(Default)]
struct Event {
    over: AtomicBool,
    asked: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

impl Event {
    fn complete(&self) {
        self.over.store(true, SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }

    /// Waits until it has been asked more often than this; how often.
    fn until_asked(&self, times: usize) -> usize {
        loop {
            let asked = self.asked.load(SeqCst);
            if asked > times {
                return asked;
            }
            thread::yield_now();
        }
    }

    fn wait(&self) -> impl Future<Output = ()> {
        poll_fn(|context| {
            *self.waker.lock().unwrap() = Some(context.waker().clone());
            self.asked.fetch_add(1, SeqCst);
            if self.over.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
    }
}

#[test]
fn another_thread_wakes_block_on() {
    with_each_driver(LONG, |driver| {
        for round in 0..200 {
            let event = Arc::new(Event::default());
            let completer = thread::spawn({
                let event = Arc::clone(&event);
                move || {
                    // At once, while it is about to wait, and while it waits.
                    thread::sleep(Duration::from_micros(round % 4 * 50));
                    event.complete();
                }
            });
            driver.block_on(event.wait()).unwrap();
            completer.join().unwrap();
        }
        let events: Vec<_> = (0..50).map(|_| Arc::new(Event::default())).collect();
        let completer = thread::spawn({
            let events = events.clone();
            move || {
                for event in events {
                    event.complete();
                    thread::yield_now();
                }
            }
        });
        let executor = Executor::new(&driver);
        let tasks: Vec<_> = events
            .into_iter()
            .map(|event| executor.spawn(async move { event.wait().await }))
            .collect();
        executor
            .run(async {
                for task in tasks {
                    task.await;
                }
            })
            .unwrap();
        completer.join().unwrap();
    });
}

#[test]
fn a_wake_up_that_comes_during_an_inner_block_on_is_not_lost() {
    with_each_driver(LONG, |driver| {
        let (outer, inner) = (Arc::new(Event::default()), Arc::new(Event::default()));
        let completer = thread::spawn({
            let (outer, inner) = (Arc::clone(&outer), Arc::clone(&inner));
            move || {
                let asked = inner.until_asked(0);
                outer.complete();
                // The inner one has heard of it.
                inner.until_asked(asked);
                inner.complete();
            }
        });
        let mut first = true;
        let mut waiting = pin!(outer.wait());
        let both = poll_fn(|context| {
            let over = waiting.as_mut().poll(context);
            if std::mem::take(&mut first) {
                driver.block_on(inner.wait()).unwrap();
            }
            over
        });
        driver.block_on(both).unwrap();
        completer.join().unwrap();
    });
}

/// Does as told when it is first woken, and counts its wakes.
struct Acting<F> {
    act: Mutex<Option<F>>,
    woken: AtomicUsize,
}

impl<F: FnOnce() + Send + 'static> Acting<F> {
    fn new(act: F) -> (Arc<Self>, Waker) {
        let acting = Arc::new(Self { act: Mutex::new(Some(act)), woken: AtomicUsize::new(0) });
        (Arc::clone(&acting), Waker::from(acting))
    }
}

impl<F: FnOnce() + Send + 'static> Wake for Acting<F> {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, SeqCst);
        let act = self.act.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
    }
}

/// The next span, which is there.
fn there(receiver: &mut handoff::Receiver) -> handoff::Span {
    receiver.try_next_span().expect("something came").expect("the stream goes on").unwrap()
}

#[test]
fn spans_keep_their_order_where_a_waker_turns_the_driver() {
    with_each_driver(LONG, |driver| {
        for turned_first in [true, false] {
            DRIVER.set(Some(driver.clone()));
            let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
            let (turning, mut first_far) = tcp("127.0.0.1");
            let (ordered, mut second_far) = tcp("127.0.0.1");
            let turning = driver.socket(turning).unwrap();
            let mut first = turning.receive(&pool).unwrap();
            let ordered = driver.socket(ordered).unwrap();
            let mut second = ordered.receive(&pool).unwrap();
            driver.turn(Wait::No).unwrap();
            let mut later = second_far.try_clone().unwrap();
            let (_, waker) = Acting::new(move || {
                later.write_all(b"second").unwrap();
                let driver = DRIVER.with_borrow(|driver| driver.clone().unwrap());
                driver.turn(Wait::AtMost(Duration::from_millis(100))).unwrap();
            });
            let mut next = first.next_span();
            let polled = pin!(&mut next).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            if turned_first {
                first_far.write_all(b"go").unwrap();
                second_far.write_all(b"first-").unwrap();
            } else {
                second_far.write_all(b"first-").unwrap();
                first_far.write_all(b"go").unwrap();
            }
            let mut got = Vec::new();
            while got.len() < b"first-second".len() {
                driver.turn(Wait::Event).unwrap();
                while let Some(Some(span)) = second.try_next_span() {
                    got.extend_from_slice(&span.unwrap());
                }
            }
            assert_eq!(String::from_utf8_lossy(&got), "first-second");
            drop(there(&mut first));
            DRIVER.set(None);
        }
    });
}

#[test]
fn a_waker_that_panics_loses_nothing_of_others() {
    with_each_driver(LONG, |driver| {
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let sockets: Vec<_> = (0..4)
            .map(|_| {
                let (near, far) = tcp("127.0.0.1");
                (driver.socket(near).unwrap(), far)
            })
            .collect();
        let mut receivers: Vec<_> =
            sockets.iter().map(|(socket, _)| socket.receive(&pool).unwrap()).collect();
        driver.turn(Wait::No).unwrap();
        let (panics, waker) = Acting::new(|| panic!("a waker panics, as the test wants it"));
        let (others, other) = Acting::new(|| ());
        for (place, receiver) in receivers.iter_mut().enumerate() {
            let waker = if place == 1 { &waker } else { &other };
            let mut next = receiver.next_span();
            assert!(pin!(&mut next).poll(&mut Context::from_waker(waker)).is_pending());
        }
        for (_, far) in &sockets {
            (&*far).write_all(b"handoff").unwrap();
        }
        while panics.woken.load(SeqCst) == 0 || others.woken.load(SeqCst) < 3 {
            let turn = || driver.turn(Wait::Event).map(|_| ());
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(turn));
        }
        for receiver in &mut receivers {
            assert_eq!(&there(receiver)[..], b"handoff");
        }
    });
}

#[test]
fn a_waker_that_sends_on_an_auto_socket_loses_no_return() {
    with_each_driver(LONG, |driver| {
        DRIVER.set(Some(driver.clone()));
        let (near, _far) = udp_pair();
        let socket = driver.socket(near).unwrap();
        let mut group = driver.group();
        let mut sent: Vec<_> = (0..20)
            .map(|seed| {
                let buffer = Buffer::from(vec![seed; 20_000]);
                Box::pin(socket.message(buffer).send_in(&mut group).unwrap())
            })
            .collect();
        // Each of them sends, and times its send, which turns the driver.
        let mut over = [false; 20];
        for (sent, over) in sent.iter_mut().zip(&mut over) {
            let meddler = Waker::from(Arc::new(Meddler { woken: AtomicUsize::new(0) }));
            *over = sent.as_mut().poll(&mut Context::from_waker(&meddler)).is_ready();
        }
        let mut group = Box::pin(group.flush());
        while group.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            driver.turn(Wait::Event).unwrap();
        }
        for (sent, over) in sent.iter_mut().zip(over) {
            let mut context = Context::from_waker(Waker::noop());
            assert!(over || sent.as_mut().poll(&mut context).is_ready());
        }
        DRIVER.set(None);
    });
}

const ON_PURPOSE: &str = "a waker panics, as the test wants it";

/// Runs something in which a waker panics, or none does.
fn caught<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().expect("only wakers panic");
        (*text).to_owned()
    })
}

#[test]
fn a_waker_that_panics_beside_a_lane_loses_no_buffer_and_no_other_waker() {
    within(LONG, || {
        let driver = Driver::new().unwrap();
        if let Some(reason) = driver.ring_unavailable() {
            return traffic::skip("a_waker_that_panics_beside_a_lane", reason);
        }
        let (near, far) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        near.connect(far.local_addr().unwrap()).unwrap();
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(1 << 20).unwrap();
        let lane = socket.lane(&region, 2).unwrap();
        let mut push = || {
            for _ in 0..2 {
                lane.push(region.take(9000).unwrap()).map_err(|refused| refused.error).unwrap();
            }
        };
        let waiting = || {
            let acts: [fn(); 2] = [|| panic::panic_any(ON_PURPOSE), || ()];
            acts.map(Acting::new)
        };

        // Taking a buffer makes room.
        push();
        let wakers = waiting();
        for (_, waker) in &wakers {
            assert!(pin!(lane.room()).poll(&mut Context::from_waker(waker)).is_pending());
        }
        let (mut back, mut panics) = (0, 0);
        while !lane.is_empty() {
            // The first may have come back alone, and made room.
            panics += usize::from(caught(|| driver.turn(Wait::Event)).is_err());
            while caught(|| lane.take()).expect("no waker is called meanwhile").is_some() {
                back += 1;
            }
        }
        panics += usize::from(caught(|| driver.turn(Wait::No)).is_err());
        assert_eq!((back, panics), (2, 1));
        assert!(wakers.iter().all(|(acting, _)| acting.woken.load(SeqCst) == 1));

        // Nothing was submitted, so all is back at once.
        push();
        let wakers = waiting();
        for (_, waker) in &wakers {
            assert!(pin!(lane.returned()).poll(&mut Context::from_waker(waker)).is_pending());
        }
        caught(|| lane.cancel()).unwrap_err();
        assert!(wakers.iter().all(|(acting, _)| acting.woken.load(SeqCst) == 1));
        assert_eq!(std::iter::from_fn(|| lane.take()).count(), 2);
    });
}

#[test]
fn a_waker_that_panics_in_a_cancellation_leaves_nobody_waiting() {
    with_each_engine(LONG, |driver, engine| {
        let (near, _far) = traffic::narrow_tcp();
        let socket = attached(&driver, near, engine);
        let _stalled = socket.send(Buffer::from(vec![1; 4 << 20])).unwrap();
        let (mut sent, mut loan) = socket.send(Buffer::from(vec![2; 9])).unwrap().split();
        let (_, panics) = Acting::new(|| panic::panic_any(ON_PURPOSE));
        let (other, waker) = Acting::new(|| ());
        assert!(pin!(&mut sent).poll(&mut Context::from_waker(&panics)).is_pending());
        assert!(pin!(&mut loan).poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(caught(|| sent.cancel()).is_err(), "{engine}");
        assert_eq!(other.woken.load(SeqCst), 1, "{engine}");
        assert_eq!(&loan.try_take().expect("it is back").buffer[..], [2; 9]);
    });
}

/// A send that ends midway ends all that wait behind it.
#[test]
fn a_waker_that_panics_in_a_cancellation_stops_no_stream() {
    with_each_engine(LONG, |driver, engine| {
        let (near, _far) = traffic::narrow_tcp();
        let socket = attached(&driver, near, engine);
        let [(stalled, _), (mut second, _), (third, _)] =
            [4 << 20, 9, 9].map(|len| socket.send(Buffer::from(vec![1; len])).unwrap().split());
        for _ in 0..5 {
            driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        let (panics, waker) = Acting::new(|| panic::panic_any(ON_PURPOSE));
        assert!(pin!(&mut second).poll(&mut Context::from_waker(&waker)).is_pending());
        let _ = caught(|| stalled.cancel());
        while panics.woken.load(SeqCst) == 0 {
            let _ = caught(|| driver.turn(Wait::Event).unwrap());
        }
        for sent in [stalled, second, third] {
            assert!(driver.block_on(sent).unwrap().is_err(), "{engine}");
        }
    });
}

/// An `auto` socket turns the driver to measure its sends' cost.
#[test]
fn a_send_is_accepted_whatever_other_wakers_do() {
    with_each_driver(LONG, |driver| {
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let (near, mut far) = tcp("127.0.0.1");
        let receiving = driver.socket(near).unwrap();
        let mut receiver = receiving.receive(&pool).unwrap();
        driver.turn(Wait::No).unwrap();
        let (panics, waker) = Acting::new(|| panic::panic_any(ON_PURPOSE));
        let mut next = receiver.next_span();
        assert!(pin!(&mut next).poll(&mut Context::from_waker(&waker)).is_pending());
        far.write_all(b"handoff").unwrap();
        let (near, _peer) = udp_pair();
        let socket = driver.socket(near).unwrap();
        for _ in 0..20 {
            let sending = caught(|| socket.send(Buffer::from(vec![3; 20_000])).unwrap());
            drop(sending.expect("a send calls no waker of others"));
        }
        while panics.woken.load(SeqCst) == 0 {
            let _ = caught(|| driver.turn(Wait::Event).unwrap());
        }
        assert_eq!(&there(&mut receiver)[..], b"handoff");
        while driver.in_flight() > 1 {
            driver.turn(Wait::Event).unwrap();
        }
    });
}

#[test]
fn a_waker_that_panics_does_not_keep_a_driver_from_its_end() {
    with_each_driver(LONG, |driver| {
        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let (one, _far) = tcp("127.0.0.1");
        let (two, _far) = tcp("127.0.0.1");
        let sockets = [one, two].map(|near| driver.socket(near).unwrap());
        let mut receivers = [0, 1].map(|place| sockets[place].receive(&pool).unwrap());
        driver.turn(Wait::No).unwrap();
        let acting = [0, 1].map(|_| Acting::new(|| panic::panic_any(ON_PURPOSE)));
        for (receiver, (_, waker)) in receivers.iter_mut().zip(&acting) {
            let mut next = receiver.next_span();
            assert!(pin!(&mut next).poll(&mut Context::from_waker(waker)).is_pending());
        }
        assert!(caught(|| drop((driver, pool))).is_err());
        assert_eq!(acting.map(|(acting, _)| acting.woken.load(SeqCst)), [1, 1]);
        for receiver in &mut receivers {
            let told = receiver.try_next_span().expect("it is over");
            assert!(matches!(told, Some(Err(handoff::Error::DriverGone))));
        }
        caught(|| drop((receivers, sockets))).expect("nobody waits any more");
    });
}

/// Wakers of dropped handles, with a driver that goes at once.
#[test]
fn nobody_is_woken_when_the_last_handle_goes() {
    with_each_engine(LONG, |driver, engine| {
        let (near, _far) = traffic::narrow_tcp();
        let socket = attached(&driver, near, engine);
        let (acting, waker) = Acting::new(|| panic::panic_any(ON_PURPOSE));
        for _ in 0..3 {
            let mut sending = socket.send(Buffer::from(vec![1; 1 << 20])).unwrap().into_future();
            assert!(pin!(&mut sending).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        driver.turn(Wait::No).unwrap();
        caught(|| drop((socket, driver))).expect("nobody waits any more");
        assert_eq!(acting.woken.load(SeqCst), 0, "{engine}");
    });
}
