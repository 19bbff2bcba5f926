//! The limit of descriptors that the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows `more` descriptors than the limit is now, since other rows may have theirs open already. If the
/// kernel refuses that, the limit becomes the hard limit. Whoever opens descriptors reports if that is too
/// little.
pub(crate) fn allow(more: u64) {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.current.map(|current| current + more);
    let maximum = limit.maximum.zip(wanted).map(|(maximum, wanted)| maximum.max(wanted));
    if setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}
