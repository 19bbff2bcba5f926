//! Payload lent from receive queues: over software NICs nothing is copied, also for many at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use handoff_testbed::{Pair, load};

use crate::ends::assert_tally_when_cut_off;
use crate::session::Relay;
use crate::session::{bytes_at, command, echo, serve_on, there_and_back};

/// A relay on the right host of a pair, between a client and a target on the left one that serves with
/// `serve`; and the client's connection.
fn between(
    pair: &Pair,
    options: &[&str],
    serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static,
) -> (Relay, TcpStream) {
    let (inside, outside) = (pair.right.namespace(), pair.left.namespace());
    let target: SocketAddr = (pair.left.v4(), 4_001).into();
    let listener = outside.run(|| TcpListener::bind(target)).expect("enters").expect("binds");
    serve_on(&listener, serve);
    let mut relay = command(&format!("{}:4000", pair.right.v4()), target, options);
    inside.attach(&mut relay);
    let relay = Relay::start_as(relay);
    let address = relay.address;
    let stream = outside.run(|| TcpStream::connect(address)).expect("enters").expect("connects");
    (relay, stream)
}

#[test]
fn nothing_is_copied_between_software_nics() {
    const LEN: usize = (2 << 20) + 777;
    load("getbuf", &[]).expect("the lab's kernel has it");
    // Client -- relay and target, which are on one host, so that its side of the target is copied.
    let pair = Pair::wire(1_500).expect("a pair of NICs");
    let options = ["--engine", "get-buf", "--connections", "1"];
    let (relay, stream) = between(&pair, &options, |mut stream| {
        let mut back = stream.try_clone().expect("clones");
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Write);
    });
    there_and_back(stream, 0, LEN);
    let report = relay.end().report();
    let all = 2 * LEN as u64;
    let amount = |way: &str, key: &str| report[way][key].as_u64().expect("a number");
    assert_eq!(amount("taken", "zero_copy") + amount("taken", "copied"), all, "{report}");
    // Of short packets the NIC has a part beside the headers, which can't be lent.
    assert!(amount("taken", "copied") < 4_096, "{report}");
    // The kernel's report calls a send copied whose bytes all joined the packet of the one before.
    assert!(amount("given", "zero_copy") > all / 10 * 9, "{report}");
    assert_eq!(report["engines"]["get-buf"], 2, "{report}");
}

/// Where the relay may choose, it finds out that such are cheaper to copy.
#[test]
fn pieces_are_lent_however_small() {
    const LEN: usize = 3_000;
    const TIMES: usize = 40;
    load("getbuf", &[]).expect("the lab's kernel has it");
    let pair = Pair::wire(4_148).expect("a pair of NICs");
    let options = ["--engine", "get-buf", "--connections", "1"];
    let (relay, mut stream) = between(&pair, &options, |mut stream| {
        let mut piece = [0; LEN];
        for number in 0..TIMES {
            stream.read_exact(&mut piece).expect("receives");
            assert!(piece[..] == bytes_at(number, 0, LEN), "piece {number} differs");
            stream.write_all(&piece).expect("answers");
        }
    });
    let mut piece = [0; LEN];
    for number in 0..TIMES {
        stream.write_all(&bytes_at(number, 0, LEN)).expect("sends");
        stream.read_exact(&mut piece).expect("receives");
    }
    drop(stream);
    let report = relay.end().report();
    assert_eq!(report["failed"], 0, "{report}");
    let given = &report["given"];
    assert_eq!((&given["zero_copy"], &given["copied"]), (&(2 * TIMES * LEN).into(), &0.into()));
}

#[test]
fn a_nic_puts_what_clients_send_where_it_stays() {
    const LEN: usize = (2 << 20) + 777;
    load("getbuf", &[]).expect("the lab's kernel has it");
    let pair = Pair::wire(4_148).expect("a pair of NICs");
    // Says how much has come.
    let options = ["--nic", pair.right.device(), "--connections", "1", "--max-connections", "8"];
    let (relay, mut stream) = between(&pair, &options, |mut stream| {
        let mut content = Vec::new();
        stream.read_to_end(&mut content).expect("receives");
        assert!(content == bytes_at(0, 0, LEN), "what arrived differs");
        stream.write_all(&content.len().to_ne_bytes()).expect("answers");
    });
    stream.write_all(&bytes_at(0, 0, LEN)).expect("sends");
    stream.shutdown(std::net::Shutdown::Write).expect("ends");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).expect("receives");
    assert_eq!(usize::from_ne_bytes(answer), LEN);
    drop(stream);
    let report = relay.end().report();
    assert_eq!((&report["bytes_up"], &report["failed"]), (&LEN.into(), &0.into()), "{report}");
    // The short answer is copied.
    let engines = ["memory", "copy"].map(|engine| &report["engines"][engine]);
    assert_eq!(engines, [&1, &1], "{report}");
    assert!(report["taken"]["copied"].as_u64().is_some_and(|it| it < 4_096), "{report}");
}

/// There is one queue, and two rings receive from it.
#[test]
fn threads_share_the_queue_of_a_nic() {
    load("getbuf", &[]).expect("the lab's kernel has it");
    const LEN: usize = (1 << 19) + 777;
    const CONNECTIONS: usize = 24;
    let pair = Pair::wire(4_148).expect("a pair of NICs");
    let connections = CONNECTIONS.to_string();
    let mut options = vec!["--nic", pair.right.device(), "--threads", "2"];
    options.extend(["--connections", &connections, "--max-connections", "24"]);
    let serve = |mut stream: TcpStream| {
        let mut content = Vec::new();
        stream.read_to_end(&mut content).expect("receives");
        let number = content.first().copied().map(usize::from).expect("something");
        assert!(content[1..] == bytes_at(number, 0, LEN), "what arrived differs");
        stream.write_all(&content.len().to_ne_bytes()).expect("answers");
    };
    let (relay, first) = between(&pair, &options, serve);
    let address = relay.address;
    let connect = || pair.left.namespace().run(|| TcpStream::connect(address));
    let others = (1..CONNECTIONS).map(|_| connect().expect("enters").expect("connects"));
    let streams: Vec<_> = std::iter::once(first).chain(others).collect();
    std::thread::scope(|scope| {
        for (number, mut stream) in streams.into_iter().enumerate() {
            scope.spawn(move || {
                stream.write_all(&[number as u8]).expect("sends");
                stream.write_all(&bytes_at(number, 0, LEN)).expect("sends");
                stream.shutdown(std::net::Shutdown::Write).expect("ends");
                let mut answer = [0; 8];
                stream.read_exact(&mut answer).expect("receives");
                assert_eq!(usize::from_ne_bytes(answer), LEN + 1);
            });
        }
    });
    let report = relay.end().report();
    let all = CONNECTIONS * (LEN + 1);
    assert_eq!((&report["bytes_up"], &report["failed"]), (&all.into(), &0.into()), "{report}");
    let threads = report["threads"].as_array().expect("a list");
    // The kernel spreads them by a hash of their ports.
    assert!(threads.len() == 2 && threads.iter().all(|thread| *thread != 0), "{report}");
    let nic = &report["nic"];
    assert_eq!((&nic["bytes"], &nic["copied"]), (&all.into(), &0.into()), "{report}");
    assert_eq!(report["taken"]["unknown"], 0, "{report}");
}

#[test]
fn hundreds_of_connections_are_served_at_once() {
    let soak = std::env::var_os("HANDOFF_SOAK").is_some();
    let count: usize = if soak { 1_000 } else { 300 };
    load("getbuf", &[]).expect("the lab's kernel has it");
    // Each takes four descriptors of this process.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).expect("raises");
    let connections = count.to_string();
    let relay = Relay::start(echo(), &["--engine", "get-buf", "--connections", &connections]);
    let streams: Vec<_> = (0..count).map(|_| relay.connect()).collect();
    for (number, stream) in streams.into_iter().enumerate() {
        there_and_back(stream, number, 3_000);
    }
    let report = relay.end().report();
    assert_eq!((&report["connections"], &report["failed"]), (&count.into(), &0.into()), "{report}");
    assert_eq!(report["bytes_down"], 3_000 * count, "{report}");
}

#[test]
fn bytes_are_in_the_tally_when_the_connection_is_cut_off() {
    load("getbuf", &[]).expect("the lab's kernel has it");
    // One alone, and after the first piece was copied.
    ["get-buf", "auto"].into_iter().for_each(assert_tally_when_cut_off);
}
