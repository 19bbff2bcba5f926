//! Tests on real namespaces. Those that need root (or user namespaces) say so in their names and
//! skip elsewhere.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::error::{TopologyError, asked};
use crate::topology_or_skip;

fn devices() -> Vec<String> {
    let list = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut names: Vec<String> = list
        .lines()
        .skip(2)
        .map(|line| line.split(':').next().unwrap().trim().to_owned())
        .collect();
    names.sort();
    names
}

/// A datagram socket at this address of an end, which does not wait for ever.
fn datagrams(end: &PairEnd, address: impl Into<IpAddr>) -> UdpSocket {
    let address = (address.into(), 0);
    let socket = end.namespace().run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    socket
}

fn counter(device: &str, name: &str) -> u64 {
    // The counters of /proc/net/dev: 8 of reception, then 8 of transmission.
    let list = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = list.lines().find(|line| line.trim_start().starts_with(device)).unwrap();
    let column = match name {
        "rx_dropped" => 3,
        "tx_packets" => 9,
        other => panic!("no column for {other}"),
    };
    line.split(':').nth(1).unwrap().split_whitespace().nth(column).unwrap().parse().unwrap()
}

#[test]
fn needs_root_namespace_holds_only_loopback_and_the_thread_comes_back() {
    let before = devices();
    let namespace = topology_or_skip!(Namespace::new());
    let guard = namespace.enter_thread().unwrap();
    // Some kernels put fall-back tunnel devices into every new namespace.
    assert!(devices().contains(&"lo".to_owned()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    TcpStream::connect(address).expect("loopback is up");
    drop(guard);
    assert_eq!(devices(), before);
    // Not from here, where others may listen.
    let third = Namespace::new().unwrap();
    let connected = third.run(|| TcpStream::connect(address)).unwrap();
    connected.expect_err("the listener is in the other namespace");
}

#[test]
fn needs_root_a_panic_inside_leaves_the_namespace() {
    let namespace = topology_or_skip!(Namespace::new());
    let own = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let result = std::panic::catch_unwind(|| namespace.run(|| panic!("expected")));
    assert!(result.is_err());
    assert_eq!(fs::read_link("/proc/thread-self/ns/net").unwrap(), own);
}

#[test]
fn needs_root_threads_and_children_start_inside() {
    let namespace = topology_or_skip!(Namespace::new());
    let inside = namespace.run(|| fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
    let of_thread = namespace
        .spawn("inside", || fs::read_link("/proc/thread-self/ns/net").unwrap())
        .unwrap()
        .join()
        .unwrap();
    assert_eq!(of_thread, inside);
    let mut command = Command::new("readlink");
    let output = namespace.attach(command.arg("/proc/self/ns/net")).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), inside.to_str().unwrap());
}

#[test]
fn needs_root_discard_ends_the_largest_datagram_in_one_packet() {
    let sink = topology_or_skip!(Discard::new());
    assert!(["dummy", "ifb"].contains(&sink.kind().to_string().as_str()));
    let _inside = sink.namespace().enter_thread().unwrap();
    let targets = [IpAddr::V4(sink.v4()), IpAddr::V6(sink.v6())];
    for target in targets {
        let any: SocketAddr = match target {
            IpAddr::V4(_) => "0.0.0.0:0".parse().unwrap(),
            IpAddr::V6(_) => "[::]:0".parse().unwrap(),
        };
        let socket = UdpSocket::bind(any).unwrap();
        socket.connect((target, 9)).unwrap();
        // dummy counts dropped packets as sent, ifb as dropped on reception.
        let column = match sink.kind() {
            DiscardKind::Dummy => "tx_packets",
            DiscardKind::Ifb => "rx_dropped",
        };
        let before = counter(sink.device(), column);
        let payload = vec![7; 65_435];
        for _ in 0..100 {
            assert_eq!(socket.send(&payload).unwrap(), payload.len());
        }
        let ended = counter(sink.device(), column) - before;
        // The kernel's own multicast announcements may add a few.
        assert!((100..120).contains(&ended), "{ended} packets for 100 datagrams to {target}");
    }
}

#[test]
fn needs_root_pair_carries_tcp_and_udp_over_both_families() {
    carries_tcp_and_udp(&topology_or_skip!(Pair::new(9_000)));
}

#[test]
fn needs_root_virtio_net_devices_carry_both_and_go_home_as_they_were_found() {
    let settings = || -> Vec<[String; 3]> {
        let of = |device: &String, what| {
            fs::read_to_string(format!("/sys/class/net/{device}/{what}")).unwrap_or_default()
        };
        // The others are the kernel's own, and belong to no machine.
        let has_hardware =
            |name: &String| fs::exists(format!("/sys/class/net/{name}/device")).unwrap();
        let names = devices().into_iter().filter(has_hardware);
        names.map(|name| [of(&name, "mtu"), of(&name, "threaded"), name]).collect()
    };
    // The first loads the driver.
    drop(topology_or_skip!(Pair::virtio(1_500)));
    let found = settings();
    let pair = Pair::virtio(9_000).unwrap();
    carries_tcp_and_udp(&pair);
    let more: Vec<Pair> = std::iter::from_fn(|| Pair::virtio(1_500).ok()).collect();
    assert_eq!(found.len(), 2 * (1 + more.len()), "{found:?}");
    carries_tcp_and_udp(&more[0]);
    assert!(settings().is_empty(), "{:?}", settings());
    let none = Pair::virtio(1_500).unwrap_err();
    assert!(none.is_unavailable() && none.to_string().contains("--virtio-net"), "{none}");
    // Its devices are there until the last clone goes.
    let left = pair.left.clone();
    drop((pair, more));
    assert_eq!(settings().len(), found.len() - 1);
    drop(left);
    assert_eq!(settings(), found);
}

fn carries_tcp_and_udp(pair: &Pair) {
    let targets = [
        (IpAddr::V4(pair.right.v4()), IpAddr::V4(pair.left.v4())),
        (IpAddr::V6(pair.right.v6()), IpAddr::V6(pair.left.v6())),
    ];
    for (right, left) in targets {
        let listener =
            pair.right.namespace().run(|| TcpListener::bind((right, 0))).unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, from) = listener.accept().unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            (text, from.ip())
        });
        let mut stream =
            pair.left.namespace().run(|| TcpStream::connect(address)).unwrap().unwrap();
        stream.write_all(b"over the cable").unwrap();
        drop(stream);
        assert_eq!(server.join().unwrap(), ("over the cable".to_owned(), left));

        let (receiver, sender) = (datagrams(&pair.right, right), datagrams(&pair.left, left));
        sender.send_to(&[3; 20_000], receiver.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 30_000];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 20_000);
    }
}

#[test]
fn needs_root_the_first_datagram_over_a_pair_arrives() {
    for _ in 0..5 {
        let pair = topology_or_skip!(Pair::new(1_500));
        for (near, far) in [(&pair.left, &pair.right), (&pair.right, &pair.left)] {
            for (from, to) in [
                (IpAddr::V4(near.v4()), IpAddr::V4(far.v4())),
                (IpAddr::V6(near.v6()), IpAddr::V6(far.v6())),
            ] {
                let (sender, receiver) = (datagrams(near, from), datagrams(far, to));
                sender.send_to(b"at once", receiver.local_addr().unwrap()).unwrap();
                assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 7);
            }
        }
    }
}

#[test]
fn needs_root_pair_keeps_the_asked_mtu() {
    for mtu in [1_500, 65_535] {
        let pair = topology_or_skip!(Pair::new(mtu));
        for end in [&pair.left, &pair.right] {
            let socket = datagrams(end, Ipv4Addr::UNSPECIFIED);
            let far = if end.v4() == pair.left.v4() { pair.right.v4() } else { pair.left.v4() };
            socket.connect((far, 9)).unwrap();
            assert_eq!(rustix::net::sockopt::ip_mtu(&socket).unwrap(), mtu);
        }
    }
}

#[test]
fn needs_root_netem_delays_or_says_why_not() {
    let pair = topology_or_skip!(Pair::new(1_500));
    let netem = Netem { delay: Duration::from_millis(120), ..Netem::default() };
    topology_or_skip!(pair.left.set_netem(&netem));
    let receiver = datagrams(&pair.right, pair.right.v4());
    let sender = datagrams(&pair.left, pair.left.v4());
    let start = Instant::now();
    sender.send_to(b"late", receiver.local_addr().unwrap()).unwrap();
    receiver.recv(&mut [0; 16]).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(110), "{:?}", start.elapsed());
}

#[test]
fn needs_root_a_host_between_two_others_reaches_both_and_they_do_not_each_other() {
    let first = topology_or_skip!(Pair::new(1_500));
    let second = first.onward(9_000).unwrap();
    let own = second.left.namespace().run(devices).unwrap();
    assert!(
        [first.right.device(), second.left.device()].iter().all(|it| own.contains(&(*it).into()))
    );
    let listener = |end: &PairEnd| end.namespace().run(|| TcpListener::bind((end.v4(), 0)));
    let middle = second.left.namespace();
    for far in [&first.left, &second.right] {
        let there = listener(far).unwrap().unwrap().local_addr().unwrap();
        let refused = middle.run(|| TcpStream::connect(there)).unwrap().unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{there}");
    }
    let through = (second.right.v4(), 9);
    let unreachable = first.left.namespace().run(|| TcpStream::connect(through)).unwrap();
    assert_eq!(unreachable.unwrap_err().kind(), std::io::ErrorKind::NetworkUnreachable);
    assert!(first.onward(1_500).is_err(), "a third cable");
}

#[test]
fn needs_root_a_namespace_ends_with_its_last_holder() {
    let Pair { left, right, .. } = topology_or_skip!(Pair::new(1_500));
    let connected = || left.namespace().run(devices).unwrap().contains(&"cable0".to_owned());
    let clone = right.clone();
    drop(right);
    thread::sleep(Duration::from_millis(100));
    assert!(connected(), "a clone still holds the far namespace");
    drop(clone);
    // The kernel takes namespaces down in the background, and their end of the cable with them.
    let deadline = Instant::now() + Duration::from_secs(10);
    while connected() {
        assert!(Instant::now() < deadline, "the far namespace outlives its holders");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn errors_say_what_to_do() {
    let error = TopologyError::NotPermitted { reason: "tried".into() };
    assert!(error.is_unavailable());
    assert!(error.to_string().contains("run as root"));
    let error = asked::<std::io::Error>("do it")(std::io::Error::from_raw_os_error(libc::EBUSY));
    assert!(!error.is_unavailable());
    assert!(error.to_string().starts_with("cannot do it: "));
}
