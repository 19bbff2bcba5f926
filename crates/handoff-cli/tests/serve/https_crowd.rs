//! Crowds that come to a server of HTTPS and stop at a stage of their handshake or behind it, while a client that means
//! well is answered.

use std::io::Write as _;
use std::net::TcpStream;

use rustix::process::Signal;

use crate::crowd::{KEPT_DESCRIPTORS, KIB_OF_A_STRANGER, KIB_OF_THE_CLIENT};
use crate::https::Site;
use crate::session::Server;
use crate::strangers::{CROWD, Crowd, KINDS, Kind, Protocol, Visited};

/// What rustls keeps of a connection, the largest record that came and the one that goes, and what is read of a file for it.
const KIB_OF_TLS: u64 = 64 + 3 * 16 + 256;

/// Where a stranger stops.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Says half of what begins a handshake.
    HalfHello,
    /// Says it, and takes no answer.
    Hello,
    /// Is silent behind the handshake.
    ShookHands,
    /// Asks for more than a host takes, and reads nothing.
    Asked,
}

const STAGES: [Stage; 4] = [Stage::HalfHello, Stage::Hello, Stage::ShookHands, Stage::Asked];

/// A record with the largest length, or a message with one.
fn huge(number: usize) -> Vec<u8> {
    let head: &[u8] = match number % 3 {
        0 => &[22, 3, 1, 0xff, 0xff],
        1 => &[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff],
        _ => &[23, 3, 3, 0x48, 0],
    };
    [head, &[0; 1 << 14]].concat()
}

fn stranger(site: &Site, stage: Stage, mut stream: TcpStream) -> TcpStream {
    let hello = site.client_hello();
    match stage {
        Stage::HalfHello => stream.write_all(&hello[..hello.len() / 2]).expect("sends"),
        Stage::Hello => stream.write_all(&hello).expect("sends"),
        Stage::ShookHands | Stage::Asked => {
            let mut secure = site.secure(stream);
            secure.flush().expect("shakes hands");
            if let Stage::Asked = stage {
                secure.write_all(b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n").expect("sends");
            }
            return secure.sock;
        }
    }
    stream
}

/// The end of a server among strangers: others were answered, and it has said and kept little.
fn serves_among(
    site: &Site,
    kind: impl std::fmt::Debug + Copy,
    crowd: impl FnOnce(&Server) -> Crowd,
) {
    // Whoever waited for a stranger would wait for longer than this test.
    let serving = site.serve(&["--max-per-client", "200", "--idle", "600", "--grace", "0.2"]);
    let visited = Visited::new(serving.pid());
    let mut crowd = crowd(&serving);
    crowd.go_on_beside(|| (0..2).for_each(|_| site.assert_answered(&serving)));
    visited.assert_kept_memory(kind, KIB_OF_A_STRANGER + KIB_OF_TLS, KIB_OF_THE_CLIENT);
    drop(crowd);
    visited.gives_back_descriptors(None, KEPT_DESCRIPTORS);
    serving.signal(Signal::TERM);
    let ended = serving.end();
    assert_eq!(ended.json()["connections"], CROWD + 2, "{kind:?}: {ended:?}");
    // It listens, has no kernel to cipher, and is stopped.
    visited.assert_said_little(&ended.stderr, 3);
}

fn protocol(site: &Site) -> Protocol {
    // As long as the tests run.
    Protocol { begin: site.client_hello().leak(), huge, asks: |_| Vec::new() }
}

#[test]
fn a_client_is_answered_among_strangers_of_each_stage_of_a_handshake() {
    let site = Site::new();
    let protocol = protocol(&site);
    for stage in STAGES {
        serves_among(&site, stage, |serving| {
            let connect = |_| stranger(&site, stage, serving.connect_from([127, 0, 0, 2]));
            Crowd::new(Kind::Silent, protocol, connect)
        });
    }
}

#[test]
fn a_client_is_answered_among_strangers_who_speak_no_tls() {
    let site = Site::new();
    let protocol = protocol(&site);
    for kind in KINDS {
        serves_among(&site, kind, |serving| {
            let crowd = Crowd::new(kind, protocol, |_| serving.connect_from([127, 0, 0, 2]));
            serving.await_all();
            crowd
        });
    }
}

#[test]
fn strangers_who_do_not_end_their_handshake_are_ended() {
    let site = Site::new();
    let protocol = protocol(&site);
    for stage in [None, Some(Stage::HalfHello), Some(Stage::Hello), Some(Stage::ShookHands)] {
        let serving = site.serve(&["--idle", "1"]);
        let visited = Visited::new(serving.pid());
        let connect = |_| {
            let stream = serving.connect_from([127, 0, 0, 2]);
            match stage {
                Some(stage) => stranger(&site, stage, stream),
                None => stream,
            }
        };
        let mut crowd = Crowd::new(Kind::Silent, protocol, connect);
        visited.gives_back_descriptors(Some(&mut crowd), KEPT_DESCRIPTORS);
        crowd.all_end();
    }
}
