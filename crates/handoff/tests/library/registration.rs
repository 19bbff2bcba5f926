//! Registered memory that leaves the ring's table while its sends are accepted and not yet looked at, or by its own end;
//! and registered huge pages.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use handoff::{Driver, Engine, Pinning, Region, Socket, Wait};
use socket2::SockRef;

use crate::traffic::{self, filled, pattern, stay_on_one_processor, tcp, udp_pair, within};

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 8192;

/// A driver with a registered region, unless there is no ring.
fn registered(test: &str, count: usize) -> Option<(Driver, Region)> {
    let driver = Driver::builder().build().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        traffic::skip(test, reason);
        return None;
    }
    let region = Region::anonymous(count * LEN).unwrap();
    driver.register(&region).unwrap();
    Some((driver, region))
}

/// Accepts sends, takes their memory out of the table before the driver turns, and returns whether all
/// arrive as `receive` reads them.
fn leaves_midway(
    driver: &Driver,
    mut region: Region,
    socket: &Socket,
    count: usize,
    receive: impl FnOnce() -> Vec<Vec<u8>> + Send + 'static,
) {
    socket.set_engine(Engine::UringZc).unwrap();
    let far = thread::spawn(receive);
    let sendings: Vec<_> =
        (0..count).map(|seed| socket.send(filled(&mut region, seed, LEN)).unwrap()).collect();
    driver.unregister(&region).unwrap();
    driver
        .block_on(async {
            for (seed, sending) in sendings.into_iter().enumerate() {
                let finished = sending.await.unwrap();
                assert_eq!(finished.sent.unwrap(), LEN);
                assert_eq!(&finished.buffer[..], pattern(seed, LEN));
            }
        })
        .unwrap();
    for (seed, message) in far.join().unwrap().into_iter().enumerate() {
        assert!(message == pattern(seed, LEN), "message {seed} arrived changed");
    }
}

#[test]
fn datagrams_of_memory_that_left_the_table() {
    const COUNT: usize = 8;
    within(LONG, || {
        let test = "datagrams_of_memory_that_left_the_table";
        let Some((driver, region)) = registered(test, COUNT) else { return };
        stay_on_one_processor();
        let (near, far) = udp_pair();
        let socket = driver.socket(near).unwrap();
        leaves_midway(&driver, region, &socket, COUNT, move || {
            let mut message = vec![0; LEN + 1];
            let mut next = || far.recv(&mut message).map(|len| message[..len].to_vec()).unwrap();
            (0..COUNT).map(|_| next()).collect()
        });
    });
}

/// More than one chain of links, so that the later ones are laid out without registration.
#[test]
fn a_stream_of_memory_that_left_the_table() {
    const COUNT: usize = 80;
    within(LONG, || {
        let test = "a_stream_of_memory_that_left_the_table";
        let Some((driver, region)) = registered(test, COUNT) else { return };
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        leaves_midway(&driver, region, &socket, COUNT, move || {
            let mut message = vec![0; LEN];
            let mut next = || far.read_exact(&mut message).map(|()| message.clone()).unwrap();
            (0..COUNT).map(|_| next()).collect()
        });
    });
}

/// How much a stream without a reader takes of the bytes behind the first MiB of a region: at least
/// `least`. All of it arrives.
fn taken_unread(driver: &Driver, mut region: Region, least: usize) -> usize {
    const BEFORE: usize = 1 << 20;
    const SENT: usize = 512 << 10;
    const ROOM: usize = 128 << 10;

    driver.register(&region).unwrap();
    let (near, mut far) = tcp("127.0.0.1");
    SockRef::from(&near).set_send_buffer_size(ROOM).unwrap();
    let watched = OwnedFd::from(near.try_clone().unwrap());
    let socket = driver.socket(near).unwrap();
    socket.set_engine(Engine::UringZc).unwrap();
    let _before = region.take(BEFORE).unwrap();
    // The peer's window takes some, and no more.
    SockRef::from(&far).set_recv_buffer_size(16 << 10).unwrap();
    let sending = socket.send(filled(&mut region, 1, SENT)).unwrap();
    driver.turn(Wait::No).unwrap();
    let unacknowledged = || {
        let mut bytes: libc::c_int = 0;
        // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int.
        let asked = unsafe { libc::ioctl(watched.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        bytes as usize
    };
    // Until no more of it is on its way.
    let (mut taken, mut before) = (unacknowledged(), None);
    while before != Some(taken) {
        before = Some(taken);
        thread::sleep(Duration::from_millis(10));
        taken = unacknowledged();
    }
    assert!(taken >= least, "{taken} bytes, of {least} at least");
    // TCP uses a window below the size of a segment a fifth of a second after it has opened.
    SockRef::from(&far).set_recv_buffer_size(SENT).unwrap();
    let reader = thread::spawn(move || {
        let mut message = vec![0; SENT];
        far.read_exact(&mut message).unwrap();
        message
    });
    assert_eq!(driver.block_on(async { sending.await }).unwrap().unwrap().sent.unwrap(), SENT);
    assert!(reader.join().unwrap() == pattern(1, SENT), "it arrived changed");
    taken
}

/// The kernel charges a send by slot with all of the huge page that lies before its bytes. (Where there
/// are no huge pages, this compares base pages with base pages.)
#[test]
fn a_stream_takes_as_much_of_registered_huge_pages() {
    within(LONG, || {
        let test = "a_stream_takes_as_much_of_registered_huge_pages";
        let Some((driver, _)) = registered(test, 1) else { return };
        let region = Region::huge(2 << 20).unwrap();
        // Too short for a huge page, whatever the system does with long ones.
        let base = Region::anonymous((2 << 20) - (256 << 10)).unwrap();
        let taken = taken_unread(&driver, base, 0);
        taken_unread(&driver, region, taken * 3 / 4);
    });
}

/// If two drivers register a region at the same time, one pins its pages, and the other shares them or pins
/// them again. Both send from it.
#[test]
fn two_drivers_register_a_region_at_a_time() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const ROUNDS: usize = 200;
    within(LONG, || {
        let test = "two_drivers_register_a_region_at_a_time";
        if registered(test, 1).is_none() {
            return;
        }
        // Pinning takes so long that the other one begins meanwhile.
        let mut region = Region::anonymous(4 << 20).unwrap();
        let frozen = filled(&mut region, 5, LEN).freeze();
        let (arrived, first) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let meet = |times: usize| {
            arrived.fetch_add(1, SeqCst);
            while arrived.load(SeqCst) < 2 * times {
                thread::yield_now();
            }
        };
        let take_turns = || {
            let driver = Driver::new().unwrap();
            let (near, far) = udp_pair();
            let socket = driver.socket(near).unwrap();
            socket.set_engine(Engine::UringZc).unwrap();
            let mut message = vec![0; LEN + 1];
            for round in 0..ROUNDS {
                meet(2 * round + 1);
                let pinning = driver.register(&region).unwrap();
                first.fetch_add(usize::from(pinning == Pinning::Own), SeqCst);
                let sent = driver.block_on(async { socket.send(frozen.clone()).unwrap().await });
                assert_eq!(sent.unwrap().unwrap().sent.unwrap(), LEN);
                let len = far.recv(&mut message).unwrap();
                assert!(message[..len] == pattern(5, LEN));
                meet(2 * round + 2);
                driver.unregister(&region).unwrap();
            }
        };
        thread::scope(|scope| {
            let other = scope.spawn(take_turns);
            take_turns();
            other.join().unwrap();
        });
        // The second may begin before the first has ended its round.
        assert!((1..=ROUNDS).contains(&first.into_inner()));
    });
}

/// KiB that this process has pinned.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn memory_that_is_gone_is_not_registered_any_more() {
    const NAME: &str = "registration::memory_that_is_gone_is_not_registered_any_more";
    const ROOM: u32 = 4;
    if !traffic::alone(NAME) {
        return;
    }
    within(LONG, || {
        let driver = Driver::builder().registered_buffers(ROOM).build().unwrap();
        let other = Driver::builder().registered_buffers(ROOM).build().unwrap();
        if let Some(reason) = driver.ring_unavailable() {
            return traffic::skip(NAME, reason);
        }
        let (before, mut counts) = (pinned(), false);
        for round in 0..3 * ROOM as usize {
            let mut region = Region::anonymous(1 << 20).unwrap();
            driver.register(&region).unwrap();
            if round % 2 == 0 {
                other.register(&region).unwrap();
            }
            // Not each kernel counts what somebody pins who may lock any amount; where it stays, the table is full.
            counts |= round == 0 && pinned() > before;
            assert!(!counts || pinned() >= before + 1024, "{} KiB", pinned());
            // A buffer keeps it, and its slot.
            let buffer = filled(&mut region, round, LEN);
            drop(region);
            driver.turn(Wait::No).unwrap();
            let (near, mut far) = tcp("127.0.0.1");
            let socket = driver.socket(near).unwrap();
            socket.set_engine(Engine::UringZc).unwrap();
            let sending = socket.send(buffer).unwrap();
            let mut message = vec![0; LEN];
            let finished = driver.block_on(async { sending.await }).unwrap().unwrap();
            assert_eq!(finished.sent.unwrap(), LEN);
            far.read_exact(&mut message).unwrap();
            assert!(message == pattern(round, LEN), "{round}");
            // The last of it may go on any thread.
            thread::spawn(move || drop(finished.buffer)).join().unwrap();
            driver.turn(Wait::No).unwrap();
            other.turn(Wait::No).unwrap();
            // Linux 6.1 unpins a little later.
            while pinned() > before {
                thread::yield_now();
            }
        }
        // All of the table is free.
        let regions: Vec<_> = (0..ROOM).map(|_| Region::anonymous(LEN).unwrap()).collect();
        regions.iter().for_each(|region| drop(driver.register(region).unwrap()));
    });
}

#[test]
fn a_driver_that_waits_lets_go_of_memory_that_is_gone() {
    const NAME: &str = "registration::a_driver_that_waits_lets_go_of_memory_that_is_gone";
    if !traffic::alone(NAME) {
        return;
    }
    within(LONG, || {
        let Some((driver, region)) = registered(NAME, 1) else { return };
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let (receiving, waits) =
            traffic::telling(socket.receive_into(handoff::Buffer::from(vec![0; 1])).unwrap());
        let other = thread::spawn(move || {
            waits.recv().unwrap();
            drop(region);
            while pinned() > 0 {
                thread::yield_now();
            }
            std::io::Write::write_all(&mut far, &[1]).unwrap();
        });
        assert_eq!(driver.block_on(receiving).unwrap().unwrap().result.unwrap(), 1);
        other.join().unwrap();
    });
}
