//! The pages of a frozen buffer are pinned once for all drivers, where the kernel can.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use handoff::{Driver, Engine, Frozen, Pinning, Region, Wait};
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use crate::LONG;
use crate::readers::Readers;
use crate::refusals::refuse_calls;
use crate::traffic::{self, filled, pattern, tcp, within};

const LEN: usize = 48 << 10;

/// Locked memory counts only for users with a limit. All threads become such a user, with the limit of most
/// systems; returns whether that is possible.
fn become_limited() -> bool {
    let room = Some(8 << 20);
    if setrlimit(Resource::Memlock, Rlimit { current: room, maximum: room }).is_err() {
        return false;
    }
    if rustix::process::geteuid().is_root() {
        const USER: u32 = 65_532;
        // SAFETY: plain system calls without memory.
        let changed = unsafe { libc::setresuid(USER, USER, USER) };
        assert_eq!(changed, 0, "root may become {USER}");
        // Otherwise older kernels keep the process from reading facts about itself.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
    }
    true
}

fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Registers through the frozen buffer, sends a part of it, and returns how its pages are pinned.
fn sends_registered(driver: &Driver, frozen: &Frozen) -> Pinning {
    let pinning = driver.register(frozen).unwrap();
    let mut readers = Readers::new();
    let (near, far) = tcp("127.0.0.1");
    readers.add(far);
    let socket = driver.socket(near).unwrap();
    socket.set_engine(Engine::UringZc).unwrap();
    let finished =
        driver.block_on(async { socket.send(frozen.part(5..)).unwrap().await }).unwrap().unwrap();
    assert_eq!(finished.sent.unwrap(), LEN - 5);
    drop(socket);
    driver.turn(Wait::No).unwrap();
    traffic::assert_same(&readers.end()[0], &pattern(9, LEN)[5..]);
    pinning
}

#[test]
fn drivers_of_many_threads_share_one_pinning() {
    let test = "pinning::drivers_of_many_threads_share_one_pinning";
    if !traffic::alone(test) {
        return;
    }
    within(LONG, move || {
        const THREADS: usize = 12;
        /// So little that every driver may pin all of it.
        const REGION: usize = 512 << 10;
        if !become_limited() {
            return traffic::skip(test, "the limit on locked memory is too low");
        }
        let driver = Driver::new().unwrap();
        if let Some(reason) = driver.ring_unavailable() {
            return traffic::skip(test, reason);
        }
        let before = pinned();
        let mut region = Region::anonymous(REGION).unwrap();
        let frozen = filled(&mut region, 9, LEN).freeze();
        assert_eq!(sends_registered(&driver, &frozen), Pinning::Own);
        let of_one = pinned() - before;
        assert_eq!(of_one, REGION as u64);
        assert!(driver.register(&region).unwrap_err().to_string().contains("already"));
        let (leave, left) = mpsc::channel::<()>();
        let left = Arc::new(Mutex::new(left));
        let (tell, told) = mpsc::channel();
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (frozen, tell, left) = (frozen.clone(), tell.clone(), left.clone());
                thread::spawn(move || {
                    let driver = Driver::new().unwrap();
                    tell.send(sends_registered(&driver, &frozen)).unwrap();
                    let _ = left.lock().unwrap().recv();
                    // Some announce that they leave, some just go.
                    if number % 2 == 0 {
                        driver.unregister(&frozen).unwrap();
                    }
                })
            })
            .collect();
        let how: Vec<_> = threads.iter().map(|_| told.recv().unwrap()).collect();
        let of_all = pinned() - before;
        match &how[0] {
            Pinning::Shared => {
                assert!(how.iter().all(|how| *how == Pinning::Shared), "{how:?}");
                assert_eq!(of_all, of_one, "the pages are pinned once");
            }
            Pinning::Again(reason) => {
                assert!(how.iter().all(|how| matches!(how, Pinning::Again(_))), "{how:?}");
                assert!(reason.contains("6.13"), "{reason}");
                assert_eq!(of_all, of_one * (THREADS as u64 + 1));
            }
            Pinning::Own => panic!("another driver has it"),
        }
        // The first goes, and the others go on.
        driver.unregister(&region).unwrap();
        assert!(driver.unregister(&frozen).is_err());
        drop(leave);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // The kernel takes rings down a little later.
        while pinned() > before {
            thread::yield_now();
        }
        assert_eq!(frozen.try_unfreeze().unwrap().len(), LEN);
        // As at the beginning.
        assert_eq!(driver.register(&region).unwrap(), Pinning::Own);
    });
}

/// As before Linux 6.13, for this thread and those that it starts.
fn forbid_cloning() {
    const IORING_REGISTER_CLONE_BUFFERS: u64 = 30;
    let operation = SeccompCondition::new(
        1,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        IORING_REGISTER_CLONE_BUFFERS,
    );
    let rule = SeccompRule::new(vec![operation.unwrap()]).unwrap();
    refuse_calls([(libc::SYS_io_uring_register, vec![rule])], libc::EINVAL);
}

/// Rings that this process has open.
fn rings() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let target = |entry: std::io::Result<std::fs::DirEntry>| entry?.path().read_link();
    let targets = open.filter_map(|entry| target(entry).ok());
    targets.filter(|target| target.as_os_str() == "anon_inode:[io_uring]").count()
}

/// Registers with two drivers; returns how the second has the pages, and how many extra rings were made.
fn with_two_drivers() -> Option<(Pinning, usize)> {
    let (one, other) = (Driver::new().unwrap(), Driver::new().unwrap());
    if one.ring_unavailable().is_some() {
        return None;
    }
    let of_drivers = rings();
    let region = Region::anonymous(LEN).unwrap();
    assert_eq!(one.register(&region).unwrap(), Pinning::Own);
    let pinning = other.register(&region).unwrap();
    one.unregister(&region).unwrap();
    other.unregister(&region).unwrap();
    Some((pinning, rings() - of_drivers))
}

#[test]
fn a_ring_to_share_from_is_made_only_where_rings_share() {
    let test = "pinning::a_ring_to_share_from_is_made_only_where_rings_share";
    if !traffic::alone(test) {
        return;
    }
    within(LONG, move || {
        let without = thread::spawn(|| {
            forbid_cloning();
            with_two_drivers()
        });
        let Some((pinning, made)) = without.join().unwrap() else {
            return traffic::skip(test, "the kernel has no io_uring here");
        };
        assert!(matches!(pinning, Pinning::Again(_)), "{pinning:?}");
        assert_eq!(made, 0);
        // What was refused for one thread is tried again; then it is known whether the kernel has it.
        match with_two_drivers().unwrap() {
            (Pinning::Shared, made) => assert_eq!(made, 1),
            (pinning, made) => {
                assert!(matches!(pinning, Pinning::Again(_)), "{pinning:?}");
                assert_eq!(made, 0);
            }
        }
    });
}

#[test]
fn memory_of_the_heap_is_not_registered() {
    let driver = Driver::new().unwrap();
    if driver.ring_unavailable().is_some() {
        return;
    }
    let error = driver.register(&handoff::Buffer::from(vec![1; 64]).freeze()).unwrap_err();
    assert!(error.to_string().contains("Region"), "{error}");
}
