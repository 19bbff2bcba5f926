//! Sending as a user whose limit on locked memory is 0 or small: errors name the limit and the need, and
//! what needs no locked memory works. Root has no limit, so each case runs in a process that first becomes
//! another user.

use std::future::IntoFuture;

use handoff::{Buffer, Driver, Engine, Error, Finished, Region, RingUse, Socket};
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};

use crate::traffic::{self, attached, pattern, read_all, tcp};

/// Users with much locked memory, which counts against the limits of all their processes.
const ANOTHER: u32 = 65533;
const A_THIRD: u32 = 65532;
const A_FOURTH: u32 = 65531;

fn become_nobody(test: &str, limit: u64) -> bool {
    become_user(65534, test, limit)
}

/// Drops root's capabilities, and limits locked memory; `false` where that is impossible.
fn become_user(user: u32, test: &str, limit: u64) -> bool {
    if rustix::process::geteuid().is_root() {
        // All threads, since the kernel's workers belong to the process.
        // SAFETY: plain system calls without memory.
        let changed = unsafe { libc::setresuid(user, user, user) };
        assert_eq!(changed, 0, "root may become {user}");
        // Otherwise the process could not read its own /proc/self/auxv any more, which older kernels need.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
    }
    let limit = Some(limit);
    setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })
        .expect("everybody may lower a limit");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(effective.trim(), 16).unwrap();
    const CAP_IPC_LOCK: u64 = 1 << 14;
    if capabilities & CAP_IPC_LOCK != 0 {
        traffic::skip(test, "CAP_IPC_LOCK can't be given up");
        return false;
    }
    true
}

/// Sends over a connection that a peer reads, each buffer behind the header.
fn send(
    driver: &Driver,
    engine: Engine,
    header: &[u8],
    buffers: Vec<Buffer>,
) -> (Vec<Finished<Buffer>>, Socket) {
    let (near, far) = tcp("127.0.0.1");
    let socket = attached(driver, near, engine);
    let mut expected: Vec<Vec<u8>> =
        buffers.iter().map(|buffer| [header, &buffer[..]].concat()).collect();
    let reader = read_all(far);
    let sendings: Vec<_> = buffers
        .into_iter()
        .map(|buffer| socket.message(buffer).header(header).send().unwrap())
        .collect();
    let finished = driver
        .block_on(async {
            let mut finished = Vec::new();
            for sending in sendings {
                finished.push(sending.into_future().await.unwrap());
            }
            finished
        })
        .unwrap();
    for (finished, expected) in finished.iter().zip(&mut expected) {
        assert!(finished.buffer[..] == expected[header.len()..]);
        if finished.sent.is_err() {
            expected.clear();
        }
    }
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
    assert!(reader.join().unwrap() == expected.concat(), "{engine}");
    (finished, socket)
}

fn refuses_to_pin(limit: u64) {
    let len = (limit as usize + (1 << 20)).next_multiple_of(4096);
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).build().unwrap();
        let mut region = Region::anonymous(len).unwrap();
        if driver.ring_unavailable().is_none() {
            let error = driver.register(&region).unwrap_err();
            let Error::Memlock { need, limit: told, .. } = error else { panic!("{error}") };
            assert_eq!((need, told), (len as u64, limit));
            for way_out in ["ulimit -l", "CAP_IPC_LOCK", "copy engine"] {
                assert!(error.to_string().contains(way_out), "{error}");
            }
        }
        let mut buffer = region.take(len).unwrap();
        buffer.copy_from_slice(&pattern(1, len));
        // A header goes before the refused payload, and must not go twice.
        for header in [&b""[..], b"header"] {
            for engine in [Engine::Auto, Engine::Copy] {
                let (mut finished, socket) = send(&driver, engine, header, vec![buffer]);
                let finished = finished.remove(0);
                assert_eq!(finished.sent.unwrap(), header.len() + len, "{engine}");
                buffer = finished.buffer;
                if engine == Engine::Auto {
                    let choice = socket.choice(len);
                    assert_eq!(choice.engine, Engine::Copy, "{choice:?}");
                }
            }
        }
        let explicit = match ring {
            RingUse::Avoid => vec![Engine::MsgZerocopy],
            _ if driver.ring_unavailable().is_some() => vec![Engine::MsgZerocopy],
            _ => vec![Engine::UringZc, Engine::MsgZerocopy],
        };
        for engine in explicit {
            let (mut finished, _socket) = send(&driver, engine, b"", vec![buffer]);
            let finished = finished.remove(0);
            let error = finished.sent.unwrap_err();
            let Error::Memlock { limit: told, .. } = error else { panic!("{engine}: {error}") };
            assert_eq!(told, limit, "{engine}");
            buffer = finished.buffer;
        }
    }
}

#[test]
fn a_limit_of_zero_leaves_copying() {
    const NAME: &str = "memlock::a_limit_of_zero_leaves_copying";
    if traffic::alone(NAME) && become_nobody(NAME, 0) {
        refuses_to_pin(0);
    }
}

#[test]
fn a_small_limit_is_named_and_small_sends_fit() {
    const NAME: &str = "memlock::a_small_limit_is_named_and_small_sends_fit";
    const LIMIT: u64 = 1 << 20;
    if !traffic::alone(NAME) || !become_user(A_THIRD, NAME, LIMIT) {
        return;
    }
    for ring in [RingUse::Prefer, RingUse::Avoid] {
        let driver = Driver::builder().ring(ring).build().unwrap();
        if driver.ring_unavailable().is_none() {
            let region = Region::anonymous(256 << 10).unwrap();
            driver.register(&region).unwrap();
            driver.unregister(&region).unwrap();
        }
        for engine in traffic::engines(&driver) {
            let (finished, _socket) =
                send(&driver, engine, b"", vec![Buffer::from(pattern(1, 100_000))]);
            assert_eq!(*finished[0].sent.as_ref().unwrap(), 100_000, "{engine}");
        }
        // Together they would exceed the limit; each alone does not.
        for engine in [Engine::Auto, Engine::Copy] {
            let buffers = (0..20).map(|seed| Buffer::from(pattern(seed, 200_000))).collect();
            let (finished, _socket) = send(&driver, engine, b"", buffers);
            for finished in finished {
                assert_eq!(finished.sent.unwrap(), 200_000, "{engine}");
            }
        }
    }
    refuses_to_pin(LIMIT);
}

#[test]
fn a_queue_that_the_limit_does_not_allow_is_smaller() {
    const NAME: &str = "memlock::a_queue_that_the_limit_does_not_allow_is_smaller";
    const LIMIT: u64 = 512 << 10;
    if !traffic::alone(NAME) || !become_user(A_FOURTH, NAME, LIMIT) {
        return;
    }
    if let Some(reason) = Driver::new().unwrap().ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    for spans in [false, true] {
        let driver = Driver::builder().completions(1 << 16).zero_copy_receive(spans);
        let driver = driver.ring(RingUse::Require).build().unwrap();
        let (finished, _socket) = send(&driver, Engine::Copy, b"", vec![Buffer::from(vec![1; 9])]);
        assert_eq!(*finished[0].sent.as_ref().unwrap(), 9);
    }
}

/// Streams skip the slots of huge pages, and pin for each send, where the limit allows it.
#[test]
fn huge_pages_that_are_registered_need_no_more() {
    const NAME: &str = "memlock::huge_pages_that_are_registered_need_no_more";
    const LEN: usize = 2 << 20;
    const LIMIT: u64 = 5 << 20;
    if !traffic::alone(NAME) || !become_user(ANOTHER, NAME, LIMIT) {
        return;
    }
    let driver = Driver::new().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    let mut region = Region::huge(2 * LEN).unwrap();
    driver.register(&region).unwrap();
    let mut buffers: Vec<_> = (0..2).map(|_| region.take(LEN).unwrap()).collect();
    for (seed, buffer) in buffers.iter_mut().enumerate() {
        buffer.copy_from_slice(&pattern(seed, LEN));
    }
    for header in [&b""[..], b"header"] {
        let (finished, _socket) = send(&driver, Engine::UringZc, header, buffers);
        let sent = |finished: Finished<Buffer>| {
            assert_eq!(finished.sent.unwrap(), header.len() + LEN);
            finished.buffer
        };
        buffers = finished.into_iter().map(sent).collect();
    }
}

#[test]
fn what_the_process_has_locked_already_is_named() {
    const NAME: &str = "memlock::what_the_process_has_locked_already_is_named";
    const LIMIT: u64 = 8 << 20;
    const LOCKED: usize = 4 << 20;
    if !traffic::alone(NAME) || !become_nobody(NAME, LIMIT) {
        return;
    }
    let driver = Driver::new().unwrap();
    if let Some(reason) = driver.ring_unavailable() {
        return traffic::skip(NAME, reason);
    }
    let first = Region::anonymous(LOCKED).unwrap();
    driver.register(&first).unwrap();
    let need = LOCKED + (1 << 20);
    let error = driver.register(&Region::anonymous(need).unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("this process has {LOCKED},")), "{text}");
    let Error::Memlock { need: asked, locked, limit, .. } = error else { panic!("{error}") };
    assert_eq!((asked, locked, limit), (need as u64, LOCKED as u64, LIMIT));
}

#[test]
fn the_root_of_a_user_namespace_has_the_limit_of_its_user() {
    const TEST: &str = "memlock::the_root_of_a_user_namespace_has_the_limit_of_its_user";
    const LIMIT: u64 = 64 << 10;
    if std::env::var("HANDOFF_TEST_ALONE").is_ok_and(|name| name == TEST) {
        let limit = Some(LIMIT);
        setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit }).unwrap();
        let found = handoff_probe::general();
        let locked = found.iter().find(|one| one.mechanism == "locked memory").unwrap();
        let reason = locked.reason.as_deref().unwrap();
        assert!(reason.starts_with("limit 0.0 MiB"), "{reason}");
        let driver = Driver::new().unwrap();
        if driver.ring_unavailable().is_some() {
            return;
        }
        let error = driver.register(&Region::anonymous(1 << 20).unwrap()).unwrap_err();
        let Error::Memlock { limit, .. } = error else { panic!("{error}") };
        assert_eq!(limit, LIMIT);
        return;
    }
    let unshare = || {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return traffic::skip(TEST, "no user namespace can be made");
    }
    let run = unshare()
        .arg(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .env("HANDOFF_TEST_ALONE", TEST)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
