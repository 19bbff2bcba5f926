//! Every engine to a dummy device, which ends packets untouched: there lent bytes are not copied. Two
//! witnesses agree on that: the kernel's own reports and the copy meter.

mod guest {
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::time::{Duration, Instant};

    use handoff::{Buffer, Driver, Engine, Outcome, Region, Socket, Tally, Wait};
    use handoff_meter::{Meter, Options, Scope, Totals};
    use handoff_testbed::{Discard, DiscardKind};

    use crate::traffic::{engines_apart, pattern, within};

    const LONG: Duration = Duration::from_secs(20);
    /// Less than the 17 pages that one packet has room for.
    const SIZE: usize = 60_000;
    const MESSAGES: usize = 128;
    const BYTES: u64 = (SIZE * MESSAGES) as u64;
    /// Heads of packets, and what reading the meter costs.
    const SLACK: u64 = BYTES / 100;
    /// Kernel threads copy for others too, and the meter cannot tell for whom. That only adds, and ends.
    const QUIET_WITHIN: Duration = Duration::from_secs(5);

    /// The real dummy device, not its stand-in: the lab's kernel has it.
    fn dummy() -> Discard {
        let sink = Discard::new().unwrap();
        assert_eq!(sink.kind(), DiscardKind::Dummy);
        sink
    }

    fn connected(sink: &Discard, v6: bool) -> UdpSocket {
        let (any, far): (&str, IpAddr) = match v6 {
            false => ("0.0.0.0:0", sink.v4().into()),
            true => ("[::]:0", sink.v6().into()),
        };
        let socket = sink.namespace().run(|| UdpSocket::bind(any).unwrap()).unwrap();
        socket.connect(SocketAddr::new(far, 9)).unwrap();
        socket
    }

    fn filled(region: &mut Region) -> Vec<Buffer> {
        let mut buffers = region.chunks(SIZE);
        for (seed, buffer) in buffers.iter_mut().enumerate() {
            buffer.copy_from_slice(&pattern(seed, SIZE));
        }
        buffers
    }

    /// Sends all messages, several at a time, and waits for all returns.
    fn send(driver: &Driver, socket: &Socket, free: &mut Vec<Buffer>) -> Tally {
        let (mut tally, mut on_loan) = (Tally::default(), Vec::new());
        let mut left = MESSAGES;
        while left > 0 || !on_loan.is_empty() {
            while left > 0
                && let Some(buffer) = free.pop()
            {
                on_loan.push(socket.send(buffer).unwrap().split().1);
                left -= 1;
            }
            driver.turn(Wait::Event).unwrap();
            for loan in std::mem::take(&mut on_loan) {
                match loan.try_take() {
                    Ok(returned) => {
                        tally += returned.receipt.tally;
                        free.push(returned.buffer);
                    }
                    Err(loan) => on_loan.push(loan),
                }
            }
        }
        tally
    }

    /// Everything that the kernel copied meanwhile for this process, or for a process it could not name.
    fn copied(totals: Totals) -> u64 {
        totals.copied_bytes + totals.unattributed_bytes
    }

    fn agree(tally: Tally, seen: u64) -> bool {
        seen.abs_diff(tally.copied) <= SLACK
    }

    #[test]
    fn nothing_is_copied_and_the_meter_sees_the_same() {
        within(LONG, || {
            let sink = dummy();
            let scope = Scope::Tree(std::process::id());
            let meter = Meter::attach_with(Options { scope, paths: true, libc: false }).unwrap();
            for (driver, engine) in engines_apart() {
                for (v6, registered) in [(false, false), (true, false), (false, true)] {
                    if registered && driver.ring_unavailable().is_some() {
                        continue;
                    }
                    let mut region = Region::anonymous(1 << 20).unwrap();
                    if registered {
                        driver.register(&region).unwrap();
                    }
                    let socket = driver.socket(connected(&sink, v6)).unwrap();
                    socket.set_engine(engine).unwrap();
                    let mut buffers = filled(&mut region);
                    let begun = Instant::now();
                    let (tally, seen) = loop {
                        let before = meter.totals().unwrap();
                        let tally = send(&driver, &socket, &mut buffers);
                        let seen = copied(meter.totals().unwrap().since(before));
                        if agree(tally, seen) || begun.elapsed() > QUIET_WITHIN {
                            break (tally, seen);
                        }
                    };
                    let what = format!("{engine}, v6 {v6}, registered {registered}: {tally:?}");
                    assert_eq!(tally.total(), BYTES, "{what}");
                    match engine {
                        Engine::UringZc | Engine::MsgZerocopy => {
                            assert_eq!(tally.outcome(), Outcome::ZeroCopy, "{what}");
                        }
                        Engine::Copy => assert_eq!(tally.outcome(), Outcome::Copied, "{what}"),
                        // It may copy some sends to find out which is faster, and reports how many.
                        Engine::Auto => assert_eq!(tally.unknown, 0, "{what}"),
                        Engine::KernelTls | Engine::UserTls => unreachable!("of TLS connections"),
                    }
                    assert!(
                        agree(tally, seen),
                        "the meter saw {seen} copied bytes; {what}; {:#?}",
                        meter.read().unwrap()
                    );
                }
            }
        });
    }

    #[test]
    fn a_header_goes_along_with_lent_payload() {
        within(LONG, || {
            let sink = dummy();
            for (driver, engine) in engines_apart() {
                if !matches!(engine, Engine::UringZc | Engine::MsgZerocopy) {
                    continue;
                }
                let socket = driver.socket(connected(&sink, false)).unwrap();
                socket.set_engine(engine).unwrap();
                for len in [1, 4096, 8000, SIZE] {
                    let header = [7; 48];
                    let message = socket.message(Buffer::from(pattern(1, len))).header(&header);
                    let returned =
                        driver.block_on(message.send().unwrap().split().1).unwrap().unwrap();
                    let tally = returned.receipt.tally;
                    assert_eq!(tally.total(), (len + header.len()) as u64, "{engine}");
                    assert_eq!(tally.outcome(), Outcome::ZeroCopy, "{engine} {len} {tally:?}");
                    assert!(returned.buffer[..] == pattern(1, len));
                }
            }
        });
    }
}
