//! `bytes::Bytes` on loan, by every engine; their owner's drop, which is foreign code; and frozen buffers that
//! become `Bytes`.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use handoff::{Buffer, Driver, Engine, OnLoan, Region, Wait};

use crate::traffic::{
    self, attached, drivers, filled, pattern, tcp, udp_pair, with_each_driver, with_each_engine,
    within,
};

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 40_000;

#[test]
fn bytes_go_as_they_are_by_every_engine() {
    with_each_engine(LONG, |driver, engine| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = attached(&driver, near, engine);
        let whole = Bytes::from(pattern(4, LEN));
        let parts = [whole.clone(), whole.slice(10..20), Bytes::new(), whole.slice(LEN - 1..)];
        let expected = parts.concat();
        let reader = thread::spawn(move || {
            let mut got = vec![0; expected.len()];
            far.read_exact(&mut got).unwrap();
            assert!(got == expected, "what arrived differs");
        });
        for part in parts {
            let (at, len) = (part.as_ptr(), part.len());
            let finished =
                driver.block_on(async { socket.send(part).unwrap().await }).unwrap().unwrap();
            assert_eq!(finished.sent.unwrap(), len);
            assert_eq!((finished.buffer.as_ptr(), finished.buffer.len()), (at, len), "{engine}");
        }
        reader.join().unwrap();
        assert!(whole.is_unique(), "{engine}: a handle was kept");
    });
}

#[test]
fn bytes_are_written_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    for (number, driver) in drivers().into_iter().enumerate() {
        let path = directory.path().join(number.to_string());
        let file = driver.file(std::fs::File::create(&path).unwrap()).unwrap();
        let bytes = Bytes::from(pattern(1, LEN)).slice(3..);
        let written =
            driver.block_on(async { file.write_at(bytes, 0).unwrap().await }).unwrap().unwrap();
        assert_eq!(written.result.unwrap(), LEN - 3);
        assert!(std::fs::read(&path).unwrap() == pattern(1, LEN)[3..]);
    }
}

#[test]
fn a_frozen_buffer_becomes_bytes_and_a_buffer_again() {
    within(LONG, || {
        let driver = Driver::new().unwrap();
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let mut region = Region::anonymous(LEN).unwrap();
        let frozen = filled(&mut region, 2, LEN).freeze();
        let bytes = Bytes::from(frozen.clone());
        assert_eq!(bytes.as_ptr(), frozen.as_ptr());
        drop(socket.send(bytes.slice(1..)).unwrap());
        driver.turn(Wait::No).unwrap();
        drop(bytes);
        let mut got = vec![0; LEN - 1];
        far.read_exact(&mut got).unwrap();
        assert!(got == pattern(2, LEN)[1..]);
        while driver.in_flight() > 0 {
            driver.turn(Wait::Event).unwrap();
        }
        assert_eq!(frozen.try_unfreeze().expect("the bytes are gone").len(), LEN);
    });
}

thread_local! {
    static DRIVER: RefCell<Option<Driver>> = const { RefCell::new(None) };
    static OTHER: RefCell<Option<OnLoan<Buffer>>> = const { RefCell::new(None) };
    static OTHER_IS_TOLD: Cell<bool> = const { Cell::new(false) };
}

/// Does what foreign code may do in its drop.
struct Owner {
    bytes: Vec<u8>,
    ended: Arc<AtomicUsize>,
    panics: bool,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.ended.fetch_add(1, SeqCst);
        let driver = DRIVER.with_borrow(|driver| driver.clone());
        let Some(driver) = driver else { return };
        // All news of the same turn has been told.
        let other = OTHER.take().expect("it was sent before");
        OTHER_IS_TOLD.set(other.try_take().is_ok());
        driver.in_flight();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = driver.socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let to = far.local_addr().unwrap();
        drop(socket.message(Bytes::from_static(b"foreign")).to(to).send().unwrap());
        driver.turn(Wait::No).unwrap();
        let mut got = [0; 16];
        assert_eq!(far.recv(&mut got).unwrap(), 7);
        assert!(!self.panics, "as it was told to");
    }
}

#[test]
fn an_owner_may_do_anything_when_all_of_its_batch_is_told() {
    within(LONG, || {
        for panics in [false, true] {
            // Again where the kernel did not return both at once.
            while !OTHER_IS_TOLD.take() {
                let driver = Driver::new().unwrap();
                if let Some(reason) = driver.ring_unavailable() {
                    let test = "an_owner_may_do_anything_when_all_of_its_batch_is_told";
                    return traffic::skip(test, reason);
                }
                let (near, _far) = udp_pair();
                let socket = driver.socket(near).unwrap();
                socket.set_engine(Engine::UringZc).unwrap();
                let ended = Arc::new(AtomicUsize::new(0));
                let owner = Owner { bytes: vec![7; 3000], ended: ended.clone(), panics };
                drop(socket.send(Bytes::from_owner(owner)).unwrap());
                let (_sent, on_loan) = socket.send(Buffer::from(vec![8; 3000])).unwrap().split();
                OTHER.set(Some(on_loan));
                DRIVER.set(Some(driver.clone()));
                let mut panicked = 0;
                while ended.load(SeqCst) == 0 {
                    let turned =
                        catch_unwind(AssertUnwindSafe(|| driver.turn(Wait::Event).unwrap()));
                    panicked += usize::from(turned.is_err());
                }
                assert_eq!((panicked, ended.load(SeqCst)), (usize::from(panics), 1));
                DRIVER.set(None);
                // The driver works as before.
                let sent = driver
                    .block_on(async { socket.send(Bytes::from_static(b"on")).unwrap().await });
                assert_eq!(sent.unwrap().unwrap().sent.unwrap(), 2);
            }
        }
    });
}

/// The owner is told even if the driver goes before the bytes are back.
#[test]
fn an_owner_is_dropped_with_the_driver() {
    with_each_driver(LONG, |driver| {
        let ended = Arc::new(AtomicUsize::new(0));
        let (near, _far) = udp_pair();
        let socket = driver.socket(near).unwrap();
        // Holds the state shared by the driver and its pools longer than the driver.
        let pool = driver.pool(Region::anonymous(4096).unwrap(), 4096).unwrap();
        for _ in 0..5 {
            let owner = Owner { bytes: vec![7; 3000], ended: ended.clone(), panics: false };
            drop(socket.send(Bytes::from_owner(owner)).unwrap());
        }
        drop(socket);
        drop(driver);
        assert_eq!(ended.load(SeqCst), 5);
        drop(pool);
    });
}
