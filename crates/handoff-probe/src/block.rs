//! Probes of ublk.
//!
//! Kernel interface: `/dev/ublk-control` and its `UBLK_U_CMD_GET_FEATURES`, sent as a command of a
//! ring with 128-byte entries. No device is made.

use std::os::fd::{AsRawFd, OwnedFd};

use handoff_sys::ublk;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::answer::{Answer, Finding};
use super::kernel_module;
use super::ring;
use super::ring::TIMEOUT;

const CONTROL: &str = "/dev/ublk-control";

pub(super) fn driver() -> Finding {
    control().map(|_| Answer::yes())
}

pub(super) fn user_copy() -> Finding {
    feature(ublk::F_USER_COPY, "UBLK_F_USER_COPY")
}

pub(super) fn zero_copy() -> Finding {
    feature(ublk::F_SUPPORT_ZERO_COPY, "UBLK_F_SUPPORT_ZERO_COPY")
}

pub(super) fn auto_registration() -> Finding {
    feature(ublk::F_AUTO_BUF_REG, "UBLK_F_AUTO_BUF_REG")
}

pub(super) fn batch() -> Finding {
    feature(ublk::F_BATCH_IO, "UBLK_F_BATCH_IO")
}

fn control() -> Result<OwnedFd, Answer> {
    open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => {
            let standing = kernel_module::look("ublk_drv", "devname:ublk-control");
            kernel_module::missing("ublk_drv", &standing, "CONFIG_BLK_DEV_UBLK")
        }
        Errno::ACCESS | Errno::PERM => {
            Answer::no(format!("{CONTROL} may not be opened: {error}")).remedy("run as root")
        }
        error => Answer::unknown(format!("{CONTROL} cannot be opened: {error}")),
    })
}

fn feature(bit: u64, name: &str) -> Finding {
    let control = control()?;
    // This gives the reason why io_uring is refused; the ring below would give only an errno.
    ring::ring()?;
    let features = features(&control)
        .map_err(|error| Answer::unknown(format!("io_uring does not take the command: {error}")))?;
    match features {
        Ok(features) if features & bit != 0 => Ok(Answer::yes()),
        Ok(_) => Err(Answer::no(format!("the driver does not announce {name}"))),
        Err(Errno::OPNOTSUPP | Errno::INVAL) => {
            Err(Answer::no("the driver does not know UBLK_U_CMD_GET_FEATURES"))
        }
        Err(error @ (Errno::ACCESS | Errno::PERM)) => {
            Err(Answer::no(format!("the driver refuses to answer: {error}")).remedy("run as root"))
        }
        Err(error) => Err(Answer::unknown(format!("UBLK_U_CMD_GET_FEATURES fails: {error}"))),
    }
}

/// Asks the driver; the inner result is the driver's, the outer one the ring's.
fn features(control: &OwnedFd) -> std::io::Result<Result<u64, Errno>> {
    let mut ring: IoUring<squeue::Entry128, cqueue::Entry> = IoUring::builder().build(2)?;
    // On the heap, so that it can outlive this call if the command does.
    let features = Box::into_raw(Box::new(0u64));
    let command = ublk::ControlCommand {
        dev_id: u32::MAX,
        queue_id: u16::MAX,
        len: ublk::FEATURES_LEN,
        addr: features as u64,
        ..Default::default()
    };
    let entry = opcode::UringCmd80::new(types::Fd(control.as_raw_fd()), ublk::U_CMD_GET_FEATURES)
        .cmd(command.to_entry_bytes())
        .build();
    // SAFETY: the command writes 8 bytes to `features`, which is freed only after it completed.
    unsafe { ring.submission().push(&entry) }.expect("an empty submission queue has room");
    let wait = types::SubmitArgs::new().timespec(&TIMEOUT);
    ring.submitter().submit_with_args(1, &wait)?;
    let Some(done) = ring.completion().next() else {
        return Err(std::io::ErrorKind::TimedOut.into());
    };
    // SAFETY: the command is complete, so the allocation is ours alone again.
    let features = unsafe { *Box::from_raw(features) };
    Ok(match done.result() {
        0.. => Ok(features),
        error => Err(Errno::from_raw_os_error(-error)),
    })
}
