//! A crowd of peers that acknowledge and never read, while others are served. Over veth, since loopback copies. Needs
//! root, or a kernel that lets users make namespaces.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use handoff::tokio::{TcpListener, run_with};
use handoff::{Buffer, Driver, Error, Frozen, Socket};
use handoff_testbed::Pair;
use socket2::{Domain, Socket as Plain, Type};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::tokio_runtime::{LONG, builders};
use crate::traffic::{pattern, skip, within};

const CROWD: usize = 200;
const HONEST: usize = 10;
const ANSWER: usize = 256 << 10;
/// Fewer than the crowd: who kept operations would stop the server.
const IN_FLIGHT: usize = 64;
/// How long the server lets a peer take nothing.
const STALL: Duration = Duration::from_millis(200);
const STEP: Duration = Duration::from_millis(5);

/// Sends the answer. Its peer does not decide how long that takes.
async fn answer(driver: Driver, socket: Socket, mut bytes: Frozen) {
    let sending = loop {
        match socket.send(bytes) {
            Ok(sending) => break sending,
            Err(refused) => {
                assert!(matches!(refused.error, Error::Busy { .. }), "{}", refused.error);
                bytes = refused.buffer;
                driver.sleep(STEP).await.unwrap();
            }
        }
    };
    if driver.timeout(STALL, sending.into_future()).await.is_err() {
        socket.abort();
    }
}

async fn serve(driver: Driver, mut listener: TcpListener, bytes: Frozen) {
    loop {
        let (stream, _peer) = listener.accept().await.unwrap();
        spawn_local(answer(driver.clone(), stream.into_socket(), bytes.clone()));
    }
}

/// A peer with little room, which reads nothing.
fn stranger(to: SocketAddr) -> TcpStream {
    let socket = Plain::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Asks until it has the whole answer: a busy machine may be slower than the server's patience.
fn assert_answered(by: SocketAddr) {
    loop {
        let mut got = Vec::new();
        match TcpStream::connect(by).unwrap().read_to_end(&mut got) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            read => {
                read.unwrap();
                assert!(got == pattern(7, ANSWER), "{} bytes", got.len());
                return;
            }
        }
    }
}

#[test]
fn others_are_served_among_peers_that_take_nothing() {
    let pair = match Pair::new(9000) {
        Ok(pair) => pair,
        Err(error) => {
            let test = "crowd::others_are_served_among_peers_that_take_nothing";
            return skip(test, &error.to_string());
        }
    };
    within(LONG, move || {
        for builder in builders() {
            let Pair { left, right, .. } = &pair;
            let (tell, told) = oneshot::channel();
            let server = (right.v4(), 0).into();
            let work = async |driver: Driver| {
                let listener = TcpListener::bind(&driver, server).unwrap();
                let server = listener.local_addr().unwrap();
                let bytes = Buffer::from(pattern(7, ANSWER)).freeze();
                let serving = spawn_local(serve(driver.clone(), listener, bytes));
                let peers = move || {
                    let crowd: Vec<_> = (0..CROWD).map(|_| stranger(server)).collect();
                    (0..HONEST).for_each(|_| assert_answered(server));
                    let _ = tell.send(crowd);
                };
                let peers = left.namespace().spawn("peers", peers).unwrap();
                let crowd = told.await.unwrap();
                peers.join().unwrap();
                while driver.in_flight() > 1 {
                    driver.sleep(STEP).await.unwrap();
                }
                serving.abort();
                crowd
            };
            let serves = || run_with(builder.in_flight(IN_FLIGHT), work);
            let crowd = right.namespace().run(serves).unwrap().unwrap();
            for mut stranger in crowd {
                let ended = stranger.read_to_end(&mut Vec::new());
                assert_eq!(ended.unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        }
    });
}
