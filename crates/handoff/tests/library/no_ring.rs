//! A seccomp filter forbids io_uring, or the kernel refuses it for another reason: the driver says why
//! there is no ring, and everything works by system calls.

use std::future::IntoFuture;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use handoff::{Buffer, Driver, Engine, Error, Executor, Region, RingUse};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::refusals::refuse_calls;
use crate::traffic::{self, filled, pattern, tcp, within};

const LONG: Duration = Duration::from_secs(30);

fn forbid_io_uring(errno: i32) {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    refuse_calls(calls.map(|call| (call, vec![])), errno);
}

#[test]
fn a_forbidden_ring_is_named_and_replaced() {
    within(LONG, || {
        forbid_io_uring(libc::EPERM);
        let driver = Driver::new().unwrap();
        let reason = driver.ring_unavailable().unwrap().to_owned();
        assert!(reason.contains("seccomp filter forbids io_uring"), "{reason}");
        let error = Driver::builder().ring(RingUse::Require).build().unwrap_err();
        assert!(matches!(error, Error::NoRing { .. }) && error.to_string().contains(&reason));

        let mut region = Region::anonymous(1 << 20).unwrap();
        let error = driver.register(&region).unwrap_err();
        assert!(error.to_string().contains(&reason), "{error}");

        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let error = socket.set_engine(Engine::UringZc).unwrap_err();
        assert!(error.to_string().contains(&reason), "{error}");
        for engine in [Engine::Auto, Engine::MsgZerocopy, Engine::Copy] {
            socket.set_engine(engine).unwrap();
            let sending = socket.message(filled(&mut region, 1, 70_000)).header(b"header");
            let sending = sending.send().unwrap();
            let mut got = vec![0; 70_006];
            far.read_exact(&mut got).unwrap();
            assert!(got == [b"header", &pattern(1, 70_000)[..]].concat());
            let finished = driver.block_on(sending.into_future()).unwrap().unwrap();
            assert_eq!(finished.sent.unwrap(), 70_006);
        }

        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let datagrams = driver.socket(near).unwrap();
        let mut group = driver.group();
        for seed in 0..5 {
            let message = datagrams.message(filled(&mut region, seed, 1000));
            drop(message.to(peer.local_addr().unwrap()).send_in(&mut group).unwrap());
        }
        assert_eq!(driver.block_on(group.flush()).unwrap().unwrap().buffer.len(), 5);
        // Datagrams may overtake each other.
        let mut expected: Vec<_> = (0..5).map(|seed| pattern(seed, 1000)).collect();
        for _ in 0..5 {
            let mut got = vec![0; 2000];
            let len = peer.recv(&mut got).unwrap();
            let place = expected.iter().position(|it| *it == got[..len]);
            expected.swap_remove(place.expect("it is one of them"));
        }

        let pool = driver.pool(Region::anonymous(1 << 16).unwrap(), 4096).unwrap();
        let mut receiver = socket.receive(&pool).unwrap();
        let file = driver.file(tempfile::tempfile().unwrap()).unwrap();
        let executor = Executor::new(&driver);
        let writer = thread::spawn(move || far.write_all(&pattern(2, 50_000)).unwrap());
        let task = executor.spawn(async move {
            let mut offset = 0;
            while let Some(span) = receiver.next_span().await {
                let span = span.unwrap();
                let len = span.len() as u64;
                file.write_at(span, offset).unwrap().await.unwrap().result.unwrap();
                offset += len;
            }
            file.read_at(Buffer::from(vec![0; 60_000]), 0).unwrap().await
        });
        let over = executor.run(task).unwrap().unwrap();
        assert_eq!(over.result.unwrap(), 50_000);
        assert!(over.buffer[..50_000] == pattern(2, 50_000));
        writer.join().unwrap();
    });
}

#[test]
fn a_hidden_ring_is_named() {
    within(LONG, || {
        forbid_io_uring(libc::ENOSYS);
        let driver = Driver::new().unwrap();
        let reason = driver.ring_unavailable().unwrap();
        // A kernel without a switch for io_uring does not say whether it has io_uring.
        let tells = std::path::Path::new("/proc/sys/kernel/io_uring_disabled").exists();
        let hides = if tells { "seccomp filter hides io_uring" } else { "seccomp filter hides it" };
        assert!(reason.contains(hides), "{reason}");
    });
}

#[test]
fn sizes_that_the_kernel_limits_do_not_cost_the_ring() {
    const NAME: &str = "no_ring::sizes_that_the_kernel_limits_do_not_cost_the_ring";
    if !traffic::alone(NAME) {
        return;
    }
    if let Some(reason) = Driver::new().unwrap().ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    let few = Some(100);
    setrlimit(Resource::Nofile, Rlimit { current: few, maximum: few }).unwrap();
    for (entries, buffers, files) in
        [(256, 64, 512), (0, 0, 0), (1 << 20, 1 << 20, 1 << 20), (2, 1, 1)]
    {
        let driver = Driver::builder()
            .entries(entries)
            .registered_buffers(buffers)
            .registered_files(files)
            .build()
            .unwrap();
        assert_eq!(driver.ring_unavailable(), None, "{entries} {buffers} {files}");
        let region = Region::anonymous(4096).unwrap();
        assert_eq!(driver.register(&region).is_ok(), buffers > 0);
        let (near, mut far) = tcp("127.0.0.1");
        let socket = driver.socket(near).unwrap();
        let sending = socket.send(Buffer::from(pattern(1, 100))).unwrap();
        driver.block_on(sending.into_future()).unwrap().unwrap().sent.unwrap();
        far.read_exact(&mut [0; 100]).unwrap();
    }
}
