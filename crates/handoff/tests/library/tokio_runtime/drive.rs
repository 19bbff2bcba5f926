//! A driver that is turned inside a runtime of the test's own, with a ring and without.

use std::future::IntoFuture;
use std::io::Read;
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Region};
use tokio::task::{LocalSet, spawn_local};

use crate::tokio_runtime::LONG;
use crate::traffic::{
    attached, drivers, narrow_tcp, pattern, tcp, udp, with_each_driver, with_each_engine,
};

/// Runs a future beside the driver, which nothing else turns.
fn run<T>(driver: &Driver, future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let driving = spawn_local(handoff::tokio::drive(driver.clone()));
        let value = future.await;
        driving.abort();
        assert!(driving.await.unwrap_err().is_cancelled());
        value
    })
}

#[test]
fn sends_and_receives_go_on_beside_each_other() {
    with_each_engine(LONG, |driver, engine| {
        let (near, far) = tcp("127.0.0.1");
        let (sending, receiving) = (driver.socket(near).unwrap(), driver.socket(far).unwrap());
        sending.set_engine(engine).unwrap();
        let pool = driver.pool(Region::anonymous(1 << 18).unwrap(), 4096).unwrap();
        let mut receiver = receiving.receive(&pool).unwrap();
        run(&driver, async {
            let sender = spawn_local(async move {
                for seed in 0..50 {
                    let buffer = Buffer::from(pattern(seed, 20_000));
                    let finished = sending.send(buffer).unwrap().await.unwrap();
                    assert_eq!(finished.sent.unwrap(), 20_000);
                }
            });
            let mut got = Vec::new();
            while let Some(span) = receiver.next_span().await {
                got.extend_from_slice(&span.unwrap());
            }
            sender.await.unwrap();
            let expected: Vec<u8> = (0..50).flat_map(|seed| pattern(seed, 20_000)).collect();
            assert!(got == expected, "{engine}");
        });
        drop(receiver);
    });
}

#[test]
fn a_stalled_send_wakes_when_the_peer_reads() {
    with_each_engine(LONG, |driver, engine| {
        let (near, mut far) = narrow_tcp();
        let socket = attached(&driver, near, engine);
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            let mut got = vec![0; 2 << 20];
            far.read_exact(&mut got).unwrap();
            got
        });
        let sending = socket.send(Buffer::from(pattern(1, 2 << 20))).unwrap();
        let finished = run(&driver, sending.into_future()).unwrap();
        assert_eq!(finished.sent.unwrap(), 2 << 20, "{engine}");
        assert!(reader.join().unwrap() == pattern(1, 2 << 20));
    });
}

#[test]
fn returns_come_on_a_socket_with_an_error_pending() {
    with_each_engine(LONG, |driver, engine| {
        // Nobody listens; the socket hears of it while sends are out.
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(nobody).unwrap();
        let socket = attached(&driver, near, engine);
        run(&driver, async {
            for seed in 0..50 {
                let loan = socket.send(Buffer::from(pattern(seed, 3000))).unwrap().split().1;
                assert!(loan.await.unwrap().buffer[..] == pattern(seed, 3000), "{engine}");
            }
        });
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn other_threads_wake_tasks_beside_the_driver() {
    with_each_driver(LONG, |driver| {
        run(&driver, async {
            for round in 0..50 {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let thread = thread::spawn(move || sender.send(round).unwrap());
                assert_eq!(receiver.await.unwrap(), round);
                thread.join().unwrap();
            }
        });
    });
}

#[test]
fn a_driver_without_its_task_is_turned_by_hand() {
    with_each_driver(LONG, |driver| {
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        run(&driver, async {
            socket.send(Buffer::from(vec![1; 10])).unwrap().await.unwrap().sent.unwrap();
        });
        let sending = socket.send(Buffer::from(vec![2; 10])).unwrap();
        driver.block_on(sending.into_future()).unwrap().unwrap().sent.unwrap();
        let mut got = [0; 20];
        far.read_exact(&mut got).unwrap();
        assert_eq!(got, [[1; 10], [2; 10]].concat()[..]);
    });
}

#[test]
fn a_local_set_of_a_runtime_with_many_threads_does_as_well() {
    with_each_driver(LONG, |driver| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build().unwrap();
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        LocalSet::new().block_on(&runtime, async {
            let driving = spawn_local(handoff::tokio::drive(driver.clone()));
            socket.send(Buffer::from(vec![1; 10])).unwrap().await.unwrap().sent.unwrap();
            driving.abort();
        });
        far.read_exact(&mut [0; 10]).unwrap();
    });
}

#[test]
fn without_a_runtime_it_says_what_to_use() {
    for driver in drivers() {
        let error = driver.block_on(handoff::tokio::drive(driver.clone())).unwrap().unwrap_err();
        assert!(error.to_string().contains("handoff::tokio::run"), "{error}");
    }
}

/// As in the library's own executor: other tasks, and the driver's clock, go on.
#[test]
fn sends_that_are_over_at_once_hold_nobody_up() {
    with_each_engine(LONG, |driver, engine| {
        let (socket, _far) = udp(&driver, engine);
        let clock = driver.clone();
        let over = run(&driver, async move {
            let waiting = spawn_local(async move { clock.sleep(Duration::from_millis(20)).await });
            // In less than that the time is over.
            for _ in 0..300_000 {
                if waiting.is_finished() {
                    break;
                }
                let finished = socket.send(Buffer::from(vec![7; 100])).unwrap().await.unwrap();
                assert_eq!(finished.sent.unwrap(), 100, "{engine}");
            }
            waiting.is_finished()
        });
        assert!(over, "{engine}: nobody else had a turn");
    });
}
