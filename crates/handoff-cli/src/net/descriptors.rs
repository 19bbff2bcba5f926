//! The limit on open files.

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
