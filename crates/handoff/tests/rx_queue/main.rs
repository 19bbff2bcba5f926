//! Zero-copy receive on the lab's software NIC: what arrives, what is copied, and what becomes of
//! chunks, queues and receivers when things go wrong.

#[path = "../traffic/mod.rs"]
#[allow(dead_code, reason = "each test program uses a part")]
mod traffic;

mod bed;

mod guest {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::AsFd;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use handoff::{
        Driver, Error, Intake, Outcome, Pages, ReceiveEngine, Received, Receiver, Region,
        RxBinding, RxQueue, Tally, Wait,
    };
    use nix::sys::socket::setsockopt;
    use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
    use rustix::net::sockopt;

    use super::bed::{Bed, QUEUES, byte_at, port, send, stream_of};
    use super::traffic::within;

    const LONG: Duration = Duration::from_secs(60);
    const MIB: usize = 1 << 20;
    const PAGE: usize = 4_096;
    const QUEUE: u32 = QUEUES[0];
    const ECONNRESET: i32 = rustix::io::Errno::CONNRESET.raw_os_error();

    fn driver() -> Driver {
        Driver::builder().zero_copy_receive(true).build().expect("a ring")
    }

    fn area(chunks: usize) -> Region {
        Region::anonymous(chunks * PAGE).expect("memory")
    }

    fn bound(bed: &Bed, driver: &Driver, chunks: usize) -> RxQueue {
        bed.bind(driver, QUEUE, area(chunks), None).expect("binds")
    }

    fn receiver(driver: &Driver, socket: TcpStream, intake: impl Into<Intake>) -> Receiver {
        driver.socket(socket).expect("attaches").receive(intake).expect("starts")
    }

    /// Takes a stream to its end and compares it.
    async fn expect_stream(receiver: &mut Receiver, bytes: usize) {
        let mut position = 0;
        while let Some(span) = receiver.next_span().await {
            let span = span.expect("receives");
            let same = span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at));
            assert!(same, "something differs from {position} to {}", position + span.len());
            position += span.len();
        }
        assert_eq!(position, bytes);
    }

    /// Receives a stream over a queue that is bound.
    fn exchange(bed: &Bed, driver: &Driver, queue: &RxQueue, ipv6: bool, bytes: usize) -> Tally {
        let right = &bed.pair.right;
        let (left, far) =
            if ipv6 { bed.stream(right.v6(), QUEUE) } else { bed.stream(right.v4(), QUEUE) };
        let mut receiver = receiver(driver, far, queue);
        let sender = send(left, bytes);
        driver.block_on(expect_stream(&mut receiver, bytes)).expect("runs");
        let tally = receiver.tally();
        drop(receiver);
        sender.join().expect("ends");
        tally
    }

    fn whole(bytes: usize) -> Tally {
        Tally { zero_copy: bytes as u64, ..Tally::default() }
    }

    /// Every two of memory, chunk, MTU, family (and with it shape of completions), delivery and fault
    /// meet.
    #[test]
    fn what_was_sent_arrives_and_is_not_copied() {
        within(LONG, || {
            std::fs::write("/proc/sys/vm/nr_hugepages", "16").expect("takes huge pages");
            let mut faults = 0;
            for (huge, chunk, mtu, ipv6, whole_frames, fault) in [
                (false, None, 1_500, false, false, None),
                (true, Some(16 << 10), 1_500, true, true, Some(("drop", 10_000))),
                (true, Some(64 << 10), 4_148, false, true, Some(("reorder", 200_000))),
                (false, None, 4_148, true, true, Some(("reorder", 200_000))),
                (true, None, 4_148, false, false, Some(("drop", 10_000))),
                (true, Some(16 << 10), 9_000, false, false, Some(("reorder", 200_000))),
                (false, None, 9_000, true, true, Some(("drop", 10_000))),
                (true, Some(64 << 10), 9_000, true, false, None),
            ] {
                let case = format!("{huge} {chunk:?} {mtu} {ipv6} {whole_frames} {fault:?}");
                let bed = Bed::new(mtu);
                if whole_frames {
                    bed.deliver_whole();
                }
                if let Some((fault, share)) = fault {
                    bed.fault(fault, share);
                }
                let memory = if huge { Region::huge(32 * MIB) } else { Region::anonymous(8 * MIB) };
                let memory = memory.expect("memory");
                assert!(!matches!(memory.pages(), Pages::BaseInsteadOfHuge(_)), "{case}");
                let driver = Driver::builder().zero_copy_receive(true).mixed_completions(ipv6);
                let driver = driver.build().expect("a ring");
                let queue = bed.bind(&driver, QUEUE, memory, chunk).expect("binds");
                assert_eq!(queue.chunk(), chunk.unwrap_or(PAGE));
                let tally = exchange(&bed, &driver, &queue, ipv6, MIB);
                assert_eq!(tally, whole(MIB), "{case}: {queue:?}");
                assert_eq!((queue.held(), queue.stats().copied), (0, Some(0)), "{case}");
                let count = bed.counters();
                assert!(count["queue3_rx_split"] > 0, "{case}: {count:?}");
                faults += count["fault_dropped"] + count["fault_reordered"];
            }
            assert!(faults > 0);
            // Transparent ones do as well.
            std::fs::write("/proc/sys/vm/nr_hugepages", "0").expect("gives them back");
            let (bed, driver) = (Bed::new(1_500), driver());
            let memory = Region::huge(32 * MIB).expect("memory");
            assert_eq!(memory.pages(), &Pages::Transparent);
            let queue = bed.bind(&driver, QUEUE, memory, Some(64 << 10)).expect("binds");
            assert_eq!(exchange(&bed, &driver, &queue, false, MIB), whole(MIB));
        });
    }

    /// 100 GiB in its long form, with losses and packets out of order in turns.
    #[test]
    fn much_crosses_and_none_of_it_is_copied() {
        let soak = std::env::var_os("HANDOFF_SOAK").is_some();
        let (rounds, bytes) = if soak { (100, 1 << 30) } else { (3, 8 * MIB) };
        within(if soak { LONG * 600 } else { LONG }, move || {
            let bed = Bed::new(1_500);
            bed.deliver_whole();
            let driver = driver();
            let memory = Region::huge(64 * MIB).expect("memory");
            let queue = bed.bind(&driver, QUEUE, memory, Some(64 << 10)).expect("binds");
            // Of a length that no packet, page or chunk divides.
            let block: &'static [u8] = stream_of(MIB - 4_093).leak();
            for round in 0..rounds {
                let faults = [("drop", 1_000), ("reorder", 10_000)].into_iter().enumerate();
                for (turn, (fault, share)) in faults {
                    bed.fault(fault, if round % 3 == turn { share } else { 0 });
                }
                let (mut left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
                let mut receiver = receiver(&driver, far, &queue);
                let sender = thread::spawn(move || {
                    let mut left_over = bytes;
                    while left_over > 0 {
                        let part = &block[..left_over.min(block.len())];
                        left.write_all(part).expect("sends");
                        left_over -= part.len();
                    }
                });
                let taking = async {
                    let mut position = 0;
                    while let Some(span) = receiver.next_span().await {
                        let span = span.expect("receives");
                        let mut rest = &span[..];
                        while !rest.is_empty() {
                            let expected = &block[position % block.len()..];
                            let (now, later) = rest.split_at(rest.len().min(expected.len()));
                            assert!(now == &expected[..now.len()], "differs from {position} on");
                            position += now.len();
                            rest = later;
                        }
                    }
                    position
                };
                assert_eq!(driver.block_on(taking).expect("runs"), bytes, "round {round}");
                assert_eq!(receiver.tally(), whole(bytes), "round {round}: {queue:?}");
                drop(receiver);
                sender.join().expect("ends");
            }
        });
    }

    #[test]
    fn spans_that_are_kept_hold_the_sender_up_and_nothing_is_lost() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(1_500), driver());
            let queue = bound(&bed, &driver, 1_024);
            let (left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
            assert_eq!(queue.shortfall(), None);
            let mut receiver = receiver(&driver, far, &queue);
            assert!(
                queue.shortfall().is_some_and(|told| told.contains("may run dry")),
                "{queue:?}"
            );
            // More than the area, and what the sender's socket takes in.
            let sender = send(left, 8 * MIB);
            let mut kept: Vec<Received> = Vec::new();
            // Nothing more comes when the NIC has no chunk left.
            let quiet = Duration::from_millis(500);
            let mut last = Instant::now();
            while last.elapsed() < quiet {
                driver.turn(Wait::AtMost(quiet)).expect("turns");
                while let Some(span) = receiver.try_next_span() {
                    kept.push(span.expect("goes on").expect("receives"));
                    last = Instant::now();
                }
            }
            assert!(!sender.is_finished());
            assert_eq!(queue.held(), kept.len());
            assert!(kept.len() > 512 && kept.len() <= queue.chunks(), "{queue:?}");
            assert!(queue.stats().shortages > 0, "{:?}", queue.stats());
            let before: usize = kept.iter().map(|span| span.len()).sum();
            let mut position = 0;
            for span in kept.drain(..) {
                let same =
                    span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at));
                assert!(same, "a kept span has changed at {position}");
                position += span.len();
            }
            let rest = async {
                let mut position = before;
                while let Some(span) = receiver.next_span().await {
                    let span = span.expect("receives");
                    assert!(
                        span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at))
                    );
                    position += span.len();
                }
                position
            };
            assert_eq!(driver.block_on(rest).expect("runs"), 8 * MIB);
            sender.join().expect("ends");
        });
    }

    #[test]
    fn several_connections_and_queues_at_once() {
        within(LONG, || {
            let bed = Bed::new(1_500);
            thread::scope(|scope| {
                for queue in QUEUES {
                    let bed = &bed;
                    scope.spawn(move || {
                        let driver = driver();
                        let bound = bed.bind(&driver, queue, area(4_096), None).expect("binds");
                        let listener = bed.listen(bed.pair.right.v4(), port(queue));
                        let mut streams = Vec::new();
                        for _ in 0..4 {
                            let left = bed.connect(bed.pair.right.v4(), port(queue));
                            let (far, _) = listener.accept().expect("accepts");
                            streams.push((receiver(&driver, far, &bound), send(left, MIB / 2)));
                        }
                        let all = streams.iter_mut().map(|(receiver, _)| async {
                            expect_stream(receiver, MIB / 2).await;
                        });
                        driver.block_on(join_all(all)).expect("runs");
                        for (receiver, sender) in streams {
                            assert_eq!(receiver.tally(), whole(MIB / 2), "{bound:?}");
                            sender.join().expect("ends");
                        }
                    });
                }
            });
        });
    }

    async fn join_all<F: Future<Output = ()>>(all: impl Iterator<Item = F>) {
        let mut all: Vec<_> = all.map(Box::pin).collect();
        std::future::poll_fn(|context| {
            all.retain_mut(|one| one.as_mut().poll(context).is_pending());
            if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    #[test]
    fn bytes_that_come_by_another_queue_are_counted_as_copied() {
        within(LONG, || {
            let bed = Bed::new(1_500);
            bed.fault("wrong_queue", 200_000);
            let driver = driver();
            let queue = bound(&bed, &driver, 2_048);
            let tally = exchange(&bed, &driver, &queue, false, MIB);
            assert_eq!(tally.outcome(), Outcome::Mixed, "{queue:?}");
            assert_eq!(Some(tally.copied), queue.stats().copied);
            assert_eq!(tally.zero_copy + tally.copied, MIB as u64);
        });
    }

    /// What the kernel copies is taken plainly; what only the NIC's memory has, from the queue again.
    #[test]
    fn a_queue_that_copies_is_left_and_returned_to() {
        within(LONG, || {
            let bed = Bed::new(1_500);
            bed.fault("wrong_queue", 1_000_000);
            let driver = driver();
            let queue = bound(&bed, &driver, 2_048);
            let pool = Region::anonymous(MIB).expect("memory");
            let pool = driver.pool(pool, 16 << 10).expect("a pool");
            let (mut left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, queue.or(&pool));
            assert_eq!(receiver.engine().0, ReceiveEngine::Zcrx);
            let mut position = 0;
            let mut pass = |bytes: usize, receiver: &mut Receiver| {
                let part: Vec<u8> = (position..position + bytes).map(byte_at).collect();
                thread::scope(|scope| {
                    scope.spawn(|| left.write_all(&part).expect("sends"));
                    let mut got = Vec::new();
                    let taking = async {
                        while got.len() < bytes {
                            let span = receiver.next_span().await.expect("goes on");
                            got.extend_from_slice(&span.expect("receives"));
                        }
                    };
                    driver.block_on(taking).expect("runs");
                    assert!(got == part, "what arrived differs");
                });
                position += bytes;
            };
            pass(MIB, &mut receiver);
            // All may have been in the ring before the queue could be left.
            for _ in 0..16 {
                if receiver.engine().0 == ReceiveEngine::Multishot {
                    break;
                }
                pass(4 << 10, &mut receiver);
            }
            let (engine, reason) = receiver.engine();
            assert_eq!(engine, ReceiveEngine::Multishot, "{reason}");
            assert!(reason.contains("copied"), "{reason}");
            bed.fault("wrong_queue", 0);
            pass(MIB, &mut receiver);
            let (engine, reason) = receiver.engine();
            assert_eq!(engine, ReceiveEngine::Zcrx, "{reason}");
            let tally = receiver.tally();
            assert!(tally.zero_copy > MIB as u64 / 2 && tally.copied > MIB as u64 / 2, "{tally:?}");
        });
    }

    #[test]
    fn without_a_device_everything_is_copied() {
        within(LONG, || {
            let driver = driver();
            let queue = driver.rx_queue(area(256), &RxBinding::without_device()).expect("binds");
            let (left, far) = super::traffic::tcp("127.0.0.1");
            let mut receiver = receiver(&driver, left, &queue);
            assert_eq!(receiver.engine().0, ReceiveEngine::ZcrxNodev);
            // Many times the area, so that the refill queue has to be flushed for it.
            let sender = send(far, 8 * MIB);
            driver.block_on(expect_stream(&mut receiver, 8 * MIB)).expect("runs");
            assert_eq!(receiver.tally(), Tally { copied: 8 * MIB as u64, ..Tally::default() });
            assert!(queue.stats().flushes > 0, "{queue:?}");
            drop(receiver);
            sender.join().expect("ends");
        });
    }

    #[test]
    fn whole_pages_are_mapped_and_the_rest_is_copied() {
        within(LONG, || {
            // A page and the headers in each packet.
            let bed = Bed::new(4_148);
            for driver in super::traffic::drivers() {
                let window = driver.window(64, 16 * PAGE).expect("maps");
                let (left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
                let mut receiver = receiver(&driver, far, &window);
                let sender = send(left, MIB + 1_000);
                let mut kept = Vec::new();
                let taking = async {
                    let mut position = 0;
                    while let Some(span) = receiver.next_span().await {
                        let span = span.expect("receives");
                        let same = |(at, byte): (usize, &u8)| *byte == byte_at(position + at);
                        assert!(span.iter().enumerate().all(same), "differs from {position}");
                        let end = position + span.len();
                        if kept.len() < 8 {
                            kept.push((position, span));
                        }
                        position = end;
                    }
                    position
                };
                assert_eq!(driver.block_on(taking).expect("runs"), MIB + 1_000);
                assert_eq!(receiver.engine().0, ReceiveEngine::TcpZerocopyReceive);
                let tally = receiver.tally();
                assert!(tally.zero_copy > MIB as u64 / 2, "{tally:?}");
                assert_eq!(tally.zero_copy + tally.copied, MIB as u64 + 1_000);
                drop(receiver);
                assert_eq!(window.held(), kept.len());
                for (position, span) in kept {
                    let same = |(at, byte): (usize, &u8)| *byte == byte_at(position + at);
                    assert!(span.iter().enumerate().all(same), "a kept span has changed");
                }
                sender.join().expect("ends");
            }
        });
    }

    #[test]
    fn spans_go_on_to_a_socket_and_to_a_file() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(4_148), driver());
            let queue = bound(&bed, &driver, 2_048);
            driver.register(&queue).expect("registers the area");
            let (left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, &queue);
            // Back to where they came from, over the NIC, from the very memory that it wrote to.
            let listener = bed.listen(bed.pair.right.v4(), 4_100);
            let mut reader = bed.connect(bed.pair.right.v4(), 4_100);
            let (relay, _) = listener.accept().expect("accepts");
            let relay = driver.socket(relay).expect("attaches");
            relay.set_engine(handoff::Engine::UringZc).expect("sends without copying");
            let written = tempfile::tempfile().expect("a file");
            let file = driver.file(written.try_clone().expect("clones")).expect("attaches");
            let sender = send(left, MIB);
            let reading = thread::spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).expect("reads");
                assert!(got == stream_of(MIB), "what was relayed differs");
            });
            let mut position = 0;
            let work = async {
                while let Some(span) = receiver.next_span().await {
                    let mut span = span.expect("receives");
                    let rest = span.len();
                    let half = span.split_to(rest / 2);
                    for part in [half, span] {
                        let sent = relay.send(part).expect("lends").await;
                        assert_eq!(sent.receipt.outcome(), Outcome::ZeroCopy);
                        let (at, len) = (position as u64, sent.buffer.len());
                        let stored = file.write_at(sent.buffer, at).expect("lends").await;
                        assert_eq!(stored.result.expect("writes"), len);
                        position += len;
                    }
                }
            };
            driver.block_on(work).expect("runs");
            assert_eq!(position, MIB);
            assert_eq!(queue.held(), 0);
            rustix::net::shutdown(&relay, rustix::net::Shutdown::Write).expect("ends");
            drop(receiver);
            sender.join().expect("ends");
            reading.join().expect("compares");
            let mut stored = Vec::new();
            let mut written = written;
            std::io::Seek::rewind(&mut written).expect("seeks");
            written.read_to_end(&mut stored).expect("reads");
            assert!(stored == stream_of(MIB), "what was written differs");
        });
    }

    #[test]
    fn both_directions_at_once() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(1_500), driver());
            let queue = bound(&bed, &driver, 2_048);
            let (left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
            let mut back = left.try_clone().expect("clones");
            let sender = send(left, MIB);
            let taker = thread::spawn(move || {
                let mut got = vec![0; MIB];
                back.read_exact(&mut got).expect("reads");
                assert!(got == stream_of(MIB), "what came back differs");
            });
            let socket = driver.socket(far).expect("attaches");
            let mut receiver = socket.receive(&queue).expect("starts");
            let mut region = Region::anonymous(MIB).expect("memory");
            let mut buffer = region.take(MIB).expect("room");
            buffer.copy_from_slice(&stream_of(MIB));
            let sending = socket.send(buffer).expect("lends");
            driver.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
            let sent = driver.block_on(async { sending.await }).expect("runs");
            assert_eq!(sent.sent.expect("sends"), MIB);
            assert_eq!(receiver.tally(), whole(MIB));
            taker.join().expect("compares");
            drop((receiver, socket));
            sender.join().expect("ends");
        });
    }

    #[test]
    fn short_connections_leave_nothing_behind() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(1_500), driver());
            let queue = bound(&bed, &driver, 1_024);
            let address = bed.pair.right.v4();
            let listener = bed.listen(address, port(QUEUE));
            let connections =
                if std::env::var_os("HANDOFF_SOAK").is_some() { 20_000 } else { 1_000 };
            for count in 0..connections {
                let mut left = bed.connect(address, port(QUEUE));
                let (far, _) = listener.accept().expect("accepts");
                let mut receiver = receiver(&driver, far, &queue);
                let bytes = 1 + count * 37 % 5_000;
                left.write_all(&stream_of(bytes)).expect("sends");
                match count % 3 {
                    // The sender ends, the receiver goes without a look, or the sender resets.
                    0 => {
                        left.shutdown(Shutdown::Write).expect("ends");
                        driver.block_on(expect_stream(&mut receiver, bytes)).expect("runs");
                    }
                    1 => drop(receiver),
                    _ => {
                        let none = Some(Duration::ZERO);
                        sockopt::set_socket_linger(left.as_fd(), none).expect("sets");
                        drop(left);
                    }
                }
            }
            drop(listener);
            // Cancelled receives end with a turn or two.
            let deadline = Instant::now() + Duration::from_secs(10);
            while driver.in_flight() > 0 && Instant::now() < deadline {
                driver.turn(Wait::AtMost(Duration::from_millis(10))).expect("turns");
            }
            assert_eq!((driver.in_flight(), queue.held()), (0, 0));
            assert_eq!(exchange(&bed, &driver, &queue, false, MIB).copied, 0);
        });
    }

    #[test]
    fn a_reset_is_told_after_what_came_before() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(1_500), driver());
            let queue = bound(&bed, &driver, 1_024);
            let (mut left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
            let mut receiver = receiver(&driver, far, &queue);
            left.write_all(&stream_of(10_000)).expect("sends");
            let mut kept = Vec::new();
            let arriving = async {
                let mut bytes = 0;
                while bytes < 10_000 {
                    let span = receiver.next_span().await.expect("goes on").expect("receives");
                    bytes += span.len();
                    kept.push(span);
                }
            };
            driver.block_on(arriving).expect("runs");
            sockopt::set_socket_linger(left.as_fd(), Some(Duration::ZERO)).expect("sets");
            drop(left);
            let end = driver.block_on(async { receiver.next_span().await }).expect("runs");
            let error = end.expect("told").expect_err("an error");
            assert_eq!(error.raw_os_error(), Some(ECONNRESET), "{error}");
            // Spans outlive receiver, queue and driver.
            drop((receiver, queue, driver));
            let mut position = 0;
            for span in kept {
                assert!(span.iter().enumerate().all(|(at, byte)| *byte == byte_at(position + at)));
                position += span.len();
            }
        });
    }

    #[test]
    fn refusals_say_what_to_do() {
        let (bed, driver) = (Bed::new(1_500), driver());
        let queue = bound(&bed, &driver, 1_024);
        let refusal = |result: handoff::Result<RxQueue>| match result.expect_err("refused") {
            Error::EngineUnavailable { engine: "zcrx", reason } => reason,
            other => panic!("{other:?}"),
        };
        let again = refusal(bed.bind(&driver, QUEUE, area(1_024), None));
        assert!(again.contains("bound already"), "{again}");
        let missing = refusal(bed.bind(&driver, 60, area(1_024), None));
        assert!(missing.contains("no rx queue 60"), "{missing}");
        let pieces = refusal(bed.bind(&driver, QUEUES[1], area(5_000), Some(64 << 10)));
        assert!(pieces.contains("huge pages"), "{pieces}");
        let plain = Driver::new().expect("a driver");
        let error = bed.bind(&plain, QUEUES[1], area(1_024), None).expect_err("refused");
        assert!(error.to_string().contains("zero_copy_receive"), "{error}");
        let used = {
            let mut used = area(1_024);
            used.take(1).expect("room");
            bed.bind(&driver, QUEUES[1], used, None).expect_err("refused")
        };
        assert!(used.to_string().contains("whole region"), "{used}");
        let small = refusal(bed.bind(&driver, QUEUES[1], area(64), None));
        assert!(small.contains("the NIC's ring alone"), "{small}");
        // Bytes of a queue that is bound can't be had plainly.
        let (mut left, far) = bed.stream(bed.pair.right.v4(), QUEUE);
        left.write_all(&stream_of(1_000)).expect("sends");
        let pool = driver.pool(area(1_024), PAGE).expect("a pool");
        let mut receiver = receiver(&driver, far, &pool);
        let first = driver.block_on(async { receiver.next_span().await }).expect("runs");
        let error = first.expect("told").expect_err("an error").to_string();
        assert!(error.contains("memory of an rx queue"), "{error}");
        // Datagrams neither.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("binds");
        let mut receiver =
            driver.socket(socket).expect("attaches").receive(&queue).expect("starts");
        let first = driver.block_on(async { receiver.next_span().await }).expect("runs");
        let error = first.expect("told").expect_err("an error").to_string();
        assert!(error.contains("TCP"), "{error}");
    }

    /// Has the kernel do the connection's TLS, with keys that both ends know.
    fn tls(sender: &TcpStream, receiver: &TcpStream) {
        for socket in [sender, receiver] {
            setsockopt(socket, TcpUlp::default(), b"tls").expect("the lab's kernel has it");
        }
        let keys = libc::tls12_crypto_info_aes_gcm_128 {
            info: libc::tls_crypto_info {
                version: libc::TLS_1_3_VERSION,
                cipher_type: libc::TLS_CIPHER_AES_GCM_128,
            },
            iv: [1; 8],
            key: [2; 16],
            salt: [3; 4],
            rec_seq: [0; 8],
        };
        setsockopt(sender, TcpTlsTx, &TlsCryptoInfo::Aes128Gcm(keys)).expect("takes the keys");
        setsockopt(receiver, TcpTlsRx, &TlsCryptoInfo::Aes128Gcm(keys)).expect("takes the keys");
    }

    /// What the NIC has put into our memory is not what was sent, but its cipher.
    #[test]
    fn a_connection_whose_tls_the_kernel_does_is_refused_and_received_into_a_pool() {
        within(LONG, || {
            let (bed, driver) = (Bed::new(1_500), driver());
            let queue = bound(&bed, &driver, 1_024);
            let (left, far) = bed.stream(bed.pair.right.v4(), QUEUES[1]);
            tls(&left, &far);
            let refused = far.try_clone().expect("a second descriptor");
            let mut refused = receiver(&driver, refused, &queue);
            let first = driver.block_on(async { refused.next_span().await }).expect("runs");
            let error = first.expect("told").expect_err("an error").to_string();
            assert!(error.contains("not where it does TLS"), "{error}");
            drop(refused);
            let pool = driver.pool(area(64), PAGE).expect("a pool");
            let mut receiver = receiver(&driver, far, queue.or(&pool));
            let sender = send(left, MIB);
            driver.block_on(expect_stream(&mut receiver, MIB)).expect("runs");
            assert_eq!(receiver.tally(), Tally { copied: MIB as u64, ..Tally::default() });
            sender.join().expect("ends");
        });
    }

    /// Holds spans of the queue in a process of its own, which says so and then waits.
    fn holder(bed: &Bed) -> Child {
        let mut child = Command::new(std::env::current_exe().expect("our path"));
        child.args(["--exact", "--ignored", "--nocapture", "guest::fixture::holds_spans"]);
        child.env("DEVICE", bed.pair.right.device()).env("QUEUE", QUEUE.to_string());
        child.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = bed.pair.right.namespace().attach(&mut child).spawn().expect("starts");
        let output = child.stdout.as_mut().expect("piped");
        let mut said = String::new();
        let mut byte = [0];
        while !said.contains("LISTENS") {
            assert_eq!(output.read(&mut byte).expect("reads"), 1, "ended after: {said}");
            said.push(byte[0] as char);
        }
        child
    }

    #[test]
    fn a_killed_holder_of_spans_gives_its_queue_back() {
        within(LONG, || {
            let bed = Bed::new(1_500);
            for _ in 0..3 {
                let mut child = holder(&bed);
                let mut left = bed.connect(bed.pair.right.v4(), port(QUEUE));
                left.set_write_timeout(Some(Duration::from_millis(200))).expect("sets");
                // It keeps all that it gets, until there is no chunk left.
                while left.write(&stream_of(MIB)).is_ok() {}
                child.kill().expect("kills");
                child.wait().expect("ends");
                drop(left);
                let driver = driver();
                // The kernel lets go of a dead ring from a worker of its own.
                let deadline = Instant::now() + Duration::from_secs(5);
                let queue = loop {
                    match bed.bind(&driver, QUEUE, area(1_024), None) {
                        Ok(queue) => break queue,
                        Err(error) if Instant::now() > deadline => panic!("{error}"),
                        Err(_) => thread::sleep(Duration::from_millis(1)),
                    }
                };
                assert_eq!(exchange(&bed, &driver, &queue, false, MIB).copied, 0);
            }
        });
    }

    mod fixture {
        use super::*;

        #[test]
        #[ignore = "a process of its own, which another test kills"]
        fn holds_spans() {
            let device = std::env::var("DEVICE").expect("set");
            let queue = std::env::var("QUEUE").expect("set").parse().expect("a number");
            let driver = driver();
            let binding = RxBinding::new(&device, queue).expect("is there");
            let queue = driver.rx_queue(area(1_024), &binding).expect("binds");
            let listener = std::net::TcpListener::bind(("0.0.0.0", port(QUEUE))).expect("binds");
            println!("LISTENS");
            let (far, _) = listener.accept().expect("accepts");
            let mut receiver = receiver(&driver, far, &queue);
            let mut kept = Vec::new();
            let keeping = async {
                while let Some(span) = receiver.next_span().await {
                    kept.push(span.expect("receives"));
                }
            };
            driver.block_on(keeping).expect("runs");
        }
    }
}
