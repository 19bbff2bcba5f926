//! Bodies lent to software NICs: nothing of them is copied.

use std::net::{SocketAddr, TcpListener, TcpStream};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::routing::get;
use handoff::{Driver, RingUse};
use handoff_http::Limits;
use handoff_testbed::Pair;

use crate::serving::{Client, Serving, content};

/// Bytes of the bodies.
const LENGTHS: [usize; 3] = [64 << 10, 1 << 20, 3_000_001];
/// More than a socket needs to learn what its sends cost.
const ROUNDS: usize = 20;

#[test]
fn bodies_leave_without_a_copy() {
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let bodies = LENGTHS.map(|len| Bytes::from(content(len)));
    let router = Router::new()
        .route("/{which}", get(async move |Path(which): Path<usize>| bodies[which].clone()));
    let bind = || TcpListener::bind(SocketAddr::from((pair.right.v4(), 0)));
    let listener = pair.right.namespace().run(bind).expect("enters").expect("binds");
    let driver = Driver::builder().ring(RingUse::Require);
    let serving = Serving::start_at(listener, driver, Limits::default(), || router);
    let connect = || TcpStream::connect(serving.address);
    let mut client =
        Client::of(pair.left.namespace().run(connect).expect("enters").expect("connects"));
    for round in 0..ROUNDS {
        for (which, len) in LENGTHS.into_iter().enumerate() {
            client.send(format!("GET /{which} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
            let answer = client.answer();
            assert_eq!((answer.status, answer.body == content(len)), (200, true), "{round}: {len}");
        }
    }
    drop(client);
    let served = serving.stop();
    let bytes = (ROUNDS * LENGTHS.iter().sum::<usize>()) as u64;
    let heads = served.sent.total() - bytes;
    assert!(heads < (ROUNDS * LENGTHS.len() * 300) as u64, "{served:?}");
    assert_eq!((served.sent.zero_copy, served.sent.copied), (bytes, heads), "{served:?}");
}
