//! A peer that connects again while it is not known that its connection has ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;

use futures_lite::future::yield_now;
use handoff::Engine as Sending;

use crate::hosts::{Buffers, host, pair, pattern, receive_all, until};
use crate::peer::{Peer, SOCKET};

/// Bytes of a message, so few that it is copied.
const LEN: usize = 10;

/// What TCP has acknowledged, the peer does not send again.
#[test]
fn what_came_with_an_acknowledgement_is_read_before_the_connection_ends() {
    let pair = pair();
    let (ready, is_there) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_ready, message_is_there) = (ready.clone(), is_there.clone());
    let (go_on, wait) = mpsc::channel();
    let (standing, stands) = mpsc::channel();
    let to = SocketAddr::from((pair.left.v4(), SOCKET));
    let engine = host(&pair.right, pair.right.v4().into(), Sending::Auto, move |own| async move {
        let socket = own.engine.bind(SOCKET).expect("is free");
        is_ready.store(true, Relaxed);
        let message = Buffers::new(1, LEN).fill(0, LEN).expect("has one");
        socket.send_when_possible(to, message, 0).await.expect("is taken");
        while !message_is_there.load(Relaxed) {
            yield_now().await;
        }
        // The driver is not turned meanwhile, so that it is told of all at once.
        standing.send(()).expect("is waited for");
        wait.recv().expect("is told");
        receive_all(&socket, [LEN; 2].into_iter()).await;
    });
    until("an engine", || ready.load(Relaxed));
    let mut first = Peer::connect(&pair, 0);
    first.send_map();
    first.await_message();
    is_there.store(true, Relaxed);
    stands.recv().expect("stands");
    let mut second = Peer::connect(&pair, first.sequence + 1);
    first.send(&pattern(0, LEN));
    go_on.send(()).expect("waits");
    second.send_map();
    second.send(&pattern(1, LEN));
    engine.join().expect("receives in order");
}
