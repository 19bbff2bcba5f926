//! Sending, and what files are for, allocates nothing in steady state.

#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use handoff::{
    Buffer, BufferPool, Driver, Engine, FileCall, GroupOnLoan, Lane, Lendable, Payload, Region,
    RwFlags, Socket, Transfer, UnixKind, Wait,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: AtomicU64 = const { AtomicU64::new(0) };
}

// SAFETY: the system's allocator does the work, with the arguments as they come.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.fetch_add(1, Relaxed));
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's duty.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.fetch_add(1, Relaxed));
        // SAFETY: the caller's duty.
        unsafe { System.realloc(start, layout, len) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.with(|count| count.load(Relaxed))
}

fn one_by_one<B: Payload>(driver: &Driver, socket: &Socket, mut buffer: B, count: usize) -> B {
    for _ in 0..count {
        let (mut sent, mut loan) = socket.send(buffer).unwrap().split();
        buffer = loop {
            match loan.try_take() {
                Ok(back) => break back.buffer,
                Err(again) => loan = again,
            }
            driver.turn(Wait::Event).unwrap();
        };
        let result = loop {
            match sent.try_take() {
                Ok(result) => break result,
                Err(again) => sent = again,
            }
        };
        result.unwrap();
    }
    buffer
}

fn collect(driver: &Driver, mut on_loan: GroupOnLoan<Buffer>, into: &mut Vec<Buffer>) {
    loop {
        match on_loan.try_take(into) {
            Ok(_) => return,
            Err(again) => on_loan = again,
        }
        driver.turn(Wait::Event).unwrap();
    }
}

fn grouped(driver: &Driver, socket: &Socket, buffers: &mut Vec<Buffer>, rounds: usize) {
    for _ in 0..rounds {
        let mut group = driver.group();
        for buffer in buffers.drain(..) {
            drop(socket.message(buffer).header(b"header").send_in(&mut group).unwrap());
        }
        collect(driver, group.flush(), buffers);
    }
}

fn by_lane(driver: &Driver, lane: &Lane, buffers: &mut Vec<Buffer>, rounds: usize) {
    for _ in 0..rounds {
        for buffer in buffers.drain(..) {
            lane.push(buffer).unwrap();
        }
        while !lane.is_empty() {
            driver.turn(Wait::Event).unwrap();
            while let Some(finished) = lane.take() {
                finished.sent.unwrap();
                buffers.push(finished.buffer);
            }
        }
    }
}

#[test]
fn steady_sending_allocates_nothing() {
    for registered in [false, true] {
        for stream in [false, true] {
            for (driver, engine) in traffic::engines_apart() {
                // Ranges of the error queue are gathered in vectors, and the chooser may try again.
                if matches!(engine, Engine::MsgZerocopy | Engine::Auto) {
                    continue;
                }
                if (registered || stream) && engine != Engine::UringZc {
                    continue;
                }
                check(&driver, engine, registered, stream);
            }
        }
    }
}

fn check(driver: &Driver, engine: Engine, registered: bool, stream: bool) {
    let socket = if stream {
        let (near, mut far) = traffic::tcp("127.0.0.1");
        std::thread::spawn(move || {
            let mut space = vec![0; 1 << 16];
            while far.read(&mut space).is_ok_and(|got| got > 0) {}
        });
        driver.socket(near).unwrap()
    } else {
        let (near, far) = traffic::udp_pair();
        std::mem::forget(far);
        driver.socket(near).unwrap()
    };
    socket.set_engine(engine).unwrap();
    let mut region = Region::anonymous(33 * 4096).unwrap();
    if registered {
        driver.register(&region).unwrap();
    }
    let mut single = region.take(4096).unwrap();
    let mut buffers = region.chunks(4096);
    assert_eq!(buffers.len(), 32);
    single = one_by_one(driver, &socket, single, 200);
    grouped(driver, &socket, &mut buffers, 50);
    let before = allocations();
    one_by_one(driver, &socket, single, if stream { 300 } else { 2000 });
    let single = allocations() - before;
    let before = allocations();
    grouped(driver, &socket, &mut buffers, if stream { 50 } else { 200 });
    let many = allocations() - before;
    assert_eq!((single, many), (0, 0), "{engine}, registered {registered}, stream {stream}");
    assert_eq!(driver.in_flight(), 0);
    if engine != Engine::UringZc {
        return;
    }
    let lane = socket.lane(&region, 32).unwrap();
    by_lane(driver, &lane, &mut buffers, 20);
    let before = allocations();
    by_lane(driver, &lane, &mut buffers, 50);
    assert_eq!(allocations() - before, 0, "a lane, registered {registered}, stream {stream}");
}

/// A datagram socket, and the engines of its driver that need no vectors of their own.
fn datagrams() -> impl Iterator<Item = (Driver, Engine, Socket)> {
    let lasting = |engine: &Engine| matches!(engine, Engine::Copy | Engine::UringZc);
    let apart = traffic::engines_apart().into_iter().filter(move |(_, engine)| lasting(engine));
    apart.map(|(driver, engine)| {
        let (near, far) = traffic::udp_pair();
        std::mem::forget(far);
        let socket = traffic::attached(&driver, near, engine);
        (driver, engine, socket)
    })
}

#[test]
fn buffers_of_a_pool_come_and_go_without_an_allocation() {
    for (driver, engine, socket) in datagrams() {
        let pool = BufferPool::new(Region::anonymous(4 * 4096).unwrap(), 4096).unwrap();
        let take_turns = |count: usize| {
            for round in 0..count {
                let mut buffer = match round % 2 {
                    0 => pool.try_get().unwrap(),
                    _ => driver.block_on(pool.get()).unwrap(),
                };
                let head = buffer.split_to(round % 100);
                drop(one_by_one(&driver, &socket, buffer, 1));
                drop(head);
                // Nobody waits for this one.
                let (sent, _) = socket.send(pool.try_get().unwrap()).unwrap().split();
                drop(sent);
                while pool.free() < pool.buffers() {
                    driver.turn(Wait::Event).unwrap();
                }
            }
        };
        take_turns(100);
        let before = allocations();
        take_turns(500);
        assert_eq!(allocations() - before, 0, "{engine}");
    }
}

/// Lends clones of a handle, and the handle itself.
fn lent_without_an_allocation<B: Payload + Clone>(mut lent: B) {
    for (driver, engine, socket) in datagrams() {
        let mut kept = Some(lent);
        let mut take_turns = |count: usize| {
            for _ in 0..count {
                let bytes = kept.take().unwrap();
                kept = Some(one_by_one(&driver, &socket, bytes.clone(), 1));
                drop(socket.send(bytes).unwrap());
                while driver.in_flight() > 0 {
                    driver.turn(Wait::Event).unwrap();
                }
            }
        };
        take_turns(100);
        let before = allocations();
        take_turns(500);
        assert_eq!(allocations() - before, 0, "{engine}");
        lent = kept.unwrap();
    }
}

#[test]
fn memory_of_others_is_lent_without_an_allocation() {
    lent_without_an_allocation(std::sync::Arc::<[u8]>::from(vec![7; 3000]));
    #[cfg(feature = "bytes")]
    {
        let bytes = bytes::Bytes::from(vec![7; 3000]);
        // The first clone of bytes makes them shareable.
        drop(bytes.clone());
        lent_without_an_allocation(bytes);
    }
}

/// The driver's thread allocates nothing for spans that go to another thread and come back from there.
#[test]
fn spans_leave_the_thread_without_an_allocation() {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    for driver in traffic::drivers() {
        let pool = driver.pool(Region::anonymous(8 * 4096).unwrap(), 4096).unwrap();
        let (near, mut far) = traffic::tcp("127.0.0.1");
        let mut receiver = driver.socket(near).unwrap().receive(&pool).unwrap();
        let place = Arc::new(Mutex::new(None::<handoff::SendSpan>));
        let of_worker = Arc::clone(&place);
        let worker = std::thread::spawn(move || {
            let mut bytes = 0;
            while bytes < 1_200 {
                bytes += of_worker.lock().unwrap().take().map_or(0, |span| span.len());
                std::thread::yield_now();
            }
        });
        let mut take_turns = |count: usize| {
            for _ in 0..count {
                far.write_all(&[1]).unwrap();
                let span = loop {
                    driver.turn(Wait::Event).unwrap();
                    if let Some(span) = receiver.try_next_span() {
                        break span.unwrap().unwrap();
                    }
                };
                let sent = span.into_send().unwrap();
                while place.lock().unwrap().is_some() {
                    std::thread::yield_now();
                }
                *place.lock().unwrap() = Some(sent);
            }
        };
        take_turns(200);
        let before = allocations();
        take_turns(1000);
        let ring = driver.ring_unavailable().is_none();
        assert_eq!(allocations() - before, 0, "with a ring: {ring}");
        worker.join().unwrap();
    }
}

#[test]
fn unix_sockets_send_and_receive_without_an_allocation() {
    for ring in [handoff::RingUse::Prefer, handoff::RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).build().unwrap();
        for kind in [UnixKind::Stream, UnixKind::Datagram, UnixKind::Seqpacket] {
            let (near, far) = driver.unix_pair(kind).unwrap();
            let mut region = Region::anonymous(1 << 16).unwrap();
            let buffers = (region.take(4_000).unwrap(), region.take(4_000).unwrap());
            let buffers = messages(&driver, &near, &far, buffers, 10);
            let before = allocations();
            messages(&driver, &near, &far, buffers, 1_000);
            assert_eq!(allocations() - before, 0, "{kind:?}");
        }
    }
}

/// Sends and receives so many messages.
fn messages(
    driver: &Driver,
    near: &Socket,
    far: &Socket,
    (mut sent, mut room): (Buffer, Buffer),
    count: usize,
) -> (Buffer, Buffer) {
    for _ in 0..count {
        // It is there before, as a wait of epoll allocates.
        sent = one_by_one(driver, near, sent, 1);
        let mut receiving = far.receive_message(room, 4).unwrap();
        let message = loop {
            match receiving.try_take() {
                Ok(message) => break message,
                Err(again) => receiving = again,
            }
            driver.turn(Wait::Event).unwrap();
        };
        assert_eq!(message.result.unwrap(), 4_000);
        room = message.buffer;
    }
    (sent, room)
}

fn moved<B: Lendable>(driver: &Driver, mut under_way: Transfer<B>) -> B {
    loop {
        match under_way.try_take() {
            Ok(over) => {
                assert_eq!(over.result.unwrap(), 8192);
                return over.buffer;
            }
            Err(again) => under_way = again,
        }
        driver.turn(Wait::Event).unwrap();
    }
}

fn called(driver: &Driver, mut under_way: FileCall<()>) {
    loop {
        match under_way.try_take() {
            Ok(over) => return over.unwrap(),
            Err(again) => under_way = again,
        }
        driver.turn(Wait::Event).unwrap();
    }
}

#[test]
fn files_are_written_read_and_synced_without_an_allocation() {
    for ring in [handoff::RingUse::Prefer, handoff::RingUse::Avoid] {
        for registered in [false, true] {
            let driver = Driver::builder().ring(ring).build().unwrap();
            if registered && driver.ring_unavailable().is_some() {
                continue;
            }
            let file = driver.file(tempfile::tempfile().unwrap()).unwrap();
            let mut region = Region::anonymous(16 << 10).unwrap();
            if registered {
                driver.register(&region).unwrap();
            }
            let mut one = region.take(8192).unwrap();
            let mut pieces = region.chunks(4096);
            assert_eq!(pieces.len(), 2);
            let take_turns = |count: usize, one: Buffer, pieces: Vec<Buffer>| {
                let mut both = (one, pieces);
                for _ in 0..count {
                    let (one, pieces) = both;
                    let flags = RwFlags::DSYNC;
                    let one = moved(&driver, file.write_at_with(one, 0, flags).unwrap());
                    let pieces = moved(&driver, file.write_at_with(pieces, 0, flags).unwrap());
                    let one = moved(&driver, file.read_at(one, 0).unwrap());
                    let pieces = moved(&driver, file.read_at(pieces, 0).unwrap());
                    called(&driver, file.sync_data().unwrap());
                    called(&driver, file.set_len(8192).unwrap());
                    both = (one, pieces);
                }
                both
            };
            (one, pieces) = take_turns(10, one, pieces);
            let before = allocations();
            take_turns(100, one, pieces);
            let ring = driver.ring_unavailable().is_none();
            assert_eq!(allocations() - before, 0, "with a ring: {ring}, registered {registered}");
        }
    }
}
