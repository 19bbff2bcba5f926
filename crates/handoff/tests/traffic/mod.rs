//! What tests send, over what, and how long they wait.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::Read as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Region, RingUse, Socket};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use socket2::SockRef;

/// Bytes that show their position.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    /// After so many bytes the pattern repeats.
    const PERIOD: usize = 251 << 8;
    let byte = |place: usize| ((place * 31 + seed * 7 + (place >> 8)) % 251) as u8;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend((0..len.min(PERIOD)).map(byte));
    while bytes.len() < len {
        bytes.extend_from_within(..PERIOD.min(len - bytes.len()));
    }
    bytes
}

/// Reports where two streams differ, instead of showing both.
#[track_caller]
pub(crate) fn assert_same(got: &[u8], expected: &[u8]) {
    let place = got.iter().zip(expected).position(|(got, expected)| got != expected);
    let (come, sent) = (got.len(), expected.len());
    assert!(got == expected, "{come} bytes instead of {sent}, different from {place:?}");
}

/// Set where tests run with a ring whose queue a thread of the kernel polls.
pub(crate) const POLLED: &str = "HANDOFF_TEST_SQ_POLL";

/// A driver with a ring where there is one.
pub(crate) fn with_ring() -> Driver {
    let builder = Driver::builder();
    match std::env::var_os(POLLED) {
        None => builder.build().unwrap(),
        Some(_) => {
            builder.sq_poll(Duration::from_millis(1)).ring(RingUse::Require).build().unwrap()
        }
    }
}

/// The same, and one without.
pub(crate) fn drivers() -> Vec<Driver> {
    vec![with_ring(), without_ring()]
}

pub(crate) fn without_ring() -> Driver {
    Driver::builder().ring(RingUse::Avoid).build().unwrap()
}

/// The engines that work on a driver.
pub(crate) fn engines(driver: &Driver) -> Vec<Engine> {
    let mut engines = vec![Engine::Auto, Engine::MsgZerocopy, Engine::Copy];
    if driver.ring_unavailable().is_none() {
        engines.push(Engine::UringZc);
    }
    engines
}

/// Every engine with a driver of its own that has it.
pub(crate) fn engines_apart() -> Vec<(Driver, Engine)> {
    let mut apart = Vec::new();
    for driver in [with_ring, without_ring] {
        apart.extend(engines(&driver()).into_iter().map(|engine| (driver(), engine)));
    }
    apart
}

/// A connection over loopback: the end to attach, and its peer.
pub(crate) fn tcp(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Keeps this thread, and those that it starts, on the processor where it is: datagrams that it sends by one socket over
/// loopback come in their order.
pub(crate) fn stay_on_one_processor() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu());
    sched_setaffinity(None, &one).unwrap();
}

/// Datagrams over loopback: the end that is connected, and its peer.
pub(crate) fn udp_pair() -> (UdpSocket, UdpSocket) {
    let [near, far] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    near.connect(far.local_addr().unwrap()).unwrap();
    (near, far)
}

/// Datagrams over loopback: the end attached for an engine, and its peer.
pub(crate) fn udp(driver: &Driver, engine: Engine) -> (Socket, UdpSocket) {
    let (near, far) = udp_pair();
    (attached(driver, near, engine), far)
}

/// A socket of the driver, for an engine.
pub(crate) fn attached(driver: &Driver, socket: impl Into<OwnedFd>, engine: Engine) -> Socket {
    let socket = driver.socket(socket).unwrap();
    socket.set_engine(engine).unwrap();
    socket
}

/// Waits until so many bytes can be received.
pub(crate) fn await_bytes(socket: &Socket, bytes: usize) {
    while rustix::io::ioctl_fionread(socket).unwrap() < bytes as u64 {
        thread::yield_now();
    }
}

/// The same future; tells once when it has had to wait.
pub(crate) fn telling<T>(
    future: impl Future<Output = T>,
) -> (impl Future<Output = T>, mpsc::Receiver<()>) {
    let (tell, waits) = mpsc::sync_channel(1);
    let mut future = Box::pin(future);
    let future = poll_fn(move |context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            // Nobody listens after the first time.
            let _ = tell.try_send(());
        }
        polled
    });
    (future, waits)
}

/// Reads a stream to its end, in a thread of its own.
pub(crate) fn read_all(mut stream: TcpStream) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
}

/// As [`tcp`], with so little room on the way that 512 KiB block until the peer reads.
pub(crate) fn narrow_tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    SockRef::from(&near).set_send_buffer_size(64 << 10).unwrap();
    (near, listener.accept().unwrap().0)
}

pub(crate) fn filled(region: &mut Region, seed: usize, len: usize) -> Buffer {
    let mut buffer = region.take(len).unwrap();
    buffer.copy_from_slice(&pattern(seed, len));
    buffer
}

/// As long as `time` on a processor; an emulated one is many times slower.
pub(crate) fn patience(time: Duration) -> Duration {
    if std::env::var_os("HANDOFF_EMULATED").is_some() { time * 9 } else { time }
}

/// How long some process of this machine so far was ready to run while others ran (`PSI`); 0 where the kernel
/// does not report it.
fn machine_was_short(pressure: Option<&File>) -> Duration {
    let mut told = [0; 256];
    let len = pressure.and_then(|file| file.read_at(&mut told, 0).ok()).unwrap_or(0);
    let told = String::from_utf8_lossy(&told[..len]);
    let some = told.lines().find_map(|line| line.strip_prefix("some ")?.split_once("total="));
    Duration::from_micros(some.and_then(|(_, total)| total.parse().ok()).unwrap_or(0))
}

/// Runs a test that must not hang: only time in which the machine had processors for all counts, so a busy
/// machine is no hang.
pub(crate) fn within(time: Duration, test: impl FnOnce() + Send + 'static) {
    const LOOK: Duration = Duration::from_millis(100);
    let time = patience(time);
    // Open from the beginning to the end, since a test may count descriptors.
    let pressure = File::open("/proc/pressure/cpu").ok();
    let machine_was_short = || machine_was_short(pressure.as_ref());
    let (done, over) = mpsc::channel();
    let runner = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    let mut left = time;
    while !left.is_zero() {
        let before = machine_was_short();
        if let Err(mpsc::RecvTimeoutError::Timeout) = over.recv_timeout(LOOK) {
            left = left
                .saturating_sub(LOOK.saturating_sub(machine_was_short().saturating_sub(before)));
            continue;
        }
        if let Err(panic) = runner.join() {
            std::panic::resume_unwind(panic);
        }
        return;
    }
    panic!("still running after {time:?}");
}

/// Runs a test with each of [`drivers`], as [`within`] does.
pub(crate) fn with_each_driver(time: Duration, test: impl FnMut(Driver) + Send + 'static) {
    within(time, || drivers().into_iter().for_each(test));
}

/// The same with each of [`engines_apart`].
pub(crate) fn with_each_engine(
    time: Duration,
    mut test: impl FnMut(Driver, Engine) + Send + 'static,
) {
    within(time, move || {
        engines_apart().into_iter().for_each(|(driver, engine)| test(driver, engine))
    });
}

/// Says that a test cannot run here, and why.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("HANDOFF-SKIP {test}: {reason}");
}

/// Runs the test named `test`, with its modules, alone in a process of its own; returns whether this is
/// that process.
pub(crate) fn alone(test: &str) -> bool {
    const ALONE: &str = "HANDOFF_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, test)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    print!("{said}");
    assert!(
        run.status.success() && said.contains("running 1 test"),
        "{test}, in a process of its own: {}\n{}",
        run.status,
        String::from_utf8_lossy(&run.stderr)
    );
    false
}

/// Counts warnings.
pub(crate) struct Warnings(pub(crate) std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
