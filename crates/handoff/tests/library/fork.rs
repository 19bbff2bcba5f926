//! Children of fork(2): a driver belongs to the process that made it, and goes on there whatever a child does.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use handoff::{Buffer, BufferPool, Driver, Error, Region, Wait};

use crate::traffic::{attached, narrow_tcp, pattern, read_all, tcp, with_each_engine};

const LONG: Duration = Duration::from_secs(30);
const STALLED: usize = 1 << 20;

/// Runs `work` in a child, where it must not panic.
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: the child uses nothing that another thread of its parent may have locked but the allocator, which is ready
    // for that, and ends without running what its parent has to.
    match unsafe { libc::fork() } {
        0 => {
            let failed = catch_unwind(AssertUnwindSafe(work)).is_err();
            // SAFETY: as above.
            unsafe { libc::_exit(failed.into()) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child, and writes its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
        }
    }
}

fn is_refused<T>(result: Result<T, impl Into<Error>>) -> bool {
    matches!(result.map_err(Into::into), Err(Error::OtherProcess))
}

/// A driver that the child makes works like any other.
fn works(driver: &Driver) {
    let (near, mut far) = tcp("127.0.0.1");
    let socket = driver.socket(near).unwrap();
    let sending = socket.send(Buffer::from(pattern(3, 1000))).unwrap();
    assert_eq!(driver.block_on(sending.into_future()).unwrap().unwrap().sent.unwrap(), 1000);
    let mut got = vec![0; 1000];
    far.read_exact(&mut got).unwrap();
    assert!(got == pattern(3, 1000));
}

#[test]
fn what_a_child_asks_and_drops_goes_on_in_its_parent() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut memory = Region::anonymous(STALLED).unwrap();
        if driver.ring_unavailable().is_none() {
            driver.register(&memory).unwrap();
        }
        let mut buffer = memory.take(STALLED).unwrap();
        buffer.copy_from_slice(&pattern(5, STALLED));
        let pool = driver.pool(Region::anonymous(4096).unwrap(), 1024).unwrap();
        let buffers = BufferPool::new(Region::anonymous(4096).unwrap(), 1024).unwrap();
        let held = buffers.try_get().unwrap();
        let mut receiver = socket.receive(&pool).unwrap();
        { &far }.write_all(b"here").unwrap();
        let span = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        let (sent, on_loan) = socket.send(buffer).unwrap().split();
        driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();

        let ours = (sent.cancel_on_drop(), on_loan, receiver, span, socket, pool, held, memory);
        in_a_child(|| {
            assert!(is_refused(driver.turn(Wait::No)));
            assert!(is_refused(driver.block_on(async {})));
            assert!(is_refused(ours.4.send(Buffer::from(vec![1])).map_err(|it| it.error)));
            assert!(is_refused(ours.4.shutdown(std::net::Shutdown::Both)));
            ours.4.abort();
            ours.0.cancel();
            works(&Driver::builder().build().unwrap());
            // SAFETY: the child has copies of all of it, and drops these alone.
            unsafe {
                drop(std::ptr::read(&raw const ours));
                drop(std::ptr::read(&raw const driver));
            }
            works(&Driver::builder().build().unwrap());
        });

        let (sent, on_loan, mut receiver, span, socket, pool, ..) = ours;
        assert_eq!((&span[..], pool.held()), (&b"here"[..], 1));
        { &far }.write_all(b"more").unwrap();
        let next = driver.block_on(receiver.next_span()).unwrap().unwrap().unwrap();
        assert_eq!(&next[..], b"more");
        let reader = read_all(far);
        assert_eq!(driver.block_on(sent).unwrap().unwrap(), STALLED, "{engine}");
        assert!(driver.block_on(on_loan).unwrap().unwrap().buffer[..] == pattern(5, STALLED));
        drop((receiver, span, next, socket));
        while driver.in_flight() > 0 {
            driver.turn(Wait::AtMost(Duration::from_millis(5))).unwrap();
        }
        assert!(reader.join().unwrap() == pattern(5, STALLED));
    });
}
