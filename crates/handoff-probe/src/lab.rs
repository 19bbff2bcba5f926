//! Probes of what the lab needs. They start no program.

use std::env;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Access, Mode, OFlags, access, open};
use rustix::io::Errno;

use super::answer::{Answer, Finding};

const KVM: &str = "/dev/kvm";
const KVM_GET_API_VERSION: libc::c_ulong = 0xae00;
const KVM_CREATE_VM: libc::c_ulong = 0xae01;
/// The only version since 2007; the documentation says to refuse others.
const KVM_API_VERSION: libc::c_int = 12;

pub(super) fn qemu() -> Finding {
    installed(&format!("qemu-system-{}", env::consts::ARCH), "apt-get install qemu-system-x86")
}

pub(super) fn mmdebstrap() -> Finding {
    installed("mmdebstrap", "apt-get install mmdebstrap")
}

fn installed(program: &str, remedy: &str) -> Finding {
    let found = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .map(|directory| directory.join(program))
        .find(|path: &PathBuf| path.is_file() && access(path, Access::EXEC_OK).is_ok());
    match found {
        Some(path) => Ok(Answer::yes().detail(path.display().to_string())),
        None => Err(Answer::no(format!("{program} is not on the PATH")).remedy(remedy)),
    }
}

pub(super) fn kvm() -> Finding {
    let device = open(KVM, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        let slower = "none needed: the lab then emulates in software";
        match error {
            Errno::NOENT | Errno::NXIO | Errno::NODEV => {
                Answer::no(format!("there is no {KVM}")).remedy(slower)
            }
            Errno::ACCESS | Errno::PERM => Answer::no(format!("{KVM} may not be opened: {error}"))
                .remedy("join the group kvm; without it the lab emulates in software"),
            error => Answer::unknown(format!("{KVM} cannot be opened: {error}")),
        }
    })?;
    // SAFETY: the request takes no argument.
    let version = unsafe { libc::ioctl(device.as_raw_fd(), KVM_GET_API_VERSION, 0) };
    if version != KVM_API_VERSION {
        return Err(Answer::no(format!("{KVM} speaks version {version}, not 12")));
    }
    // SAFETY: the argument is the machine type, 0 for the default; it is no pointer.
    let machine = unsafe { libc::ioctl(device.as_raw_fd(), KVM_CREATE_VM, 0) };
    if machine < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Answer::no(format!("KVM makes no virtual machine: {error}")));
    }
    // SAFETY: the kernel just made this descriptor for us, and nobody else knows it.
    drop(unsafe { OwnedFd::from_raw_fd(machine) });
    // Nothing boots under some nested or filtered KVM.
    Ok(Answer::unknown("a virtual machine can be made; whether a guest boots in it, the lab tries"))
}
