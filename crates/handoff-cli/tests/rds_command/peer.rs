//! A peer of `handoff cp` that the test plays, by our own engine.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::thread::JoinHandle;

use futures_lite::future::or;
use futures_util::future::{Either, select};
use handoff::{Buffer, Driver, Executor};
use handoff_cp::wire::{Decoder, Event as WireEvent, Frame, HELLO_LEN, Hello};
use handoff_rds::Received;
use handoff_rds::own::{Engine, Socket};
use handoff_rds::protocol::{Event, Limits};
use handoff_testbed::PairEnd;
use handoff_testbed::running::TIMEOUT;

/// The port that copies are received at.
pub(crate) const PORT: u16 = 4000;

pub(crate) struct Peer {
    engine: Engine,
    socket: Socket,
}

/// Plays a peer at an address of this end.
pub(crate) fn play<T: Send + 'static>(
    end: &PairEnd,
    own: Ipv4Addr,
    part: impl AsyncFnOnce(&Peer) -> T + Send + 'static,
) -> JoinHandle<T> {
    let run = move || {
        let driver = Driver::new().expect("a driver");
        let engine = Engine::new(&driver, own.into(), Limits::default(), handoff::Engine::Copy);
        let engine = engine.expect("an engine");
        let socket = engine.bind(PORT).expect("free");
        let serving = engine.run();
        let peer = Peer { engine, socket };
        let part = driver.timeout(TIMEOUT, part(&peer));
        let played = Executor::new(&driver).run(async {
            match select(pin!(part), pin!(serving)).await {
                Either::Left((played, _)) => played.expect("in time"),
                Either::Right((error, _)) => panic!("{error}"),
            }
        });
        played.expect("turns")
    };
    end.namespace().spawn("peer", run).expect("starts")
}

impl Peer {
    /// Says this, until it is acknowledged.
    pub(crate) async fn say(&self, to: SocketAddr, bytes: &[u8]) {
        self.say_again(to, bytes, 1).await;
    }

    /// Says this so many times, until all are acknowledged.
    pub(crate) async fn say_again(&self, to: SocketAddr, bytes: &[u8], times: usize) {
        for _ in 0..times {
            let message = Buffer::from(bytes.to_vec());
            self.socket.send_when_possible(to, message, 0).await.expect("can be sent");
        }
        let mut acknowledged = Vec::new();
        while acknowledged.len() < times {
            self.socket.completions(times, &mut acknowledged).await;
        }
    }

    /// The next message; none if the other side has ended.
    pub(crate) async fn hear(&self) -> Option<Received> {
        loop {
            if let Some(received) = self.socket.try_receive() {
                return Some(received);
            }
            while let Some(event) = self.engine.event() {
                if let Event::Down(_) = event {
                    return None;
                }
            }
            self.engine.changed().await;
        }
    }

    /// The next hello, and who says it.
    pub(crate) async fn greeted(&self) -> (SocketAddr, Hello) {
        loop {
            let received = self.hear().await.expect("says hello");
            if let Some(hello) = hello(&received.payload) {
                return (received.from, hello);
            }
        }
    }

    /// The receiver's answer, or why the other side gives up.
    pub(crate) async fn ending(&self) -> Frame {
        loop {
            let received = self.hear().await.expect("says how it ended");
            if let Ok((_, Some(WireEvent::Frame(frame)))) = Decoder::new().next(&received.payload)
                && matches!(frame, Frame::Answer { .. } | Frame::Abort { .. })
            {
                return frame;
            }
        }
    }

    /// Says nothing but this hello, again and again, until the other side says how it ended.
    pub(crate) async fn only_greets(&self, to: SocketAddr, hello: &Hello) -> Frame {
        let greeting = async {
            loop {
                self.say(to, &hello.encode()).await;
            }
        };
        or(self.ending(), greeting).await
    }
}

fn hello(message: &[u8]) -> Option<Hello> {
    Hello::decode(<&[u8; HELLO_LEN]>::try_from(message).ok()?).ok()
}

/// The hello of somebody who sends so many bytes.
pub(crate) fn sends(bytes: usize) -> Hello {
    Hello {
        sends: true,
        verifies: true,
        streams: 1,
        stream: 0,
        transfer: 7,
        length: Some(bytes as u64),
        sparse: false,
        preserves: false,
        hears_work: false,
    }
}
