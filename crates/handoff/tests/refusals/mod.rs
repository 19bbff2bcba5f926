//! System calls that fail, as on another kernel or for another user.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

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

/// Has the kernel take no two requests in a call that waits for nothing, as one that is short of memory.
pub(crate) fn take_no_two_requests() {
    let is = |argument, value| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap()
    };
    let rule = SeccompRule::new(vec![is(1, 2), is(2, 0)]).unwrap();
    refuse_calls([(libc::SYS_io_uring_enter, vec![rule])], libc::EAGAIN);
}
