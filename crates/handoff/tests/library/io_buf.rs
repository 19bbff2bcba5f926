//! Memory of others on loan (`IoBuf`), by every engine; and when their owners are dropped.

use std::cell::Cell;
use std::fmt::Debug;
use std::io::{Read, Write};
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::BytesMut;
use handoff::{Driver, Engine, Error, IoBuf, IoBufMut, Wait};

use crate::traffic::{attached, drivers, pattern, tcp, with_each_driver, with_each_engine};

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 40_000;

/// Sends it to a peer that expects it; what comes back lies where it was.
fn goes_whole<B>(driver: &Driver, engine: Engine, lent: B)
where
    B: IoBuf + Deref<Target: AsRef<[u8]>>,
{
    let (near, mut far) = tcp("127.0.0.1");
    let socket = attached(driver, near, engine);
    let expected = (*lent).as_ref().to_vec();
    let at = (*lent).as_ref().as_ptr();
    let reader = thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        far.read_exact(&mut got).unwrap();
        assert!(got == expected, "what arrived differs");
    });
    let finished = driver.block_on(async { socket.send(lent).unwrap().await }).unwrap().unwrap();
    assert_eq!(finished.sent.unwrap(), LEN, "{engine}");
    assert_eq!((*finished.buffer).as_ref().as_ptr(), at, "{engine}");
    reader.join().unwrap();
}

#[test]
fn memory_of_others_goes_by_every_engine() {
    with_each_engine(LONG, |driver, engine| {
        let shared: Arc<[u8]> = pattern(1, LEN).into();
        goes_whole(&driver, engine, Arc::clone(&shared));
        assert_eq!(Arc::strong_count(&shared), 1, "{engine}: a handle was kept");
        goes_whole(&driver, engine, Arc::new(pattern(2, LEN)));
        goes_whole(&driver, engine, pattern(3, LEN));
        goes_whole(&driver, engine, pattern(4, LEN).into_boxed_slice());
        goes_whole(&driver, engine, BytesMut::from(&pattern(5, LEN + 9)[..]).split_off(9));
        static FOR_GOOD: [u8; LEN] = [6; LEN];
        goes_whole(&driver, engine, &FOR_GOOD[..]);
    });
}

/// Fills it from a socket and from a file.
fn fill_all<B: IoBufMut + AsRef<[u8]> + Debug>(driver: &Driver, lent: B) {
    let at = lent.as_ref().as_ptr();
    let (near, mut far) = tcp("127.0.0.1");
    let socket = driver.socket(near).unwrap();
    far.write_all(&pattern(1, LEN)).unwrap();
    let received = driver.block_on(async { socket.receive_exact(lent).unwrap().await });
    let received = received.unwrap().unwrap();
    assert_eq!(received.result.unwrap(), LEN);
    assert!(received.buffer.as_ref() == pattern(1, LEN));
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(2, LEN)).unwrap();
    let file = driver.file(file).unwrap();
    let read = driver.block_on(async { file.read_at(received.buffer, 0).unwrap().await });
    let read = read.unwrap().unwrap();
    assert_eq!(read.result.unwrap(), LEN);
    assert!(read.buffer.as_ref() == pattern(2, LEN));
    assert_eq!(read.buffer.as_ref().as_ptr(), at);
}

#[test]
fn memory_of_others_is_filled() {
    with_each_driver(LONG, |driver| {
        fill_all(&driver, vec![0; LEN]);
        fill_all(&driver, vec![0; LEN].into_boxed_slice());
        fill_all(&driver, BytesMut::zeroed(LEN + 9).split_off(9));
    });
}

/// Stays on its thread, is larger than what is kept in place, and tells of its end.
#[derive(Debug)]
struct Own {
    bytes: Vec<u8>,
    ends: Rc<Cell<usize>>,
    _room: [usize; 9],
}

// SAFETY: the vector has its bytes alone, on the heap.
unsafe impl IoBuf for Own {
    fn stable_ptr(&mut self) -> NonNull<u8> {
        self.bytes.stable_ptr()
    }

    fn stable_len(&self) -> usize {
        self.bytes.stable_len()
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Own {}

impl Drop for Own {
    fn drop(&mut self) {
        self.ends.set(self.ends.get() + 1);
    }
}

fn own(ends: &Rc<Cell<usize>>) -> Own {
    Own { bytes: pattern(1, LEN), ends: Rc::clone(ends), _room: [0; 9] }
}

/// Dropped at each await, it ends once, and not while the kernel may read it.
#[test]
fn an_owner_that_is_given_up_is_dropped_once() {
    with_each_engine(LONG, |driver, engine| {
        let ends = Rc::new(Cell::new(0));
        let (near, far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, engine);
        // Takes everything to the end of the stream.
        let reader = thread::spawn(move || std::io::copy(&mut &far, &mut std::io::sink()));
        // Before the first turn, after it, and later.
        for turns in 0..3 {
            let sending = socket.send(own(&ends)).unwrap();
            for _ in 0..turns {
                driver.turn(Wait::No).unwrap();
            }
            drop(sending);
            while driver.in_flight() > 0 {
                driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
            }
            assert_eq!(ends.get(), turns + 1, "{engine}");
        }
        drop(reader);
        // A receive that nothing comes for.
        let receive = socket.receive_exact(own(&ends)).unwrap();
        driver.turn(Wait::No).unwrap();
        drop(receive);
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(1))).unwrap();
        }
        assert_eq!(ends.get(), 4, "{engine}");
    });
}

#[test]
fn a_refused_owner_comes_back_and_one_on_its_way_ends_with_the_driver() {
    for driver in drivers() {
        let ends = Rc::new(Cell::new(0));
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let receive = socket.receive_exact(own(&ends)).unwrap();
        let refused = socket.receive_exact(own(&ends)).expect_err("a second receiver");
        assert_eq!((refused.buffer.bytes.len(), ends.get()), (LEN, 0));
        driver.turn(Wait::No).unwrap();
        drop(driver);
        drop((receive, socket));
        assert_eq!(ends.get(), 1);
        drop(refused);
        assert_eq!(ends.get(), 2);
    }
    for driver in drivers() {
        let ends = Rc::new(Cell::new(0));
        let (near, _far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        drop(driver);
        let refused = socket.send(own(&ends)).expect_err("nobody turns it");
        assert!(matches!(refused.error, Error::DriverGone), "{}", refused.error);
        assert_eq!((refused.buffer.bytes.len(), ends.get()), (LEN, 0));
    }
}
