//! System calls that fail, as on another kernel or for another user.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

/// Has these calls fail with an error, for this thread to its end and for those that it starts. Where a call has rules,
/// it fails only if one of them matches.
pub(crate) fn refuse_calls(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>, errno: i32) {
    let filter = SeccompFilter::new(
        calls.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let filter: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}
