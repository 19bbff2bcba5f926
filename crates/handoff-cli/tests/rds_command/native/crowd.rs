//! Crowds of connections that mean no good, while a peer that does is answered.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::process::Command;

use handoff_lab::topology::{Pair, PairEnd};
use handoff_rds::wire::{Header, PORT};
use rustix::net::{AddressFamily, SocketType};

use crate::session::{Answering, rds, report};

const CROWD: usize = 200;
const KINDS: [&str; 5] = ["silent", "a byte at a time", "random", "huge lengths", "half-open"];
/// Memory of the whole process, in KiB.
const MOST_MEMORY: u64 = 128 << 10;

/// The most memory that a process has had, in KiB.
fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a figure");
    most.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Another address at this end, so much larger.
fn add_address(end: &PairEnd, more: u32) -> Ipv4Addr {
    let address = Ipv4Addr::from(u32::from(end.v4()) + more);
    let mut add = Command::new("ip");
    add.args(["addr", "add", &format!("{address}/24"), "dev", end.device()]);
    assert!(end.namespace().attach(&mut add).status().expect("starts").success());
    address
}

/// A connection from this address.
fn connect(end: &PairEnd, from: Ipv4Addr, to: Ipv4Addr) -> TcpStream {
    let connected = end.namespace().run(|| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(from, 0))?;
        rustix::net::connect(&socket, &SocketAddrV4::new(to, PORT))?;
        Ok::<_, rustix::io::Errno>(TcpStream::from(socket))
    });
    connected.expect("enters").expect("connects")
}

fn act(kind: &str, stream: &mut TcpStream, number: usize) {
    // Who is turned away has its connection ended at any time.
    let _ = match kind {
        "a byte at a time" => stream.write_all(&[0]),
        "random" => {
            let byte = |at: usize| (at * 131 + number * 17 + at / 7) as u8;
            stream.write_all(&(0..1_000).map(byte).collect::<Vec<_>>())
        }
        "huge lengths" => {
            let header = Header { sequence: 1, len: 1 << 20, source: 9, ..Header::default() };
            stream.write_all(&header.to_bytes())
        }
        "half-open" => stream.shutdown(Shutdown::Write),
        _ => Ok(()),
    };
}

#[test]
fn a_peer_is_answered_among_strangers() {
    let pair = Pair::new(9_000).expect("namespaces and veth");
    let own = pair.left.v4().to_string();
    // Of two addresses the smaller one connects; others are turned away at once.
    let (from, peer) = (add_address(&pair.left, 50), add_address(&pair.right, 100));
    for kind in KINDS {
        let answering = Answering::at(&pair.right, peer, &["--engine", "own"]);
        let mut crowd: Vec<_> = (0..CROWD)
            .map(|number| {
                let mut stream = connect(&pair.left, from, peer);
                act(kind, &mut stream, number);
                stream
            })
            .collect();
        let asks = ["ping", &own, &peer.to_string(), "-c", "3", "--engine", "own", "--json"];
        let answers = report(&rds(&pair.left, &asks));
        assert_eq!((&answers["lost"], crowd.len()), (&0.into(), CROWD), "{kind}: {answers}");
        crowd.iter_mut().filter(|_| kind == "a byte at a time").for_each(|stream| {
            let _ = stream.write_all(&[0]);
        });
        let load = ["stress", &own, "-s", &peer.to_string(), "--engine", "own", "--json"];
        let load = report(&rds(&pair.left, &[&load[..], &["--time", "1", "-q", "64K"]].concat()));
        assert!(load["messages"].as_u64() > Some(0), "{kind}: {load}");
        let memory = most_memory(answering.pid());
        assert!(memory < MOST_MEMORY, "{kind}: {memory} KiB");
        answering.stop();
    }
}
