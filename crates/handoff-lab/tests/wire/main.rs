//! The software NIC (`kmod/wire`), on the lab's kernel.

mod zcrx;

mod guest {
    use std::collections::BTreeMap;
    use std::io::{Read, Write};
    use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
    use std::num::NonZeroU32;
    use std::os::fd::AsRawFd;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use handoff_lab::topology::{Pair, PairEnd};
    use io_uring::types::Fd;
    use io_uring::{IoUring, cqueue, opcode};
    use rustix::net::sockopt::{self, Timeout};
    use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType};

    use super::zcrx::Receiver;

    const MIB: usize = 1 << 20;
    const PORT: u16 = 4_000;
    /// `IORING_SEND_ZC_REPORT_USAGE`: the notification says whether the kernel has copied.
    const REPORT_USAGE: u16 = 1 << 3;
    /// Of the receiving NIC; the first two are for everything else.
    const QUEUE: u32 = 3;

    fn pair(mtu: u32) -> Pair {
        Pair::wire(mtu).expect("a pair of NICs")
    }

    /// The byte of the stream at this position: no short period, so misplaced parts show.
    fn byte_at(position: usize) -> u8 {
        (position ^ (position >> 8) ^ (position >> 16)).wrapping_mul(31) as u8
    }

    fn stream_of(bytes: usize) -> Vec<u8> {
        (0..bytes).map(byte_at).collect()
    }

    /// Runs a command at this end, with its interfaces in /sys, and returns what it printed.
    fn run(end: &PairEnd, script: &str) -> String {
        let mut shell = Command::new("unshare");
        let script = format!("mount -t sysfs sysfs /sys && {script}");
        shell.args(["--mount", "sh", "-euc", &script]);
        let output = end.namespace().attach(&mut shell).output().expect("starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn set_fault(end: &PairEnd, fault: &str, value: u32) {
        run(end, &format!("echo {value} > /sys/class/net/{}/wire/{fault}", end.device()));
    }

    fn counters(end: &PairEnd) -> BTreeMap<String, u64> {
        run(end, &format!("ethtool -S {}", end.device()))
            .lines()
            .filter_map(|line| line.trim().split_once(": "))
            .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
            .collect()
    }

    fn steer(end: &PairEnd, queue: u32) {
        let device = end.device();
        run(end, &format!("ethtool -N {device} flow-type tcp4 dst-port {PORT} action {queue}"));
    }

    fn split_headers(end: &PairEnd) {
        run(end, &format!("ethtool -G {} tcp-data-split on", end.device()));
    }

    fn listen(end: &PairEnd, address: impl Into<IpAddr>) -> TcpListener {
        let address = (address.into(), PORT);
        end.namespace().run(|| TcpListener::bind(address)).expect("enters").expect("binds")
    }

    fn connect(end: &PairEnd, address: impl Into<IpAddr>) -> TcpStream {
        let address = (address.into(), PORT);
        end.namespace().run(|| TcpStream::connect(address)).expect("enters").expect("connects")
    }

    /// Sends the whole stream from left to right, and the half of it back, and compares.
    fn exchange(pair: &Pair, address: impl Into<IpAddr>, bytes: usize) {
        let address = address.into();
        let listener = listen(&pair.right, address);
        let mut left = connect(&pair.left, address);
        let (mut right, _) = listener.accept().expect("accepts");
        let sent = stream_of(bytes);
        thread::scope(|scope| {
            let mut back = left.try_clone().expect("clones");
            scope.spawn(|| {
                left.write_all(&sent).expect("sends");
                left.shutdown(Shutdown::Write).expect("ends");
            });
            scope.spawn(move || {
                let mut half = Vec::new();
                back.read_to_end(&mut half).expect("receives");
                assert!(half == stream_of(bytes / 2), "what came back differs");
            });
            let mut far = right.try_clone().expect("clones");
            scope.spawn(move || {
                far.write_all(&stream_of(bytes / 2)).expect("sends");
                far.shutdown(Shutdown::Write).expect("ends");
            });
            let mut received = Vec::new();
            right.read_to_end(&mut received).expect("receives");
            assert!(received == sent, "what arrived differs");
        });
    }

    #[test]
    fn streams_cross_both_ways() {
        for mtu in [1_500, 9_000] {
            let pair = pair(mtu);
            exchange(&pair, pair.right.v4(), MIB);
            exchange(&pair, pair.right.v6(), MIB);
            let count = counters(&pair.right);
            assert_eq!(count["dma_refused"] + count["too_long"], 0, "{count:?}");
        }
    }

    #[test]
    fn datagrams_of_all_sizes_cross() {
        let pair = pair(65_535);
        let open = |end: &PairEnd| {
            let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
            bound.expect("enters").expect("binds")
        };
        let (from, to) = (open(&pair.left), open(&pair.right));
        to.set_read_timeout(Some(Duration::from_secs(5))).expect("sets");
        for bytes in [0, 1, 17, 213, 214, 215, 1_472, 4_310, 65_507] {
            let sent = stream_of(bytes);
            from.send_to(&sent, to.local_addr().expect("bound")).expect("sends");
            let mut buffer = vec![0; 65_536];
            let received = to.recv(&mut buffer).expect("arrives");
            assert!(buffer[..received] == sent, "{bytes} bytes differ");
        }
    }

    #[test]
    fn lent_memory_is_back_when_the_engine_has_read_it() {
        const DELAY: Duration = Duration::from_millis(300);
        let pair = pair(65_535);
        let open = |end: &PairEnd| {
            let bound = end.namespace().run(|| UdpSocket::bind((end.v4(), 0)));
            bound.expect("enters").expect("binds")
        };
        let (from, to) = (open(&pair.left), open(&pair.right));
        from.connect(to.local_addr().expect("bound")).expect("connects");
        set_fault(&pair.right, "delay", DELAY.as_micros() as u32);

        let mut ring = IoUring::new(4).expect("a ring");
        let mut lent = stream_of(32_768);
        let request = opcode::SendZc::new(Fd(from.as_raw_fd()), lent.as_ptr(), lent.len() as u32)
            .zc_flags(REPORT_USAGE)
            .build();
        let begin = Instant::now();
        // SAFETY: the memory is not touched before the notification below has come.
        unsafe { ring.submission().push(&request) }.expect("room");
        ring.submit_and_wait(1).expect("submits");
        let sent = ring.completion().next().expect("a completion");
        assert_eq!(sent.result(), 32_768);
        assert!(cqueue::more(sent.flags()));
        assert!(begin.elapsed() < DELAY, "sent only after {:?}", begin.elapsed());
        ring.submit_and_wait(1).expect("waits");
        let back = ring.completion().next().expect("a notification");
        assert!(cqueue::notif(back.flags()));
        assert_eq!(back.result(), 0, "copied");
        assert!(begin.elapsed() >= DELAY, "back after {:?}", begin.elapsed());
        // Whoever still read it would read this.
        lent.fill(0);
        let mut received = vec![0; 65_536];
        let length = to.recv(&mut received).expect("arrives");
        assert!(received[..length] == stream_of(32_768), "what arrived differs");
    }

    /// The Internet checksum: 0 over what contains a right one.
    fn checksum(parts: &[&[u8]]) -> u16 {
        let mut sum = 0;
        for part in parts {
            for pair in part.chunks(2) {
                sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            }
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !sum as u16
    }

    /// Whether the checksums of a frame's IPv4 and TCP headers are right; `None` if it has none.
    fn checksums_are_right(frame: &[u8]) -> Option<bool> {
        let packet = frame.get(14..)?;
        let length = u16::from_be_bytes([*packet.get(2)?, packet[3]]) as usize;
        let (header, segment) = packet.get(..length)?.split_at(usize::from(packet[0] & 15) * 4);
        if header[9] != 6 {
            return None;
        }
        let pseudo = [0, 6, (segment.len() >> 8) as u8, segment.len() as u8];
        let whole = checksum(&[&header[12..20], &pseudo, segment]);
        Some(checksum(&[header]) == 0 && whole == 0)
    }

    /// Looks at everything that arrives, as tcpdump does, until nothing does any more: how many
    /// packets of TCP with payload, and how many with a wrong checksum.
    fn capture(end: &PairEnd) -> thread::JoinHandle<(u32, u32)> {
        const IPV4: u16 = 0x0800;
        let protocol = NonZeroU32::new(u32::from(IPV4.to_be())).map(Protocol::from_raw);
        let open = || rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol);
        let tap = end.namespace().run(open).expect("enters").expect("opens");
        let quiet = Some(Duration::from_secs(1));
        sockopt::set_socket_timeout(&tap, Timeout::Recv, quiet).expect("sets");
        sockopt::set_socket_recv_buffer_size_force(&tap, 16 * MIB).expect("sets");
        thread::spawn(move || {
            let (mut packets, mut wrong) = (0, 0);
            let mut frame = vec![0; 65_536];
            while let Ok((length, _)) = rustix::net::recv(&tap, &mut frame[..], RecvFlags::empty())
            {
                let right = checksums_are_right(&frame[..length]);
                packets += u32::from(right.is_some() && length > 1_000);
                wrong += u32::from(right == Some(false));
            }
            (packets, wrong)
        })
    }

    #[test]
    fn checksums_on_the_wire_are_right() {
        let pair = pair(1_500);
        // Merged packets have no checksum of their own.
        run(&pair.right, &format!("ethtool -K {} gro off", pair.right.device()));
        // Made by the stack, by the engine for each packet, and by it for the parts of a frame.
        for offloads in ["tx off", "tx on tso off", "tso on"] {
            run(&pair.left, &format!("ethtool -K {} {offloads}", pair.left.device()));
            let capture = capture(&pair.right);
            exchange(&pair, pair.right.v4(), MIB);
            let (packets, wrong) = capture.join().expect("ends");
            assert!(packets > 300, "{offloads}: only {packets} packets were seen");
            assert_eq!(wrong, 0, "{offloads}: of {packets} packets");
        }
    }

    #[test]
    fn a_rule_names_the_queue() {
        let pair = pair(1_500);
        for queue in [2, 1] {
            steer(&pair.right, queue);
            let before = counters(&pair.right);
            exchange(&pair, pair.right.v4(), MIB);
            let after = counters(&pair.right);
            let arrived = |index: u32| {
                let name = format!("queue{index}_rx_bytes");
                after[&name] - before[&name]
            };
            assert!(arrived(queue) > MIB as u64, "{after:?}");
            for other in (0..4).filter(|&other| other != queue) {
                assert!(arrived(other) < 4_096, "queue {other} got {}", arrived(other));
            }
            run(&pair.right, &format!("ethtool -N {} delete 0", pair.right.device()));
        }
    }

    /// Sends a stream to a queue that is bound; what the kernel has copied of it.
    fn receive_bound(pair: &Pair, bytes: usize, chunks: usize, chunk: u32) -> (u64, u64) {
        let index =
            run(&pair.right, &format!("cat /sys/class/net/{}/ifindex", pair.right.device()));
        let index = index.trim().parse().expect("a number");
        let listener = listen(&pair.right, pair.right.v4());
        let mut left = connect(&pair.left, pair.right.v4());
        let (right, _) = listener.accept().expect("accepts");
        // The kernel lets go of a ring of before, its queue and its memory from a worker of its own.
        let deadline = Instant::now() + Duration::from_secs(5);
        let bind = || Receiver::bind(index, QUEUE, chunks, chunk);
        let mut receiver = loop {
            match pair.right.namespace().run(bind).expect("enters") {
                Ok(receiver) => break receiver,
                Err(error) => assert!(Instant::now() < deadline, "binding: {error}"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        thread::scope(|scope| {
            scope.spawn(move || {
                left.write_all(&stream_of(bytes)).expect("sends");
                left.shutdown(Shutdown::Write).expect("ends");
            });
            let mut position = 0;
            let taken = receiver.receive(&right, |span| {
                for &byte in span {
                    assert_eq!(byte, byte_at(position), "at {position}");
                    position += 1;
                }
            });
            taken.expect("receives");
            assert_eq!(position, bytes);
        });
        receiver.copied()
    }

    fn ready_to_bind(mtu: u32) -> Pair {
        let pair = pair(mtu);
        split_headers(&pair.right);
        steer(&pair.right, QUEUE);
        pair
    }

    #[test]
    fn zero_copy_receive_copies_nothing() {
        for (mtu, whole, packing) in
            [(1_500, "off", 0), (4_148, "off", 0), (1_500, "on", 0), (1_500, "off", 1)]
        {
            let pair = ready_to_bind(mtu);
            run(&pair.right, &format!("ethtool -K {} rx-gro-hw {whole}", pair.right.device()));
            set_fault(&pair.right, "packing", packing);
            let case = format!("MTU {mtu}, hardware GRO {whole}, packing {packing}");
            assert_eq!(receive_bound(&pair, 2 * MIB, 2_048, 4_096), (0, 0), "{case}");
            let count = counters(&pair.right);
            assert!(count["queue3_rx_split"] > 0, "{case}: {count:?}");
            assert_eq!(count["queue3_rx_gro_packets"] > 0, whole == "on", "{case}: {count:?}");
        }
    }

    #[test]
    fn large_chunks_are_filled() {
        std::fs::write("/proc/sys/vm/nr_hugepages", "64").expect("takes huge pages");
        // A share of a chunk for each packet, a chunk for each, and a whole frame in one.
        for (packing, whole, chunk) in
            [(1, "off", 2 * MIB as u32), (0, "off", 16_384), (0, "on", 65_536), (1, "on", 65_536)]
        {
            let pair = ready_to_bind(1_500);
            run(&pair.right, &format!("ethtool -K {} rx-gro-hw {whole}", pair.right.device()));
            set_fault(&pair.right, "packing", packing);
            let chunks = 128 * MIB / chunk as usize;
            let copied = receive_bound(&pair, 2 * MIB, chunks, chunk);
            assert_eq!(copied, (0, 0), "chunk {chunk}, packing {packing}, hardware GRO {whole}");
        }
        std::fs::write("/proc/sys/vm/nr_hugepages", "0").expect("gives them back");
    }

    #[test]
    fn contexts_and_tables_spread_flows() {
        let pair = pair(1_500);
        let device = pair.right.device();
        let bytes_of =
            |count: &BTreeMap<String, u64>, queue: u32| count[&format!("queue{queue}_rx_bytes")];
        let said = run(&pair.right, &format!("ethtool -X {device} context new start 2 equal 1"));
        let context = said.trim().rsplit(' ').next().expect("a number");
        let rule = format!("flow-type tcp6 dst-port {PORT} context {context}");
        run(&pair.right, &format!("ethtool -N {device} {rule}"));
        exchange(&pair, pair.right.v6(), MIB);
        let count = counters(&pair.right);
        assert!(bytes_of(&count, 2) > MIB as u64, "{count:?}");
        // The rule is about IPv6; all the rest goes where the table says.
        run(&pair.right, &format!("ethtool -X {device} start 1 equal 1"));
        let before = counters(&pair.right);
        exchange(&pair, pair.right.v4(), MIB);
        let after = counters(&pair.right);
        assert!(bytes_of(&after, 1) - bytes_of(&before, 1) > MIB as u64, "{after:?}");
        run(&pair.right, &format!("ethtool -N {device} flow-type tcp4 dst-port {PORT} action -1"));
        let refused = pair.left.namespace().run(|| {
            let far = (pair.right.v4(), PORT).into();
            TcpStream::connect_timeout(&far, Duration::from_millis(500))
        });
        assert!(refused.expect("enters").is_err(), "a rule that drops lets a flow pass");
        assert!(counters(&pair.right)["dropped_by_rule"] > 0);
    }

    #[test]
    fn wrong_queue_traffic_is_copied_and_told() {
        let pair = ready_to_bind(1_500);
        set_fault(&pair.right, "wrong_queue", 200_000);
        let (spans, bytes) = receive_bound(&pair, MIB, 2_048, 4_096);
        assert!(spans > 0 && bytes > 0, "copied {spans} spans, {bytes} bytes");
        assert!(counters(&pair.right)["fault_wrong_queue"] > 0);
    }

    #[test]
    fn faults_lose_nothing_for_good() {
        for (fault, value, counter) in [
            ("drop", 10_000, Some("fault_dropped")),
            ("reorder", 200_000, Some("fault_reordered")),
            ("delay", 1_000, None),
            ("alloc_fail", 300_000, Some("queue3_rx_alloc_fail")),
        ] {
            let pair = ready_to_bind(1_500);
            // Small frames, so that one is behind another in the sender's ring.
            run(&pair.left, &format!("ethtool -K {} tso off", pair.left.device()));
            set_fault(&pair.right, fault, value);
            assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096).0, 0, "{fault}");
            let count = counters(&pair.right);
            assert!(counter.is_none_or(|counter| count[counter] > 0), "{fault}: {count:?}");
        }
    }

    #[test]
    fn lossless_means_no_packet_is_lost() {
        let pair = ready_to_bind(1_500);
        run(&pair.right, &format!("ethtool -G {} rx 16", pair.right.device()));
        set_fault(&pair.right, "lossless", 1);
        assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096), (0, 0));
        let count = counters(&pair.right);
        for counter in ["queue3_rx_no_buffer", "queue3_rx_no_completion"] {
            assert_eq!(count[counter], 0, "{count:?}");
        }
    }

    /// Holds the queue in a process of its own, which says so and then waits.
    fn holder(end: &PairEnd) -> Child {
        let mut child = Command::new(std::env::current_exe().expect("our path"));
        child.args(["--exact", "--ignored", "--nocapture", "guest::fixture::holds_a_queue"]);
        child.env("DEVICE", end.device()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = end.namespace().attach(&mut child).spawn().expect("starts");
        let output = child.stdout.as_mut().expect("piped");
        let mut said = String::new();
        let mut byte = [0];
        while !said.contains("HELD") {
            assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {said}");
            said.push(byte[0] as char);
        }
        child
    }

    #[test]
    fn a_killed_receiver_gives_its_queue_back() {
        let pair = ready_to_bind(1_500);
        for _ in 0..3 {
            let mut child = holder(&pair.right);
            let mut left = connect(&pair.left, pair.right.v4());
            left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
            // More than it will ever take: it stops reading with all chunks in use.
            while left.write(&stream_of(MIB)).is_ok() {}
            child.kill().expect("kills");
            child.wait().expect("ends");
        }
        // The kernel lets go of a dead ring from a worker of its own.
        thread::sleep(Duration::from_millis(300));
        assert_eq!(receive_bound(&pair, MIB, 2_048, 4_096), (0, 0));
    }

    #[test]
    fn everything_may_change_under_traffic() {
        let pair = ready_to_bind(1_500);
        let mut child = holder(&pair.right);
        let mut left = connect(&pair.left, pair.right.v4());
        left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
        let traffic = thread::spawn(move || {
            let sent = stream_of(MIB);
            for _ in 0..20 {
                // It is refused or times out once the other end is gone.
                let _ = left.write(&sent);
            }
        });
        let (near, far) = (pair.left.device(), pair.right.device());
        for entries in [16, 4_096, 64, 256] {
            run(&pair.right, &format!("ethtool -G {far} rx {entries}"));
            run(&pair.left, &format!("ethtool -G {near} tx {entries}"));
        }
        for queues in [8, 6, 5] {
            run(&pair.right, &format!("ethtool -L {far} combined {queues}"));
            run(&pair.left, &format!("ethtool -L {near} combined {queues}"));
        }
        for _ in 0..3 {
            run(&pair.right, &format!("ip link set {far} down && ip link set {far} up"));
            run(&pair.left, &format!("ip link set {near} down && ip link set {near} up"));
        }
        // What it may not: the queue that is held cannot be taken away.
        let mut refused = Command::new("ethtool");
        refused.args(["-L", far, "combined", "3"]).stderr(Stdio::null());
        let status = pair.right.namespace().attach(&mut refused).status().expect("starts");
        assert!(!status.success(), "a bound queue was taken away");
        run(&pair.right, &format!("ip link del {far}"));
        child.kill().expect("kills");
        child.wait().expect("ends");
        traffic.join().expect("ends");
    }

    #[test]
    fn a_namespace_goes_under_traffic() {
        let pair = pair(1_500);
        let (left, far) = (pair.left.clone(), pair.right.v4());
        let socket = left.namespace().run(|| UdpSocket::bind((left.v4(), 0)));
        let socket = socket.expect("enters").expect("binds");
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // Refused once the address is gone.
                    let _ = socket.send_to(&[0; 1_400], (far, PORT));
                }
            });
            thread::sleep(Duration::from_millis(100));
            // Nothing else holds the right one, and with its end of the cable ours goes.
            drop(pair);
            let deadline = Instant::now() + Duration::from_secs(10);
            let gone = || !run(&left, "ls /sys/class/net").contains(left.device());
            let mut went = gone();
            while !went && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(50));
                went = gone();
            }
            ended.store(true, Ordering::Relaxed);
            assert!(went, "the device outlives the namespace of its peer");
        });
    }

    #[test]
    fn the_module_goes_while_a_queue_is_held() {
        let pair = ready_to_bind(1_500);
        let mut child = holder(&pair.right);
        let mut left = connect(&pair.left, pair.right.v4());
        left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
        let traffic = thread::spawn(move || while left.write(&stream_of(MIB)).is_ok() {});
        thread::sleep(Duration::from_millis(100));
        let status = Command::new("rmmod").arg("wire").status().expect("starts");
        assert!(status.success(), "the module cannot be removed");
        traffic.join().expect("ends");
        child.kill().expect("kills");
        child.wait().expect("ends");
    }

    mod fixture {
        use super::*;

        #[test]
        #[ignore = "fixture: is killed by another test"]
        fn holds_a_queue() {
            let device = std::env::var("DEVICE").expect("given");
            let name = std::ffi::CString::new(device).expect("a name");
            // SAFETY: the name is terminated.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            let mut receiver = Receiver::bind(index, QUEUE, 512, 4_096).expect("binds");
            let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("listens");
            println!("HELD");
            let (stream, _) = listener.accept().expect("accepts");
            let mut taken = 0;
            let outcome = receiver.receive(&stream, |span| {
                taken += span.len();
                if taken > MIB {
                    thread::sleep(Duration::from_secs(60));
                }
            });
            println!("{outcome:?}");
        }
    }
}
