//! Queues leased to a container: what is there, what is said, and that all of it goes again.

use std::fs;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use handoff_testbed::Namespace;
use rustix::net::netdevice;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};

use super::host::{Host, nothing_is_left, wait_for};

const ADDRESS: &str = "10.99.7.2";

/// A network namespace, with a process that it is found by.
struct Container {
    namespace: Namespace,
    inside: Child,
}

impl Container {
    fn new() -> Self {
        let namespace = Namespace::new().expect("a namespace");
        let mut sleep = Command::new("sleep");
        let inside = namespace.attach(sleep.arg("600")).spawn().expect("starts");
        Self { namespace, inside }
    }

    fn to(&self) -> String {
        self.inside.id().to_string()
    }

    /// What a command prints there.
    fn says(&self, words: &[&str]) -> String {
        let mut command = Command::new(words[0]);
        let command = self.namespace.attach(command.args(&words[1..]));
        let output = command.output().expect("starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.inside.kill();
        self.inside.wait().expect("ends");
    }
}

/// All links of the host, by name.
fn links(host: &Host) -> Vec<String> {
    let all = host.answer(&["show"]);
    let name = |one: &Value| one["name"].as_str().expect("has one").to_owned();
    all.as_array().expect("a list").iter().map(name).collect()
}

#[test]
fn a_lease_is_told_shown_and_undone() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (before, links_before) = (host.settings(), links(&host));
    let to = container.to();
    let lease = ["lease", device, "--to", &to, "--queues", "2", "--address", ADDRESS];
    let would = host.answer(&[&lease[..], &["--dry-run"]].concat());
    assert_eq!(host.settings(), before);
    nothing_is_left();

    let leased = host.answer(&lease);
    assert_eq!(leased["steps"], would["steps"]);
    assert_eq!((&leased["queues"], &leased["device_queues"]), (&json!([2, 3]), &json!([1, 2])));
    let steps = leased["steps"].as_array().expect("a list");
    let [pair, redirect] = steps.last_chunk().expect("several");
    assert_eq!(pair["change"]["pair"]["addresses"], json!([ADDRESS]), "{pair}");
    let text = pair["text"].as_str().expect("text");
    assert!(text.contains("nk0") && text.contains("leased from queues 2, 3"), "{text}");
    assert_eq!(redirect["change"]["redirect"]["addresses"], json!([ADDRESS]), "{redirect}");

    let shown = host.answer(&["show", device]);
    for queue in [2, 3] {
        assert_eq!(shown["queues"][queue]["bound"], "lease", "{shown}");
    }
    let there = container.says(&[env!("CARGO_BIN_EXE_handoff"), "nic", "show", "nk0", "--json"]);
    let there: Value = serde_json::from_str(&there).expect("JSON");
    assert_eq!(there["queues"].as_array().expect("a list").len(), 3, "{there}");
    let blocks = there["obstacles"][0]["cause"].as_str().expect("text");
    assert!(blocks.contains("it leases queues 1, 2 from a card"), "{blocks}");
    let line = container.says(&["ip", "-brief", "address", "show", "nk0"]);
    assert!(line.contains(&format!("{ADDRESS}/32")), "{line}");
    let routes = container.says(&["ip", "route", "show", "dev", "nk0"]);
    assert!(routes.contains(&format!("via 169.254.1.1 proto static src {ADDRESS}")), "{routes}");

    let row = |command: &[&str]| -> Value {
        let doctor = [env!("CARGO_BIN_EXE_handoff"), "doctor", "--json", "--iface", "nk0"];
        let all = container.says(&[command, &doctor].concat());
        let all: Value = serde_json::from_str(&all).expect("JSON");
        let mut rows = all.as_array().expect("a list").iter();
        rows.find(|row| row["mechanism"] == "nk0: zcrx").expect("a row").clone()
    };
    let may = row(&[]);
    assert_eq!(
        (&may["state"], &may["reason"]),
        (&json!("yes"), &json!("queues 1 to 2 leased from a card"))
    );
    let may_not = row(&["unshare", "--user", "--map-root-user"]);
    assert_eq!(may_not["state"], "no", "{may_not}");
    let reason = may_not["reason"].as_str().expect("text");
    assert!(reason.contains("CAP_NET_ADMIN of the first user namespace"), "{reason}");

    let again = host.refused(&lease, 1);
    assert!(again.contains("is prepared until it is restored"), "{again}");
    let undone = host.answer(&["restore", device]);
    assert_eq!(undone[0]["left"], json!([]));
    let put_back = undone[0]["put_back"].as_array().expect("a list");
    assert!(put_back[0].as_str().expect("text").starts_with("redirect"), "{put_back:?}");
    assert!(put_back[1].as_str().expect("text").starts_with("netkit pair"), "{put_back:?}");
    assert_eq!((host.settings(), links(&host)), (before, links_before));
    assert!(!container.says(&["ip", "-brief", "link"]).contains("nk0"));
    nothing_is_left();
}

#[test]
fn a_command_runs_in_the_container_and_may_end_in_every_way() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (before, links_before) = (host.settings(), links(&host));
    let to = container.to();
    let lease = ["lease", device, "--to", &to, "--address", ADDRESS, "--port", "8000", "--"];
    let script = "ip -brief address show $HANDOFF_NIC; echo $HANDOFF_NIC_QUEUES; exit 7";
    let output = host.nic(&[&lease[..], &["sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.starts_with("nk0") && text.ends_with("\n1\n"), "{text}");
    assert_eq!((host.settings(), links(&host)), (before.clone(), links_before.clone()));

    for (signal, code) in [
        (Signal::INT, Some(130)),
        (Signal::TERM, Some(143)),
        (Signal::HUP, Some(129)),
        (Signal::KILL, None),
    ] {
        let place = tempfile::tempdir().expect("a directory");
        let number = place.path().join("number");
        let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 60", number.display());
        let mut command = host.command(&[&lease[..], &["sh", "-c", &script]].concat());
        let mut child = command.stderr(Stdio::null()).spawn().expect("handoff starts");
        wait_for(&number);
        assert_eq!(links(&host).len(), links_before.len() + 1);
        kill_process(Pid::from_child(&child), signal).expect("lives");
        assert_eq!(child.wait().expect("ends").code(), code);
        if signal == Signal::KILL {
            assert_eq!(links(&host).len(), links_before.len() + 1);
            let undone = host.answer(&["restore", device]);
            assert_eq!((&undone[0]["gone"], &undone[0]["left"]), (&json!(false), &json!([])));
            let left = fs::read_to_string(&number).expect("is there");
            let left = left.trim().parse().ok().and_then(Pid::from_raw).expect("a number");
            kill_process(left, Signal::KILL).expect("nobody else ends it");
        }
        assert_eq!((host.settings(), links(&host)), (before.clone(), links_before.clone()));
        nothing_is_left();
    }
}

#[test]
fn a_kill_at_any_time_is_put_back() {
    const TURNS: u32 = 12;
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (before, links_before) = (host.settings(), links(&host));
    let to = container.to();
    let start = || {
        let mut command = host.command(&["lease", device, "--to", &to, "--address", ADDRESS]);
        command.stdout(Stdio::null()).spawn().expect("starts")
    };
    let begin = Instant::now();
    assert!(start().wait().expect("ends").success());
    let mut whole = begin.elapsed();
    host.answer(&["restore", device]);
    let mut caught = 0;
    for turn in 0..TURNS {
        let (mut child, begin) = (start(), Instant::now());
        std::thread::sleep(whole * turn / TURNS);
        child.kill().expect("kills");
        // Where it ended before, its lease stays as well.
        let killed = child.wait().expect("ends").code().is_none();
        if !killed {
            // The first may have been slow.
            whole = whole.min(begin.elapsed());
        }
        let output = host.nic(&["restore", device]);
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        match output.status.code() {
            Some(0) => caught += usize::from(killed),
            code => assert!(code == Some(2) && line.contains("is not prepared"), "{line}"),
        }
        assert_eq!(
            (host.settings(), links(&host)),
            (before.clone(), links_before.clone()),
            "{turn}"
        );
        // A lock that nobody holds may stay, and a record half written.
        for entry in fs::read_dir("/run/handoff/nic").into_iter().flatten() {
            let path = entry.expect("an entry").path();
            assert_ne!(path.extension().unwrap_or_default(), "json", "{turn}");
            fs::remove_file(path).expect("removes");
        }
    }
    assert!(caught > 1, "only {caught} were killed midway");
}

#[test]
fn a_container_that_goes_takes_its_end_along_and_the_rest_is_restored() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (before, links_before) = (host.settings(), links(&host));
    host.answer(&["lease", device, "--to", &container.to(), "--address", ADDRESS]);
    assert_eq!(links(&host).len(), links_before.len() + 1);
    drop(container);
    // The kernel ends a namespace in its own time.
    let begin = std::time::Instant::now();
    while links(&host) != links_before {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "the pair stays");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(host.answer(&["show", device])["queues"][3]["bound"], Value::Null);
    let undone = host.answer(&["restore", device]);
    assert_eq!((&undone[0]["gone"], &undone[0]["left"]), (&json!(false), &json!([])));
    assert_eq!(host.settings(), before);
    nothing_is_left();
}

#[test]
fn what_cannot_be_leased_is_one_line_and_nothing_stays() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (before, links_before) = (host.settings(), links(&host));
    let to = container.to();
    let mut here = Command::new("sleep");
    let mut here = host.attach(here.arg("600")).spawn().expect("starts");
    let beside = here.id().to_string();
    let host_address = host.address();
    let address = ["--address", ADDRESS];
    container.says(&["ip", "route", "add", "unreachable", "10.98.0.0/16"]);
    for (arguments, code, expected) in [
        (
            &[device, "--to", "nobody", address[0], address[1]][..],
            2,
            "no network namespace \"nobody\"",
        ),
        (&[device, "--to", "4194305", address[0], address[1]], 2, "no process 4194305"),
        (&[device, "--to", "/etc/passwd", address[0], address[1]], 2, "is no network namespace"),
        (&[device, "--to", &beside, address[0], address[1]], 2, "no lease is needed"),
        (&[device, "--to", &to], 2, "has no address yet"),
        (&[device, "--to", &to, "--address", &host_address], 2, "an address of this host"),
        (&[device, "--to", &to, "--address", "224.0.0.1"], 2, "no address of one host"),
        (&[device, "--to", &to, "--address", "255.255.255.255"], 2, "no address of one host"),
        (&[device, "--to", &to, "--address", "::ffff:10.99.7.9"], 2, "no address of one host"),
        (&[device, "--to", &to, "--address", "fe80::7"], 2, "no address of one host"),
        (&["lo", "--to", &to, address[0], address[1]], 3, "it is the loopback interface"),
        (&["eth77", "--to", &to, address[0], address[1]], 2, "no network interface"),
        (&[device, "--to", &to, "--queues", "8", address[0], address[1]], 3, "can set aside 7"),
        (&[device, "--to", &to, "--queue", "0", address[0], address[1]], 3, "own traffic"),
        (&[device, "--to", &to, "--device", "lo", address[0], address[1]], 1, "lo exists there"),
        (
            &[device, "--to", &to, "--device", "sixteen-letters-", address[0], address[1]],
            2,
            "a device cannot be named",
        ),
        (&[device, "--to", &to, "--device", "nk%d", address[0], address[1]], 2, "cannot be named"),
        (
            &[device, "--to", &to, "--route", "10.98.0.0/16", address[0], address[1]],
            1,
            "adding the route to 10.98.0.0/16: the namespace has one",
        ),
    ] {
        let line = host.refused(&[&["lease"], arguments].concat(), code);
        assert!(line.contains(expected), "{line}");
        assert_eq!(
            (host.settings(), links(&host)),
            (before.clone(), links_before.clone()),
            "{line}"
        );
        nothing_is_left();
    }
    here.kill().expect("lives");
    here.wait().expect("ends");

    // A queue that somebody else has leased: here, one whose record was lost.
    host.answer(&["lease", device, "--to", &to, "--address", ADDRESS]);
    let records = fs::read_dir("/run/handoff/nic").expect("is there");
    for record in records {
        fs::remove_file(record.expect("an entry").path()).expect("removes");
    }
    let other = ["lease", device, "--to", &to, "--queue", "3", "--address", "10.99.7.3"];
    let line = host.refused(&other, 3);
    assert!(line.contains("queue 3 of") && line.contains("is bound to a lease"), "{line}");
    nothing_is_left();
    let links_leased = links(&host);
    let other = ["lease", device, "--to", &to, "--address", "10.99.7.3", "--device", "nk1"];
    let line = host.refused(&other, 1);
    assert!(line.contains(" is in the way"), "{line}");
    assert_eq!(links(&host), links_leased, "the lease of others goes on");
    nothing_is_left();
}

#[test]
fn a_pair_goes_also_where_the_card_is_not_known_again() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let links_before = links(&host);
    host.answer(&["lease", device, "--to", &container.to(), "--address", ADDRESS]);
    assert_eq!(links(&host).len(), links_before.len() + 1);
    let mut ip = Command::new("ip");
    let ip =
        ip.args(["link", "set", "dev", device, "name", "other", "address", "02:00:00:00:00:77"]);
    assert!(host.attach(ip).status().expect("starts").success());
    let undone = host.answer(&["restore", "other"]);
    assert_eq!(undone[0]["gone"], true, "{undone}");
    let put_back = undone[0]["put_back"][0].as_str().expect("one");
    assert!(put_back.starts_with("netkit pair"), "{undone}");
    assert_eq!(links(&host).len(), links_before.len());
    nothing_is_left();
}

/// A packet for UDP from here to there, and words in it.
fn packet(from: IpAddr, to: IpAddr, words: &str) -> Vec<u8> {
    const UDP: u8 = 17;
    let len = (8 + words.len()) as u16;
    let mut packet = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0];
            header[2..4].copy_from_slice(&(20 + len).to_be_bytes());
            [header, from.octets().to_vec(), to.octets().to_vec()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, UDP, 64];
            header[4..6].copy_from_slice(&len.to_be_bytes());
            [header, from.octets().to_vec(), to.octets().to_vec()].concat()
        }
        _ => panic!("of one kind"),
    };
    packet.extend([9_u16, 9, len, 0].iter().flat_map(|word| word.to_be_bytes()));
    packet.extend(words.as_bytes());
    packet
}

/// A frame with a packet, of a VLAN or none.
fn frame(at: [u8; 6], vlan: Option<u16>, packet: &[u8]) -> Vec<u8> {
    const OF_VLAN: u16 = 0x8100;
    let kind: u16 = if packet[0] == 0x45 { 0x0800 } else { 0x86dd };
    let tag: Vec<u8> =
        vlan.iter().flat_map(|id| [OF_VLAN, *id]).flat_map(u16::to_be_bytes).collect();
    [&at[..], &[2, 0, 0, 0, 0, 9], &tag, &kind.to_be_bytes(), packet].concat()
}

/// Sends and receives frames at a device.
fn tap(namespace: &Namespace, device: &str) -> Socket {
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        let all = (libc::ETH_P_ALL as u16).to_be();
        let index = netdevice::name_to_index(&socket, device)?;
        // SAFETY: the closure writes a whole sockaddr_ll, and its length.
        let (_, address) = unsafe {
            SockAddr::try_init(|storage, len| {
                let address = libc::sockaddr_ll {
                    sll_family: libc::AF_PACKET as u16,
                    sll_protocol: all,
                    sll_ifindex: index as i32,
                    sll_hatype: 0,
                    sll_pkttype: 0,
                    sll_halen: 0,
                    sll_addr: [0; 8],
                };
                storage.cast::<libc::sockaddr_ll>().write(address);
                len.write(size_of::<libc::sockaddr_ll>() as u32);
                Ok(())
            })
        }?;
        socket.bind(&address)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(socket)
    };
    namespace.run(open).expect("enters").expect("opens")
}

/// The words that came before these, and these.
fn until(mut tap: &Socket, last: &str, all: &[&'static str]) -> Vec<&'static str> {
    let mut came = Vec::new();
    let mut frame = [0; 2048];
    loop {
        let len = tap.read(&mut frame).expect("the last words come");
        let text = String::from_utf8_lossy(&frame[..len]);
        came.extend(all.iter().filter(|words| text.ends_with(**words)));
        if text.ends_with(last) {
            return came;
        }
    }
}

#[test]
fn only_packets_of_the_lease_go_in_and_out() {
    let (host, container) = (Host::new(), Container::new());
    let device = host.device();
    let (left, right) = (&host.pair.left, &host.pair.right);
    host.answer(&["lease", device, "--to", &container.to(), "--address", ADDRESS]);
    let (there, here) = (tap(left.namespace(), left.device()), tap(&container.namespace, "nk0"));
    let mine: Ipv4Addr = ADDRESS.parse().expect("one");
    let (to, to_v6) = (IpAddr::from(left.v4()), IpAddr::from(left.v6()));
    let like_mine = IpAddr::from(mine.to_ipv6_mapped());
    let mine = IpAddr::from(mine);
    let other = IpAddr::from([10, 99, 7, 3]);
    // The host learns who has the address of IPv6.
    let warm = || UdpSocket::bind("[::]:0")?.send_to(b"warm", (to_v6, 9));
    right.namespace().run(warm).expect("enters").expect("sends");
    until(&there, "warm", &[]);
    const NEAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let words = ["first", "spoofed", "tagged", "mapped", "last"];
    for (vlan, packet) in [
        (None, packet(mine, to, "first")),
        (None, packet(other, to, "spoofed")),
        (Some(5), packet(mine, to, "tagged")),
        (None, packet(like_mine, to_v6, "mapped")),
        (None, packet(mine, to, "last")),
    ] {
        here.send(&frame(NEAR, vlan, &packet)).expect("sends");
    }
    assert_eq!(until(&there, "last", &words), ["first", "last"]);

    let mut ip = Command::new("ip");
    let shown = host.attach(ip.args(["-json", "link", "show", "dev", device])).output();
    let shown: Value = serde_json::from_slice(&shown.expect("starts").stdout).expect("JSON");
    let card = shown[0]["address"].as_str().expect("one").split(':');
    let card: Vec<u8> = card.map(|byte| u8::from_str_radix(byte, 16).expect("a byte")).collect();
    let card: [u8; 6] = card.try_into().expect("six");
    let words = ["in-first", "in-elsewhere", "in-tagged", "in-mapped", "in-other", "in-last"];
    for (at, vlan, packet) in [
        (card, None, packet(to, mine, "in-first")),
        ([2, 0, 0, 0, 0, 0x55], None, packet(to, mine, "in-elsewhere")),
        (card, Some(5), packet(to, mine, "in-tagged")),
        (card, None, packet(to_v6, like_mine, "in-mapped")),
        (card, None, packet(to, right.v4().into(), "in-other")),
        (card, None, packet(to, mine, "in-last")),
    ] {
        there.send(&frame(at, vlan, &packet)).expect("sends");
    }
    assert_eq!(until(&here, "in-last", &words), ["in-first", "in-last"]);
    host.answer(&["restore", device]);
}
