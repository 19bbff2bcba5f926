//! A buffer comes back when the kernel no longer reads it, and not before. The netem discipline holds
//! packets on the sender's device, with the lent pages in them, while every buffer is overwritten in the
//! moment of its return. What leaves the device must be what was lent.
//!
//! The test looks at three places: at the far end of a veth pair, behind the netem of the near end; for a
//! dummy device, with a packet socket, which gets packets when they leave the discipline; and at the far
//! end of the lab's software NIC, which holds frames in its own ring as hardware does, and lets go of them
//! when it has read them. Nothing on these ways copies. All look only after the delay, so that an early
//! return shows. Senders in plain system calls that break the rule test that the observers see it.

mod guest {
    use std::io::{self, Read};
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::time::{Duration, Instant};

    use handoff::{Buffer, Driver, Engine, OnLoan, Region, Tally, Wait};
    use handoff_testbed::{Discard, DiscardKind, Netem, Pair};
    use io_uring::{IoUring, cqueue, opcode, types};
    use rustix::net::{RecvFlags, sockopt};
    use socket2::SockRef;

    use crate::traffic::{attached, engines_apart, pattern, read_all, within};

    const LONG: Duration = Duration::from_secs(25);
    const DELAY: Duration = Duration::from_millis(400);
    /// Datagrams on loan at a time, each within one packet.
    const COUNT: usize = 12;
    const SIZE: usize = 8_192;
    const MTU: u32 = 9_000;
    /// The filling for returned buffers; `pattern` stays below.
    const OVERWRITTEN: u8 = 0xff;

    fn netem() -> Netem {
        Netem { delay: DELAY, ..Netem::default() }
    }

    /// A way for datagrams with netem on it, and what comes out at its end.
    trait Road {
        fn sender(&self) -> UdpSocket;
        /// The payloads of the next `count` datagrams, in the order in which they left.
        fn arrived(&self, count: usize) -> Vec<Vec<u8>>;
    }

    fn delayed_pair() -> Pair {
        let pair = Pair::new(MTU).unwrap();
        pair.left.set_netem(&netem()).unwrap();
        pair
    }

    /// Two hosts whose NIC holds each frame.
    fn slow_wire() -> Pair {
        let pair = Pair::wire(MTU).unwrap();
        let fault = format!("/sys/class/net/{}/wire/delay", pair.right.device());
        pair.right.shell(&format!("echo {} > {fault}", DELAY.as_micros())).unwrap();
        // The usual discipline drops packets that wait for so long behind a full ring.
        pair.left.set_netem(&Netem::default()).unwrap();
        pair
    }

    /// Two hosts, and something between them that delays.
    struct Hosts {
        pair: Pair,
        receiver: UdpSocket,
    }

    impl Hosts {
        fn joined_by(pair: Pair) -> Self {
            let bound = pair.right.namespace().run(|| UdpSocket::bind((pair.right.v4(), 0)));
            let receiver = bound.unwrap().unwrap();
            make_room(&receiver);
            Self { pair, receiver }
        }
    }

    impl Road for Hosts {
        fn sender(&self) -> UdpSocket {
            let left = &self.pair.left;
            let socket = left.namespace().run(|| UdpSocket::bind((left.v4(), 0))).unwrap().unwrap();
            socket.connect(self.receiver.local_addr().unwrap()).unwrap();
            socket
        }

        fn arrived(&self, count: usize) -> Vec<Vec<u8>> {
            let mut space = vec![0; SIZE + 1];
            let mut next = || {
                let len = uninterrupted(|| self.receiver.recv(&mut space)).expect("a datagram");
                space[..len].to_vec()
            };
            (0..count).map(|_| next()).collect()
        }
    }

    /// A dummy that delays, and a packet socket on it.
    struct Dummy {
        sink: Discard,
        tap: OwnedFd,
    }

    impl Dummy {
        fn new() -> Self {
            let sink = Discard::new().unwrap();
            assert_eq!(sink.kind(), DiscardKind::Dummy);
            sink.set_netem(&netem()).unwrap();
            let tap = sink.namespace().run(|| tap_on(sink.device())).unwrap().unwrap();
            make_room(&tap);
            Self { sink, tap }
        }
    }

    impl Road for Dummy {
        fn sender(&self) -> UdpSocket {
            let bound = self.sink.namespace().run(|| UdpSocket::bind("0.0.0.0:0"));
            let socket = bound.unwrap().unwrap();
            socket.connect((self.sink.v4(), 9)).unwrap();
            socket
        }

        fn arrived(&self, count: usize) -> Vec<Vec<u8>> {
            /// IPv4 without options, and UDP.
            const HEADERS: usize = 20 + 8;
            let mut space = vec![0; HEADERS + SIZE];
            let mut payloads = Vec::new();
            while payloads.len() < count {
                let packet = || Ok(rustix::net::recv(&self.tap, &mut space[..], RecvFlags::TRUNC)?);
                let (_, len) = uninterrupted(packet).expect("a packet");
                // Others are announcements of the kernel itself.
                if len == HEADERS + SIZE {
                    payloads.push(space[HEADERS..].to_vec());
                }
            }
            payloads
        }
    }

    /// A ring interrupts system calls that have a time limit when it has work to do.
    fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// A packet socket that gets all IPv4 packets of a device, from the IP header on.
    fn tap_on(device: &str) -> io::Result<OwnedFd> {
        use rustix::net::{AddressFamily, SocketType, netdevice, socket};
        // Only sockets for all protocols see outgoing packets.
        let all = (libc::ETH_P_ALL as u16).to_be();
        let any = socket(AddressFamily::PACKET, SocketType::DGRAM, None)?;
        let index = netdevice::name_to_index(&any, device)?;
        // SAFETY: all-zero bytes are a valid sockaddr_ll, which is plain data.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = index as i32;
        // SAFETY: the address is a live sockaddr_ll of the length that is told.
        let answer = unsafe {
            libc::bind(
                any.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(any) }
    }

    /// Everything that a test sends fits, and a missing packet is an error.
    fn make_room(socket: &impl AsFd) {
        sockopt::set_socket_recv_buffer_size_force(socket, 4 << 20).unwrap();
        let patience = Some(Duration::from_secs(20));
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, patience).unwrap();
    }

    /// Sends, and overwrites each buffer when it is back; returns what happened to the bytes, and how long
    /// that took.
    fn overwrite_returned(
        driver: &Driver,
        sends: impl Iterator<Item = OnLoan<Buffer>>,
    ) -> (Tally, Duration) {
        let begin = Instant::now();
        let mut on_loan: Vec<_> = sends.collect();
        let mut tally = Tally::default();
        loop {
            for loan in std::mem::take(&mut on_loan) {
                match loan.try_take() {
                    Ok(mut returned) => {
                        returned.buffer.fill(OVERWRITTEN);
                        tally += returned.receipt.tally;
                    }
                    Err(loan) => on_loan.push(loan),
                }
            }
            if on_loan.is_empty() {
                return (tally, begin.elapsed());
            }
            driver.turn(Wait::Event).unwrap();
        }
    }

    /// If nothing held the packets, an early return would not show.
    fn check_held(engine: Engine, away: Duration, what: &str) {
        if matches!(engine, Engine::UringZc | Engine::MsgZerocopy) {
            assert!(away > DELAY * 9 / 10, "{what}: netem holds nothing, back in {away:?}");
        }
    }

    fn datagrams_leave_as_they_were_lent(road: &dyn Road) {
        for (driver, engine) in engines_apart() {
            let registrations = if driver.ring_unavailable().is_none() { 2 } else { 1 };
            for registered in 0..registrations {
                let what = format!("{engine}, registered {registered}");
                let mut region = Region::anonymous(COUNT * SIZE).unwrap();
                if registered == 1 {
                    driver.register(&region).unwrap();
                }
                let socket = driver.socket(road.sender()).unwrap();
                socket.set_engine(engine).unwrap();
                let on_loan = (0..COUNT).map(|seed| {
                    let mut buffer = region.take(SIZE).unwrap();
                    buffer.copy_from_slice(&pattern(seed, SIZE));
                    socket.send(buffer).unwrap().split().1
                });
                let (tally, away) = overwrite_returned(&driver, on_loan);
                assert_eq!(tally.total(), (COUNT * SIZE) as u64, "{what}");
                check_held(engine, away, &what);
                check_arrived(road, COUNT, &what);
            }
        }
    }

    /// Headers, several pieces, and a joint return; the second wave reuses records, headers and buffers of
    /// the first at once.
    fn groups_leave_as_they_were_lent(road: &dyn Road) {
        const HEADER: usize = 16;
        const WAVE: usize = COUNT / 2;
        for (driver, engine) in engines_apart() {
            let socket = driver.socket(road.sender()).unwrap();
            socket.set_engine(engine).unwrap();
            let mut region = Region::anonymous(2 * WAVE * SIZE).unwrap();
            let mut piece = |len| region.take(len).unwrap();
            let mut messages: Vec<Vec<Buffer>> =
                (0..WAVE).map(|_| vec![piece(SIZE / 2 - HEADER), piece(SIZE / 2)]).collect();
            for wave in 0..2 {
                let (begin, mut group) = (Instant::now(), driver.group());
                for (place, mut pieces) in messages.drain(..).enumerate() {
                    let content = pattern(wave * WAVE + place, SIZE);
                    let (header, payload) = content.split_at(HEADER);
                    pieces[0].copy_from_slice(&payload[..SIZE / 2 - HEADER]);
                    pieces[1].copy_from_slice(&payload[SIZE / 2 - HEADER..]);
                    drop(socket.message(pieces).header(header).send_in(&mut group).unwrap());
                }
                let mut on_loan = group.flush();
                while let Err(back) = on_loan.try_take(&mut messages) {
                    on_loan = back;
                    driver.turn(Wait::Event).unwrap();
                }
                check_held(engine, begin.elapsed(), &format!("{engine}, wave {wave}"));
                messages.iter_mut().flatten().for_each(|piece| piece.fill(OVERWRITTEN));
            }
            check_arrived(road, 2 * WAVE, &engine.to_string());
        }
    }

    /// Datagrams may overtake each other.
    fn check_arrived(road: &dyn Road, count: usize, what: &str) {
        let mut expected: Vec<_> = (0..count).map(|seed| pattern(seed, SIZE)).collect();
        for payload in road.arrived(count) {
            let place = expected.iter().position(|it| *it == payload);
            let place = place.unwrap_or_else(|| panic!("{what}: {}", describe(&payload)));
            expected.swap_remove(place);
        }
    }

    fn describe(payload: &[u8]) -> String {
        let overwritten = payload.iter().filter(|&&byte| byte == OVERWRITTEN).count();
        format!("{overwritten} of {} bytes were overwritten before they left", payload.len())
    }

    #[test]
    fn over_veth_datagrams_leave_as_they_were_lent() {
        within(LONG, || datagrams_leave_as_they_were_lent(&Hosts::joined_by(delayed_pair())));
    }

    #[test]
    fn over_the_wire_datagrams_leave_as_they_were_lent() {
        within(LONG, || datagrams_leave_as_they_were_lent(&Hosts::joined_by(slow_wire())));
    }

    #[test]
    fn over_dummy_datagrams_leave_as_they_were_lent() {
        within(LONG, || datagrams_leave_as_they_were_lent(&Dummy::new()));
    }

    #[test]
    fn over_veth_groups_leave_as_they_were_lent() {
        within(LONG, || groups_leave_as_they_were_lent(&Hosts::joined_by(delayed_pair())));
    }

    #[test]
    fn over_the_wire_groups_leave_as_they_were_lent() {
        within(LONG, || groups_leave_as_they_were_lent(&Hosts::joined_by(slow_wire())));
    }

    #[test]
    fn over_dummy_groups_leave_as_they_were_lent() {
        within(LONG, || groups_leave_as_they_were_lent(&Dummy::new()));
    }

    fn a_stream_leaves_as_it_was_lent(pair: &Pair, len: usize) {
        for (driver, engine) in engines_apart() {
            let (near, far) = pair.connection().unwrap();
            // One whole message is under way, and at most two.
            SockRef::from(&near).set_send_buffer_size(2 * len).unwrap();
            let reader = read_all(far);
            let mut region = Region::anonymous(4 * len).unwrap();
            let socket = attached(&driver, near, engine);
            let on_loan = (0..4).map(|seed| {
                let mut buffer = region.take(len).unwrap();
                buffer.copy_from_slice(&pattern(seed, len));
                socket.send(buffer).unwrap().split().1
            });
            let (tally, away) = overwrite_returned(&driver, on_loan);
            assert_eq!(tally.total(), 4 * len as u64, "{engine}");
            check_held(engine, away, &engine.to_string());
            drop(socket);
            let expected: Vec<u8> = (0..4).flat_map(|seed| pattern(seed, len)).collect();
            let arrived = reader.join().unwrap();
            assert!(arrived == expected, "{engine}: {}", describe(&arrived));
        }
    }

    #[test]
    fn over_veth_a_stream_leaves_as_it_was_lent() {
        within(LONG, || a_stream_leaves_as_it_was_lent(&delayed_pair(), 64 << 10));
    }

    /// A ring that holds everything for so long lets little pass.
    #[test]
    fn over_the_wire_a_stream_leaves_as_it_was_lent() {
        within(LONG, || a_stream_leaves_as_it_was_lent(&slow_wire(), 16 << 10));
    }

    /// Breaks the rule on purpose: lends bytes, and writes to them before their return. Returns whether that was
    /// before anything left: a machine that stands still for so long shows nothing.
    type BreakTheRule = fn(&dyn AsFd, &mut [u8]) -> bool;
    const OFFENDERS: [BreakTheRule; 2] = [lend_to_ring, lend_to_system_call];

    fn an_early_overwrite_shows(road: &dyn Road) {
        for lend in OFFENDERS {
            let payload = loop {
                let in_time = lend(&road.sender(), &mut pattern(1, SIZE));
                let payload = road.arrived(1).remove(0);
                if in_time {
                    break payload;
                }
            };
            assert!(payload == [OVERWRITTEN; SIZE], "{}", describe(&payload));
        }
    }

    /// Makes the kernel send `bytes`, and overwrites them while it holds them.
    fn lend_to_ring(socket: &dyn AsFd, bytes: &mut [u8]) -> bool {
        let mut ring = IoUring::new(4).unwrap();
        let begin = Instant::now();
        let send = opcode::SendZc::new(
            types::Fd(socket.as_fd().as_raw_fd()),
            bytes.as_ptr(),
            bytes.len().try_into().unwrap(),
        );
        // SAFETY: buffer and socket outlive both completions, which are awaited below. The kernel
        // only reads the bytes, and no reference says that they do not change meanwhile but ours,
        // which writes them.
        unsafe { ring.submission().push(&send.build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let taken = ring.completion().next().unwrap();
        assert_eq!(taken.result(), bytes.len() as i32);
        assert!(cqueue::more(taken.flags()), "they are on loan");
        let is_back = !ring.completion().is_empty();
        bytes.fill(OVERWRITTEN);
        let in_time = begin.elapsed() < DELAY;
        assert!(!(is_back && in_time), "they are on loan");
        ring.submit_and_wait(1).unwrap();
        assert!(cqueue::notif(ring.completion().next().unwrap().flags()));
        in_time
    }

    /// The same by MSG_ZEROCOPY.
    fn lend_to_system_call(socket: &dyn AsFd, bytes: &mut [u8]) -> bool {
        let socket = socket.as_fd();
        handoff_sys::zerocopy::enable(socket).unwrap();
        let begin = Instant::now();
        // SAFETY: the kernel reads the bytes, which live until its notification is awaited below.
        let sent = unsafe {
            libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY)
        };
        assert_eq!(sent, bytes.len() as isize, "{}", io::Error::last_os_error());
        let is_back = notified(socket, Duration::ZERO);
        bytes.fill(OVERWRITTEN);
        let in_time = begin.elapsed() < DELAY;
        assert!(!(is_back && in_time), "they are on loan");
        assert!(notified(socket, DELAY * 50), "never returned");
        // SAFETY: all-zero bytes are a valid msghdr: no name, no data, no control.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // SAFETY: the message has no buffers to write to.
        let taken =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE) };
        assert_eq!(taken, 0, "{}", io::Error::last_os_error());
        in_time
    }

    /// Whether the error queue gets a notification within the time.
    fn notified(socket: BorrowedFd<'_>, within: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut wait = [PollFd::new(&socket, PollFlags::empty())];
        let time = Timespec::try_from(within).unwrap();
        poll(&mut wait, Some(&time)).unwrap() > 0
    }

    #[test]
    fn over_veth_an_early_overwrite_shows() {
        within(LONG, || an_early_overwrite_shows(&Hosts::joined_by(delayed_pair())));
    }

    #[test]
    fn over_the_wire_an_early_overwrite_shows() {
        within(LONG, || an_early_overwrite_shows(&Hosts::joined_by(slow_wire())));
    }

    #[test]
    fn over_dummy_an_early_overwrite_shows() {
        within(LONG, || an_early_overwrite_shows(&Dummy::new()));
    }

    #[test]
    fn over_veth_an_early_overwrite_of_a_stream_shows() {
        within(LONG, || {
            let pair = delayed_pair();
            for lend in OFFENDERS {
                let mut bytes = pattern(1, SIZE);
                while {
                    let (near, mut far) = pair.connection().unwrap();
                    let in_time = lend(&near, &mut pattern(1, SIZE));
                    far.read_exact(&mut bytes).unwrap();
                    !in_time
                } {}
                assert!(bytes == [OVERWRITTEN; SIZE], "{}", describe(&bytes));
            }
        });
    }
}
