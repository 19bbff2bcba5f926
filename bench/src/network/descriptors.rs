//! How many descriptors the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows `more` descriptors than now, since other rows have theirs open already; if that is refused, as many as
/// the hard limit allows. Whoever opens them reports if that is too little.
pub(crate) fn allow(more: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.current.map(|current| current + more);
    let maximum = limit.maximum.zip(wanted).map(|(maximum, wanted)| maximum.max(wanted));
    if setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}
