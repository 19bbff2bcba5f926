//! Probes of kernel RDS.
//!
//! Kernel interface: `PF_RDS` sockets, `SO_RDS_TRANSPORT`, `SO_ZEROCOPY`. Opening such a socket makes
//! the kernel load the module `rds`, and choosing TCP makes it load `rds_tcp`, which listens on the network at once;
//! many systems block them for safety. So the probe does either only if that loads nothing.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use handoff_sys::rds::{self, PF_RDS};
use handoff_sys::zerocopy;

use super::answer::{Answer, Finding};
use super::kernel_module::{self, Module};

pub(super) fn sockets() -> Finding {
    socket().map(|_| Answer::yes())
}

pub(super) fn over_tcp() -> Finding {
    const CONFIG: &str = "CONFIG_RDS_TCP";
    let socket = socket()?;
    let standing = present("rds_tcp", "rds_tcp", CONFIG)?;
    // The kernel binds the socket to a transport only if that transport is registered.
    let Err(error) = rds::choose_tcp(socket.as_fd()) else { return Ok(Answer::yes()) };
    Err(match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) => kernel_module::missing("rds_tcp", &standing, CONFIG),
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

/// The module's state if what follows does not make the kernel load it; `alias` is what the kernel would ask for.
fn present(module: &str, alias: &str, config: &str) -> Result<Module, Answer> {
    let standing = kernel_module::look(module, alias);
    match standing {
        Module::Present | Module::NoModules => Ok(standing),
        Module::Installed => Err(Answer::unknown(format!(
            "module {module} is installed, not loaded, and loading it is left to you"
        ))
        .remedy("modprobe rds_tcp")),
        Module::KeptOut(_) | Module::Absent => {
            Err(kernel_module::missing(module, &standing, config))
        }
    }
}

fn socket() -> Result<OwnedFd, Answer> {
    const CONFIG: &str = "CONFIG_RDS";
    let standing = present("rds", "net-pf-21", CONFIG)?;
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::socket(PF_RDS, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => kernel_module::missing("rds", &standing, CONFIG),
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
