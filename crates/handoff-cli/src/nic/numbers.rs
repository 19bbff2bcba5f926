//! Numbers of queues in messages.

/// Numbers of queues, as in `2,3`.
pub(super) fn numbers(queues: &[u32]) -> String {
    queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}
