//! Cables that are pulled, ports that are taken, receivers that do not read, peers that talk rubbish.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use handoff::{Driver, Engine as Sending};
use handoff_rds::own::Engine;
use handoff_rds::protocol::{Event, Limits};
use handoff_rds::wire::PORT;
use handoff_rds::{End, Error};
use handoff_testbed::{Pair, PairEnd};

use crate::hosts::{Buffers, host, pair, receive_all, send_all, until};

/// Messages under way, and the longest of them.
const SHORT: (usize, usize) = (64, 3003);

fn run(end: &PairEnd, arguments: &[&str]) {
    let mut command = Command::new(arguments[0]);
    let output =
        end.namespace().attach(command.args(&arguments[1..])).output().expect("is installed");
    assert!(output.status.success(), "{output:?}");
}

fn port(end: &PairEnd, port: u16) -> SocketAddr {
    (end.v4(), port).into()
}

/// Eight sockets a side, each with as many messages under way as it has buffers. The last message of each waits for
/// so many kills.
fn stress(
    pair: &Pair,
    count: usize,
    (buffers, longest): (usize, usize),
    (kills, wanted): (Arc<AtomicUsize>, usize),
) -> [std::thread::JoinHandle<()>; 2] {
    const PORTS: std::ops::Range<u16> = 5000..5008;
    let sizes =
        move || (0..count).map(move |number| 4 + number * (longest * 5 / 8) % (longest - 3));
    // An acknowledgement may be lost with its connection. Then the sender asks again, and somebody has to answer.
    let all_sent = Arc::new(AtomicBool::new(false));
    let is_all_sent = all_sent.clone();
    let right = host(&pair.right, pair.right.v4().into(), Sending::Auto, move |own| async move {
        let tasks = PORTS.map(|port| {
            let socket = own.engine.bind(port).expect("is free");
            async move {
                receive_all(&socket, sizes()).await;
                receive_all(&socket, sizes().take(1)).await;
            }
        });
        futures_util::future::join_all(tasks).await;
        while !is_all_sent.load(Relaxed) {
            own.driver.sleep(Duration::from_millis(10)).await.expect("the driver is there");
        }
    });
    let peer = pair.right.clone();
    let left = host(&pair.left, pair.left.v4().into(), Sending::Auto, move |own| async move {
        let tasks = PORTS.map(|number| {
            let socket = own.engine.bind(number).expect("is free");
            let to = port(&peer, number);
            let (driver, kills) = (own.driver.clone(), kills.clone());
            async move {
                let buffers = &mut Buffers::new(buffers, longest);
                send_all(&socket, to, buffers, sizes()).await;
                while kills.load(Relaxed) < wanted {
                    driver.sleep(Duration::from_millis(1)).await.expect("the driver is there");
                }
                send_all(&socket, to, buffers, sizes().take(1)).await;
            }
        });
        futures_util::future::join_all(tasks).await;
        all_sent.store(true, Relaxed);
    });
    [left, right]
}

#[test]
fn eight_sockets_with_64_messages_each() {
    let pair = pair();
    stress(&pair, 1000, SHORT, Default::default())
        .into_iter()
        .for_each(|thread| thread.join().expect("is done"));
}

fn killed_under(load: (usize, usize), count: usize) {
    let pair = pair();
    let kills = Arc::new(AtomicUsize::new(0));
    let threads = stress(&pair, count, load, (kills.clone(), 2));
    // Needs a kernel with INET_DIAG_DESTROY, which `ss` asks.
    while !threads.iter().all(|thread| thread.is_finished()) && kills.load(Relaxed) < 20 {
        run(&pair.left, &["ss", "-K", "-t", "dport", "=", &PORT.to_string()]);
        kills.fetch_add(1, Relaxed);
    }
    threads.into_iter().for_each(|thread| thread.join().expect("is done"));
}

#[test]
fn connections_that_are_killed_lose_double_and_reorder_nothing() {
    killed_under(SHORT, 3000);
}

#[test]
fn so_do_those_that_are_killed_in_the_midst_of_long_messages() {
    killed_under((3, 900_001), 60);
}

#[test]
fn a_taken_port_is_told_and_only_peers_that_connect_are_refused() {
    let pair = pair();
    let [left, right] = [pair.left.v4(), pair.right.v4()];
    let taken = pair.right.namespace().run(|| TcpListener::bind((right, PORT)));
    let _taken = taken.expect("enters").expect("is free");
    let told = pair.right.namespace().run(|| {
        let driver = Driver::new().expect("a driver");
        let engine = Engine::new(&driver, right.into(), Limits::default(), Sending::Auto);
        let engine = engine.expect("can still connect");
        let reason = engine.not_listening().expect("is not").to_owned();
        let socket = engine.bind(4000).expect("is free");
        assert!(matches!(engine.bind(4000), Err(Error::PortInUse(4000))));
        let buffer = handoff::Region::anonymous(4096).expect("memory").take(10).expect("room");
        let refused = socket.send((left, 4000).into(), buffer, 1).expect_err("cannot be reached");
        assert_eq!(refused.payload.len(), 10);
        (reason, refused.error.to_string())
    });
    let (reason, error) = told.expect("enters");
    assert!(reason.contains("16385") && reason.contains("rds_tcp"), "{reason}");
    assert!(error.contains("smaller address") && error.contains(&reason), "{error}");
}

#[test]
fn a_port_that_becomes_free_is_listened_on() {
    let pair = pair();
    let [left, right] = [pair.left.v4(), pair.right.v4()];
    let taken = pair.right.namespace().run(|| TcpListener::bind((right, PORT)));
    let taken = taken.expect("enters").expect("is free");
    let sizes = || std::iter::once(3000);
    let receiving = host(&pair.right, right.into(), Sending::Auto, move |own| async move {
        assert!(own.engine.not_listening().is_some(), "the port is taken");
        let socket = own.engine.bind(4000).expect("is free");
        drop(taken);
        while own.engine.not_listening().is_some() {
            own.engine.changed().await;
        }
        receive_all(&socket, sizes()).await;
    });
    let sending = host(&pair.left, left.into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(4000).expect("is free");
        send_all(&socket, (right, 4000).into(), &mut Buffers::new(1, 4096), sizes()).await;
    });
    receiving.join().expect("is done");
    sending.join().expect("is done");
}

#[test]
fn what_is_sent_to_nobody_comes_back_when_it_is_cancelled() {
    let pair = pair();
    let to = port(&pair.right, 4000);
    let done = host(&pair.left, pair.left.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(4000).expect("is free");
        let region = &mut handoff::Region::anonymous(8 << 20).expect("memory");
        let mut accepted = 0;
        let full = loop {
            let buffer = region.take(500_000).expect("room");
            match socket.send(to, buffer, accepted) {
                Ok(()) => accepted += 1,
                Err(refused) => break refused.error,
            }
        };
        assert!(matches!(full, Error::Full { .. }), "{full}");
        let mut batch = Vec::new();
        assert_eq!(socket.try_completions(9, &mut batch), 0);
        socket.cancel(Some(to.ip()));
        while batch.len() < accepted as usize {
            socket.completions(9, &mut batch).await;
        }
        assert!(batch.iter().all(|back| back.end == End::Cancelled));
        let long = handoff::Region::anonymous(2 << 20).expect("memory").take(2 << 20);
        let refused = socket.send(to, long.expect("room"), 0).expect_err("is too long");
        assert!(matches!(refused.error, Error::MessageTooLong { limit: 1_048_576, .. }));
    });
    done.join().expect("is done");
}

#[test]
fn who_talks_rubbish_is_hung_up_on_and_others_are_served() {
    let pair = pair();
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = ready.clone();
    let right = host(&pair.right, pair.right.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(4000).expect("is free");
        is_ready.store(true, Relaxed);
        receive_all(&socket, [10].into_iter()).await;
        assert_eq!(own.engine.statistics().violations, 1);
        assert!(matches!(own.engine.event(), Some(Event::Up(_))));
        own.engine.statistics().held_bytes
    });
    until("an engine", || ready.load(Relaxed));
    let to = (pair.right.v4(), PORT);
    let rubbish = pair.left.namespace().run(|| TcpStream::connect(to)).expect("enters");
    let mut rubbish = rubbish.expect("connects");
    // As a header this announces a message of 4 GiB.
    rubbish.write_all(&[0xff; 48]).expect("is taken");
    // It is hung up on, with a reset as bytes are unread or not.
    let mut all = Vec::new();
    drop(rubbish.read_to_end(&mut all));
    let to = port(&pair.right, 4000);
    let left = host(&pair.left, pair.left.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(4000).expect("is free");
        send_all(&socket, to, &mut Buffers::new(1, 4096), [10].into_iter()).await;
    });
    left.join().expect("is served");
    assert_eq!(right.join().expect("serves"), 0);
}
