//! The limit on open files, and what of it a command has for connections.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows this process as many descriptors as possible.
pub fn allow_all() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::info!(%error, "the limit on open files stays as it is");
    }
}

/// How many this process may have.
pub fn allowed() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| limit.try_into().ok()).unwrap_or(usize::MAX)
}

/// Connections that wait to be accepted, for each thread that listens; the kernel's own limit may be lower.
pub const BACKLOG: i32 = 1024;

/// Connections that a thread may have accepted without having looked at them, and what its driver opens.
const OF_A_THREAD: usize = 64 + 16;

/// What the descriptors of this process are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Connections at once.
    pub connections: u32,
    /// Pipes that all threads together may splice through.
    pub pipes: usize,
    /// Descriptors that connections need beside their own, for a [`Reserve`]; 0 if there are enough for all that wait, too.
    pub reserve: usize,
    /// Why these are fewer connections than wanted.
    pub note: Option<String>,
}

/// How many connections the descriptors that are left carry, if each takes so many: at most as many as wanted, and one for
/// each thread. A fifth is for pipes, if connections may do without.
pub fn carry(wanted: u32, threads: u16, each: usize, pipes: bool) -> Carried {
    let (allowed, threads) = (allowed(), usize::from(threads));
    let own = open() + threads * OF_A_THREAD.min(allowed / 4 / threads);
    carried(allowed, allowed.saturating_sub(own), wanted, threads, each, pipes)
}

fn carried(
    allowed: usize,
    left: usize,
    wanted: u32,
    threads: usize,
    each: usize,
    pipes: bool,
) -> Carried {
    let for_pipes = if pipes { left / 5 } else { 0 };
    let most = ((left - for_pipes) / each).max(threads);
    let connections = wanted.min(u32::try_from(most).unwrap_or(u32::MAX));
    let note = (connections < wanted).then(|| {
        format!(
            "this process may have {allowed} descriptors (ulimit -n, LimitNOFILE= in systemd), which carry \
             {connections} connections at once, not {wanted} (--max-connections): others wait"
        )
    });
    let taken = connections as usize * each;
    // A pipe for each direction, and all that wait: a ring accepts them at once.
    let most = taken + connections as usize * 4 + threads * BACKLOG as usize;
    Carried {
        connections,
        pipes: left.saturating_sub(taken) / 2,
        reserve: if most > left { taken - connections as usize } else { 0 },
        note,
    }
}

/// Descriptors that are kept for connections under way: those that are only accepted get none of them.
pub struct Reserve(Arc<Mutex<Kept>>);

struct Kept {
    files: Vec<File>,
    size: usize,
    lent: usize,
}

impl Reserve {
    /// Keeps so many descriptors, as far as there are any.
    pub fn new(size: usize) -> Self {
        let mut kept = Kept { files: Vec::new(), size, lent: 0 };
        kept.fill();
        Self(Arc::new(Mutex::new(kept)))
    }

    /// Frees so many for a connection, which opens what it needs at once, until it drops the result.
    pub fn lend(&self, count: usize) -> Lent {
        let mut kept = lock(&self.0);
        kept.lent += count;
        let len = kept.files.len().saturating_sub(count);
        kept.files.truncate(len);
        Lent { reserve: Arc::clone(&self.0), count }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn fill(&mut self) {
        while self.files.len() + self.lent < self.size {
            let one = self.files.first().map_or_else(|| File::open("/dev/null"), File::try_clone);
            // Others have them: the next connection that ends fills up.
            let Ok(one) = one else { return };
            self.files.push(one);
        }
    }
}

/// Descriptors of a [`Reserve`] that a connection has.
pub struct Lent {
    reserve: Arc<Mutex<Kept>>,
    count: usize,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut kept = lock(&self.reserve);
        kept.lent -= self.count;
        kept.fill();
    }
}

/// How many this process has.
fn open() -> usize {
    // Where /proc is missing, more than a command has when it starts.
    std::fs::read_dir("/proc/self/fd").map_or(32, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_shared_out() {
        for (left, wanted, threads, each, pipes, told) in [
            (100_000, 1_024, 1, 2, true, (1_024, 48_976, 0)),
            (1_000, 1_024, 1, 2, true, (400, 100, 400)),
            (1_000, 300, 1, 2, true, (300, 200, 300)),
            (1_000, 1_024, 1, 4, false, (250, 0, 750)),
            (0, 1_024, 3, 2, true, (3, 0, 3)),
            (usize::MAX, 65_536, 4, 2, true, (65_536, usize::MAX / 2 - 65_536, 0)),
        ] {
            let it = carried(1_024, left, wanted, threads, each, pipes);
            assert_eq!((it.connections, it.pipes, it.reserve), told, "{left}");
            assert_eq!(it.note.is_some(), it.connections < wanted, "{:?}", it.note);
        }
    }

    #[test]
    fn what_connections_give_back_is_kept_again() {
        let reserve = Reserve::new(6);
        let kept = || lock(&reserve.0).files.len();
        assert_eq!(kept(), 6);
        let [first, second] = [3, 3].map(|count| reserve.lend(count));
        assert_eq!(kept(), 0);
        // There is no more, and it asks for none.
        drop(reserve.lend(3));
        assert_eq!(kept(), 0);
        drop(first);
        assert_eq!(kept(), 3);
        drop(second);
        assert_eq!(kept(), 6);
    }
}
