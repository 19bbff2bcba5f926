//! What is refused: with the payload, the cause, and nothing lost for others.

use std::time::Duration;

use handoff::{Driver, Region};
use handoff_rds::Error;
use handoff_rds::kernel::{Mode, Socket};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::peers::{Numbered, Peers, Timeout, complete, receive, send_waiting};

fn refused(socket: &Socket<Numbered>, to: &Socket<Numbered>, len: usize, mode: Mode) -> Error {
    let refused = socket.send(to.local_addr(), (vec![1; len], 9), 3, mode).expect_err("too much");
    assert_eq!((refused.payload.0.len(), refused.payload.1), (len, 9));
    refused.error
}

#[test]
fn long_messages_are_refused_by_the_limit_that_they_pass() {
    const MIB: usize = 1 << 20;
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    let buffer = left.send_buffer().expect("tells");
    for mode in [Mode::Lend, Mode::Copy] {
        let error = refused(&left, &right, buffer + 1, mode);
        assert!(error.to_string().contains("wmem_max"), "{error}");
        let Error::MessageTooLong { limit, .. } = error else { panic!("{error}") };
        assert_eq!(limit, buffer);
        left.send(right.local_addr(), (vec![1; buffer], 0), 0, mode).expect("fits");
        assert_eq!(receive(&right).payload.len(), buffer);
        complete(&left, 1);
    }
    std::fs::write("/proc/sys/net/core/wmem_max", "4194304").expect("root");
    left.set_send_buffer(2 * MIB).expect("sets");
    for mode in [Mode::Lend, Mode::Copy] {
        let Error::MessageTooLong { limit, .. } = refused(&left, &right, MIB + 1, mode) else {
            panic!("is too long for the kernel");
        };
        assert_eq!(limit, MIB);
        send_waiting(&left, right.local_addr(), (vec![1; MIB], 0), 0, || {});
        assert_eq!(receive(&right).payload.len(), MIB);
        complete(&left, 1);
    }
}

#[test]
fn a_congested_port_is_told_and_others_are_reached() {
    let peers = Peers::new();
    let [left, slow, quick] = [peers.left(4000), peers.right(4001), peers.right(4002)];
    let mut timeout = Timeout::new();
    let mut accepted = 0;
    loop {
        match left.send(slow.local_addr(), (vec![2; 20_000], 0), 0, Mode::Lend) {
            Ok(()) => accepted += 1,
            Err(refused) => match refused.error {
                Error::Congested(to) => break assert_eq!(to, slow.local_addr()),
                Error::Full { .. } => drop(left.wait_writable(Duration::from_millis(50))),
                other => panic!("{other}"),
            },
        }
        assert!(!timeout.is_over(), "{accepted} messages, and no congestion");
    }
    left.send(quick.local_addr(), (vec![3], 0), 0, Mode::Lend).expect("is not congested");
    assert_eq!(receive(&quick).payload, [3]);
    for _ in 0..accepted {
        assert_eq!(receive(&slow).payload, [2; 20_000]);
    }
    while let Err(refused) = left.send(slow.local_addr(), (vec![4], 0), 0, Mode::Lend) {
        assert!(refused.error.is_temporary() && !timeout.is_over(), "{}", refused.error);
        left.wait_readable(Duration::from_millis(50)).expect("waits");
    }
    assert_eq!(receive(&slow).payload, [4]);
    assert!(left.statistics().refused_congested > 0);
    assert_eq!(complete(&left, accepted + 2).len(), accepted + 2);
}

#[test]
fn the_limit_on_locked_memory_is_named_and_copying_is_left() {
    const REGISTERED: usize = 8 << 10;
    const LIMIT: u64 = 136 << 10;
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    let limit = Some(LIMIT);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("may lower");
    // SAFETY: a plain system call without memory; it gives up CAP_IPC_LOCK with root.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    let driver = Driver::new().expect("a ring");
    let region = Region::anonymous(REGISTERED).expect("memory");
    driver.register(&region).expect("is within the limit");
    // While nothing is acknowledged, what is lent adds up.
    let [first, second] = [90_000, 60_000];
    left.send(right.local_addr(), (vec![1; 20_000], 0), 0, Mode::Copy).expect("is accepted");
    receive(&right);
    complete(&left, 1);
    left.send(right.local_addr(), (vec![1; first], 0), 0, Mode::Lend).expect("is within the limit");
    complete(&left, 1);
    let limit = Some(16 << 10);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("may lower");
    let error = refused(&left, &right, second, Mode::Lend);
    for told in
        ["ulimit -l", "CAP_IPC_LOCK", "with a copy", "60000", "this process has 8192", "16384"]
    {
        assert!(error.to_string().contains(told), "{error}");
    }
    let Error::Memlock { need, locked, limit } = error else { panic!("{error:?}") };
    assert_eq!((need, locked, limit), (second, REGISTERED as u64, 16_384));
    left.send(right.local_addr(), (vec![1; second], 0), 0, Mode::Copy).expect("needs no lock");
    assert_eq!([receive(&right), receive(&right)].map(|it| it.payload.len()), [first, second]);
}

#[test]
fn what_is_refused_keeps_no_memory_locked() {
    const LIMIT: u64 = 1 << 20;
    let peers = Peers::new();
    let [left, right] = [peers.left(4000), peers.right(4000)];
    let limit = Some(LIMIT);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).expect("may lower");
    peers.set_link("down");
    // SAFETY: a plain system call without memory; it gives up CAP_IPC_LOCK with root.
    assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
    let mut full = 0;
    for number in 0..200 {
        match left.send(right.local_addr(), (vec![1; 50_000], number), 0, Mode::Lend) {
            Ok(()) => assert!(number < 10, "the send buffer has an end"),
            Err(refused) => match refused.error {
                Error::Full { .. } => full += 1,
                other => panic!("after {full} refusals: {other}"),
            },
        }
    }
    assert!(full > 100);
}
