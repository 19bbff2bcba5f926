//! Probes of locked and huge memory, and the scratch memory of the other probes.
//!
//! Kernel interface: `RLIMIT_MEMLOCK`, which io_uring charges per user for registered buffers
//! unless the caller holds CAP_IPC_LOCK in the first user namespace; `MAP_HUGETLB`.

use std::ffi::c_void;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::answer::{Answer, Finding};

const PAGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;
const MIB: u64 = 1 << 20;

/// Anonymous memory of a probe, unmapped on drop.
pub(super) struct Scratch {
    start: NonNull<c_void>,
    len: usize,
}

impl Scratch {
    pub(super) fn page() -> Result<Self, Answer> {
        Self::map(PAGE, MapFlags::PRIVATE)
            .map_err(|error| Answer::unknown(format!("no memory for a probe: {error}")))
    }

    fn map(len: usize, flags: MapFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        Ok(Self { start: NonNull::new(start).expect("mmap never answers with NULL"), len })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone; what the kernel may still read of it is pinned, and
        // a probe whose memory the kernel may still write to forgets it instead of dropping it.
        // Unmapping a whole mapping does not fail.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len) };
    }
}

/// Bytes that this thread may lock, if that is limited.
pub fn lock_limit() -> Option<u64> {
    getrlimit(Resource::Memlock).current.filter(|_| !holds(CapabilitySet::IPC_LOCK))
}

/// Bytes that this process has locked or pinned, as io_uring does with registered buffers.
pub fn locked_already() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |line: &str| {
        let amount = line.strip_prefix("VmLck:").or_else(|| line.strip_prefix("VmPin:"))?;
        amount.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    status.lines().filter_map(of).sum::<u64>() << 10
}

pub(super) fn locked() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    Ok(explain(limit, holds(CapabilitySet::IPC_LOCK)))
}

/// Whether this thread holds a capability that counts; `false` also where that cannot be read. The
/// kernel checks these capabilities in the first user namespace: being root in another one counts for
/// nothing.
pub(super) fn holds(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
        && !in_inner_user_namespace()
}

/// Why CAP_NET_ADMIN is missing, for what only the first user namespace may allow.
pub(super) fn without_net_admin(what: &str) -> Answer {
    if in_inner_user_namespace() {
        return Answer::no(format!(
            "{what} needs CAP_NET_ADMIN of the first user namespace, and this process is in another one"
        ))
        .remedy("run the container without a user namespace of its own, and with CAP_NET_ADMIN");
    }
    Answer::no(format!("{what} needs CAP_NET_ADMIN")).remedy("run as root or with CAP_NET_ADMIN")
}

/// Whether this process is known to be in another user namespace than the first one, which has a fixed
/// number (`USER_NS_INIT_INO` in `include/uapi/linux/nsfs.h`).
pub(super) fn in_inner_user_namespace() -> bool {
    const FIRST: u64 = 0xefff_fffd;
    fs::metadata("/proc/self/ns/user").is_ok_and(|namespace| namespace.ino() != FIRST)
}

fn explain(limit: Option<u64>, privileged: bool) -> Answer {
    match limit {
        _ if privileged => Answer::yes().detail("no limit (CAP_IPC_LOCK)"),
        None => Answer::yes().detail("no limit (RLIMIT_MEMLOCK)"),
        Some(bytes) if bytes < PAGE as u64 => Answer::no(format!(
            "RLIMIT_MEMLOCK is {bytes} bytes: nothing can be registered or pinned"
        ))
        .remedy(RAISE),
        Some(bytes) => Answer::yes()
            .detail(format!(
                "limit {}.{} MiB for all rings of this user (RLIMIT_MEMLOCK)",
                bytes / MIB,
                bytes % MIB * 10 / MIB
            ))
            .remedy(RAISE),
    }
}

const RAISE: &str =
    "ulimit -l KIB, LimitMEMLOCK= in a systemd unit, or CAP_IPC_LOCK outside of user namespaces";

/// The answer when the kernel had no memory for a ring, or refused to lock another page; with the limit on locked memory,
/// if there is one.
pub(super) fn without_memory(limit: Option<u64>) -> Answer {
    let fragmented = "the kernel found no memory, or none in one piece";
    let compact = "sysctl vm.compact_memory=1";
    match limit {
        Some(bytes) => Answer::no(format!(
            "ENOMEM: locked memory is used up (RLIMIT_MEMLOCK {bytes} bytes), or {fragmented}"
        ))
        .remedy(format!("{RAISE}; or {compact}")),
        None => Answer::no(format!("ENOMEM: {fragmented}")).remedy(compact),
    }
}

pub(super) fn huge_pages() -> Finding {
    // Populating makes the kernel take the page now; otherwise a SIGBUS could come later.
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE;
    let free = pool("free_hugepages");
    match Scratch::map(HUGE_PAGE, flags) {
        Ok(_) => Ok(Answer::yes().detail(match free {
            Some(free) => format!("{free} free of 2 MiB"),
            None => "of 2 MiB".to_owned(),
        })),
        Err(rustix::io::Errno::NOMEM) => Err(Answer::no(match pool("nr_hugepages") {
            Some(0) => "the pool of 2 MiB pages is empty".to_owned(),
            Some(total) => format!("all {total} pages of 2 MiB are taken"),
            None => "ENOMEM".to_owned(),
        })
        .remedy("sysctl vm.nr_hugepages=64")),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NODEV | rustix::io::Errno::NOSYS) => {
            Err(Answer::no("the kernel has no 2 MiB pages")
                .remedy("a kernel with CONFIG_HUGETLBFS"))
        }
        Err(error) => Err(Answer::unknown(format!("mapping a huge page fails: {error}"))),
    }
}

fn pool(counter: &str) -> Option<u64> {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{counter}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::State;

    #[test]
    fn the_limit_is_told() {
        assert_eq!(explain(Some(0), true).state, State::Yes);
        assert_eq!(explain(None, false).state, State::Yes);
        assert_eq!(explain(Some(0), false).state, State::No);
        let answer = explain(Some(8 << 20 | 1 << 19), false);
        assert_eq!(answer.state, State::Yes);
        assert!(answer.reason.expect("detail").contains("8.5 MiB"));
        assert!(answer.remedy.expect("remedy").contains("ulimit -l"));
        assert!(without_memory(Some(4096)).reason.expect("why").contains("4096 bytes"));
        assert!(without_memory(None).reason.expect("why").contains("in one piece"));
    }
}
