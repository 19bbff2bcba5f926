//! The limit on open files, and what of it a command has for connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows this process as many descriptors as possible.
pub(crate) fn allow_all() {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        tracing::info!(%error, "the limit on open files stays as it is");
    }
}

/// How many this process may have.
pub(crate) fn allowed() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.and_then(|limit| limit.try_into().ok()).unwrap_or(usize::MAX)
}

/// Connections that a thread may have accepted without having looked at them, and what its driver opens.
const OF_A_THREAD: usize = 64 + 16;

/// What the descriptors of this process are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Connections at once.
    pub(crate) connections: u32,
    /// Pipes that all threads together may splice through.
    pub(crate) pipes: usize,
    /// Why these are fewer connections than wanted.
    pub(crate) note: Option<String>,
}

/// How many connections the descriptors that are left carry, if each takes so many: at most as many as wanted, and one for
/// each thread. A fifth is for pipes, if connections may do without.
pub(crate) fn carry(wanted: u32, threads: u16, each: usize, pipes: bool) -> Carried {
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
    Carried { connections, pipes: left.saturating_sub(connections as usize * each) / 2, note }
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
            (100_000, 1_024, 1, 2, true, (1_024, 48_976)),
            (1_000, 1_024, 1, 2, true, (400, 100)),
            (1_000, 300, 1, 2, true, (300, 200)),
            (1_000, 1_024, 1, 2, false, (500, 0)),
            (0, 1_024, 3, 2, true, (3, 0)),
            (usize::MAX, 65_536, 4, 2, true, (65_536, usize::MAX / 2 - 65_536)),
        ] {
            let it = carried(1_024, left, wanted, threads, each, pipes);
            assert_eq!((it.connections, it.pipes), told, "{left}");
            assert_eq!(it.note.is_some(), it.connections < wanted, "{:?}", it.note);
        }
    }
}
