//! Drivers that go while the kernel still uses memory.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use handoff::{Buffer, Driver, Engine, Region, Wait};

use crate::stages::stage::{LONG, STALLED, turn_for};
use crate::traffic::{
    self, attached, engines_apart, filled, narrow_tcp, patience, pattern, with_each_engine, within,
};

/// The far ends of sockets that a driver leaves behind, and whether they see their end.
fn ends(mut far: TcpStream, engine: Engine) {
    far.set_read_timeout(Some(patience(Duration::from_secs(2)))).unwrap();
    let mut space = vec![0; 1 << 20];
    loop {
        match far.read(&mut space) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return,
            // Work left by the ring interrupts a read that has a time limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{engine}: the connection does not end: {error}"),
        }
    }
}

#[test]
fn a_driver_that_goes_takes_stalled_sends_along() {
    within(LONG, || {
        for forget in [false, true] {
            for (driver, engine) in engines_apart() {
                let (near, far) = narrow_tcp();
                let socket = attached(&driver, near, engine);
                let mut region = Region::anonymous(2 * STALLED).unwrap();
                let buffers = [
                    filled(&mut region, 1, STALLED),
                    Buffer::from(pattern(2, STALLED)),
                    filled(&mut region, 3, 1000),
                ];
                for buffer in buffers {
                    let sending = socket.message(buffer).header(b"header").send().unwrap();
                    turn_for(&driver, Duration::from_millis(5));
                    if forget {
                        std::mem::forget(sending);
                    }
                }
                drop(socket);
                // Forgotten handles hold the driver too: it ends with the process.
                drop(driver);
                if !forget {
                    ends(far, engine);
                }
            }
        }
    });
}

#[test]
fn heap_memory_is_not_used_again_while_the_kernel_sends_it() {
    const LEN: usize = 50_000;
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut expected = Vec::new();
        for seed in 0..40 {
            expected.extend(pattern(seed, LEN));
            drop(socket.send(Buffer::from(pattern(seed, LEN))).unwrap());
            driver.turn(Wait::No).unwrap();
        }
        turn_for(&driver, Duration::from_millis(5));
        drop((socket, driver));
        let overwriting: Vec<_> = (0..80).map(|_| vec![0xee; LEN]).collect();
        let mut got = Vec::new();
        // What the kernel did not have yet is not sent; a reset cuts the rest off.
        let _ = { far }.read_to_end(&mut got);
        assert!(got.len() < expected.len(), "{engine}: the peer was not stalled");
        assert!(got == expected[..got.len()], "{engine}");
        drop(overwriting);
    });
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// In a process of its own, since it looks at the whole process.
#[test]
fn drivers_that_go_leave_nothing() {
    const NAME: &str = "stages::drivers::drivers_that_go_leave_nothing";
    /// So much that it shows beside the process's other memory.
    const LEN: usize = 4 * STALLED;
    if !traffic::alone(NAME) {
        return;
    }
    let round = |engine: Engine, driver: Driver| {
        let (near, far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let mut region = Region::anonymous(LEN).unwrap();
        let sending = socket.send(filled(&mut region, 1, LEN)).unwrap();
        let (read, _write) = std::io::pipe().unwrap();
        let reading = (driver.ring_unavailable().is_none()).then(|| {
            let file = driver.file(read).unwrap();
            file.read(region.take(0).unwrap()).unwrap()
        });
        turn_for(&driver, Duration::from_millis(5));
        drop((sending, reading, socket, driver));
        drop(far);
    };
    for (driver, engine) in engines_apart() {
        round(engine, driver);
    }
    let before = (resident(), descriptors());
    for (driver, engine) in engines_apart() {
        round(engine, driver);
    }
    // A worker of the kernel lets go of a ring and its files.
    let deadline = Instant::now() + patience(LONG);
    while descriptors() != before.1 {
        assert!(Instant::now() < deadline, "{} descriptors, {} before", descriptors(), before.1);
        thread::sleep(Duration::from_millis(1));
    }
    let grown = resident().saturating_sub(before.0);
    assert!(grown < LEN / 2, "{grown} bytes more after {} rounds", engines_apart().len());
}
