//! Probes of kernel RDS.
//!
//! Kernel interface: `PF_RDS` sockets, `SO_RDS_TRANSPORT`, `SO_ZEROCOPY`. Opening such a socket makes
//! the kernel load the module, which many systems block for safety. So the probe opens one only if that
//! loads nothing.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use handoff_sys::rds::{self, PF_RDS};
use handoff_sys::zerocopy;

use super::answer::{Answer, Finding};
use super::kernel_module::{self, Module};

pub(super) fn sockets() -> Finding {
    socket().map(|_| Answer::yes())
}

pub(super) fn over_tcp() -> Finding {
    let socket = socket()?;
    // The kernel binds the socket to a transport only if that transport is registered.
    let Err(error) = rds::choose_tcp(socket.as_fd()) else { return Ok(Answer::yes()) };
    Err(match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => {
            let standing = kernel_module::look("rds_tcp", "rds-transport-tcp");
            kernel_module::missing("rds_tcp", &standing, "CONFIG_RDS_TCP")
        }
        _ => Answer::unknown(format!("SO_RDS_TRANSPORT fails: {error}")),
    })
}

pub(super) fn zero_copy() -> Finding {
    over_tcp()?;
    let socket = socket()?;
    match zerocopy::enable(socket.as_fd()) {
        Ok(()) => Ok(Answer::yes().detail("over TCP only")),
        Err(error) => Err(Answer::no(format!("SO_ZEROCOPY is refused: {error}"))),
    }
}

fn socket() -> Result<OwnedFd, Answer> {
    let standing = kernel_module::look("rds", "net-pf-21");
    match standing {
        Module::Present | Module::NoModules => {}
        Module::Installed => {
            return Err(Answer::unknown(
                "module rds is installed, not loaded, and loading it is left to you",
            )
            .remedy("modprobe rds_tcp"));
        }
        Module::KeptOut(_) | Module::Absent => {
            return Err(kernel_module::missing("rds", &standing, "CONFIG_RDS"));
        }
    }
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(PF_RDS, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => kernel_module::missing("rds", &standing, "CONFIG_RDS"),
            Some(libc::EPERM | libc::EACCES) => {
                Answer::no(format!("PF_RDS sockets are forbidden: {error}"))
                    .remedy("see the security module and the seccomp filter of this process")
            }
            _ => Answer::unknown(format!("socket(PF_RDS) fails: {error}")),
        });
    }
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
