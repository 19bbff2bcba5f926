//! Probes of the kernel's part of zero-copy receive; each interface is probed on its own.
//!
//! Kernel interface: `IORING_OP_RECV_ZC`, `IORING_REGISTER_QUERY`; binding an rx queue needs
//! CAP_NET_ADMIN and restarts the queue, so it is not tried here.

use handoff_sys::query;
use io_uring::opcode;
use rustix::thread::CapabilitySet;

use super::answer::{Answer, Finding};
use super::memory::holds;
use super::ring;

pub(super) fn zcrx() -> Finding {
    let ring = ring::ring()?;
    ring::knows(&ring, opcode::RecvZc::CODE, "RECV_ZC")?;
    if !holds(CapabilitySet::NET_ADMIN) {
        return Err(Answer::no("binding an rx queue needs CAP_NET_ADMIN")
            .remedy("run as root or with CAP_NET_ADMIN"));
    }
    Ok(Answer::yes().detail("in the kernel; whether an interface can, see there"))
}

pub(super) fn without_device() -> Finding {
    ring::ring()?;
    explain(query::zcrx())
}

fn explain(answer: std::io::Result<query::Zcrx>) -> Finding {
    match answer {
        Ok(zcrx) if zcrx.register_flags & query::ZCRX_REG_NODEV != 0 => {
            Ok(Answer::yes().detail("copies everything: for tests and as a fallback"))
        }
        Ok(_) => Err(Answer::no("the kernel does not announce ZCRX_REG_NODEV")),
        Err(error) => Err(match error.raw_os_error() {
            // EBADF: a kernel that checks the descriptor before the operation.
            Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF) => {
                Answer::no("the kernel's query interface does not know zcrx")
            }
            _ => Answer::unknown(format!("IORING_REGISTER_QUERY fails: {error}")),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;
    use crate::answer::State;

    #[test]
    fn the_query_is_read() {
        let state = |answer| match explain(answer) {
            Ok(answer) | Err(answer) => answer.state,
        };
        let mut zcrx = query::Zcrx::default();
        assert_eq!(state(Ok(zcrx)), State::No);
        zcrx.register_flags = query::ZCRX_REG_NODEV | 1;
        assert_eq!(state(Ok(zcrx)), State::Yes);
        assert_eq!(state(Err(Error::from_raw_os_error(libc::EOPNOTSUPP))), State::No);
        assert_eq!(state(Err(Error::from_raw_os_error(libc::EPERM))), State::Unknown);
    }
}
