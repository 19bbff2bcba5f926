//! Probes of the kernel's part of zero-copy receive; each interface is probed on its own.
//!
//! Kernel interface: `IORING_OP_RECV_ZC`, `IORING_REGISTER_QUERY`; binding an rx queue needs
//! CAP_NET_ADMIN and restarts the queue, so it is not tried here.

use handoff_sys::{query, zcrx};
use io_uring::opcode;
use rustix::thread::CapabilitySet;

use super::answer::{Answer, Finding};
use super::memory::{holds, without_net_admin};
use super::ring;

pub(super) fn zcrx() -> Finding {
    let ring = ring::ring()?;
    ring::knows(&ring, opcode::RecvZc::CODE, "RECV_ZC")?;
    if !holds(CapabilitySet::NET_ADMIN) {
        return Err(without_net_admin("binding an rx queue"));
    }
    Ok(Answer::yes().detail("in the kernel; whether an interface can, see there"))
}

pub(super) fn without_device() -> Finding {
    ring::ring()?;
    explain(query::zcrx(), &WITHOUT_DEVICE)
}

pub(super) fn shared() -> Finding {
    ring::ring()?;
    explain(query::zcrx(), &SHARED)
}

pub(super) fn growing() -> Finding {
    ring::ring()?;
    explain(query::zcrx(), &GROWING)
}

pub(super) fn into_dma_buf() -> Finding {
    let ring = ring::ring()?;
    ring::knows(&ring, opcode::RecvZc::CODE, "RECV_ZC")?;
    match query::zcrx() {
        // Kernels had it before they reported it.
        Err(error) if is_untold(&error) => {
            Err(Answer::unknown("the kernel's query interface does not know zcrx"))
        }
        answer => explain(answer, &INTO_DMA_BUF),
    }
}

/// What a kernel announces.
struct Announced {
    name: &'static str,
    is: fn(&query::Zcrx) -> bool,
    detail: &'static str,
}

const WITHOUT_DEVICE: Announced = Announced {
    name: "ZCRX_REG_NODEV",
    is: |zcrx| zcrx.register_flags & query::ZCRX_REG_NODEV != 0,
    detail: "copies everything: for tests and as a fallback",
};

const INTO_DMA_BUF: Announced = Announced {
    name: "IORING_ZCRX_AREA_DMABUF",
    is: |zcrx| zcrx.area_flags & u64::from(zcrx::AREA_DMABUF) != 0,
    detail: "areas of memory that others have; /dev/udmabuf makes a dma-buf of a memfd",
};

const SHARED: Announced = Announced {
    name: "ZCRX_REG_IMPORT",
    is: |zcrx| zcrx.register_flags & query::ZCRX_REG_IMPORT != 0,
    detail: "rings of several threads receive from one rx queue",
};

const GROWING: Announced = Announced {
    name: "ZCRX_CTRL_ADD_AREA",
    is: |zcrx| zcrx.nr_ctrl_opcodes >= zcrx::CTRL_OPCODES_WITH_ADD_AREA,
    detail: "an rx queue begins with little memory, and gets more when chunks run short",
};

fn explain(answer: std::io::Result<query::Zcrx>, announced: &Announced) -> Finding {
    match answer {
        Ok(zcrx) if (announced.is)(&zcrx) => Ok(Answer::yes().detail(announced.detail)),
        Ok(_) => Err(Answer::no(format!("the kernel does not announce {}", announced.name))),
        Err(error) if is_untold(&error) => {
            Err(Answer::no("the kernel's query interface does not know zcrx"))
        }
        Err(error) => Err(Answer::unknown(format!("IORING_REGISTER_QUERY fails: {error}"))),
    }
}

/// Whether the kernel has no such query. EBADF: it checks the descriptor before the operation.
fn is_untold(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EBADF))
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;
    use crate::answer::State;

    #[test]
    fn the_query_is_read() {
        let all = [WITHOUT_DEVICE, SHARED, GROWING, INTO_DMA_BUF];
        let states = |answer: &dyn Fn() -> std::io::Result<query::Zcrx>| {
            let state = |announced| match explain(answer(), announced) {
                Ok(answer) | Err(answer) => answer.state,
            };
            all.each_ref().map(state)
        };
        let (yes, no, unknown) = (State::Yes, State::No, State::Unknown);
        let mut zcrx = query::Zcrx::default();
        zcrx.nr_ctrl_opcodes = 3;
        assert_eq!(states(&|| Ok(zcrx)), [no, no, no, no]);
        zcrx.register_flags = query::ZCRX_REG_NODEV;
        assert_eq!(states(&|| Ok(zcrx)), [yes, no, no, no]);
        zcrx.register_flags = query::ZCRX_REG_IMPORT;
        assert_eq!(states(&|| Ok(zcrx)), [no, yes, no, no]);
        zcrx.nr_ctrl_opcodes = 4;
        zcrx.area_flags = 1;
        assert_eq!(states(&|| Ok(zcrx)), [no, yes, yes, yes]);
        let error = |errno| move || Err(Error::from_raw_os_error(errno));
        assert_eq!(states(&error(libc::EOPNOTSUPP)), [no; 4]);
        assert_eq!(states(&error(libc::EPERM)), [unknown; 4]);
    }
}
