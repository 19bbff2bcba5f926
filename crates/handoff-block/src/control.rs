//! The driver's control commands.
//!
//! Kernel interface: `/dev/ublk-control` (`include/uapi/linux/ublk_cmd.h`), commands as 128-byte
//! entries of a ring. Capability: CAP_SYS_ADMIN.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use handoff_sys::ublk::{self, ControlCommand, DeviceInfo, Parameters};
use handoff_sys::workers;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::Error;

/// The driver's control device. It is missing while the module `ublk_drv` is not loaded.
pub const CONTROL: &str = "/dev/ublk-control";
/// How often the driver is asked whether a number is free.
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of a set of processors, for as many as the kernel may have.
const CPUS_BYTES: usize = 1024;

/// The driver, open for commands.
///
/// ```no_run
/// use handoff_block::Control;
///
/// # fn main() -> Result<(), handoff_block::Error> {
/// let mut control = Control::open()?;
/// if let Some(found) = control.find(0)? {
///     println!("/dev/ublkb0 has {} queues and the server {:?}", found.queues, found.server);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: OwnedFd,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// What the driver says about a device's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// Not started, or ended.
    Dead,
    /// Served.
    Live,
    /// Without a server; requests wait for the next one.
    Quiesced,
    /// Without a server; requests fail until there is one.
    FailIo,
}

/// What the driver says about a device.
///
/// [`Control::find`] returns it.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its number.
    pub id: u32,
    /// Whether a server serves it.
    pub state: DeviceState,
    /// Process id of its server, if the driver knows it.
    pub server: Option<u32>,
    /// Queues.
    pub queues: u16,
    /// Requests under way in each.
    pub depth: u16,
    /// Bytes of the largest request.
    pub max_request: u32,
    pub(crate) flags: u64,
    /// Tells it from later devices of its number; 0 of those that others have made.
    pub(crate) made: u64,
}

impl Found {
    /// What a server's threads are made for.
    pub(crate) fn shape(&self) -> (u16, u16, u32, u64) {
        (self.queues, self.depth, self.max_request, self.flags)
    }
}

impl From<DeviceInfo> for Found {
    fn from(info: DeviceInfo) -> Self {
        Self {
            id: info.dev_id,
            state: match info.state {
                ublk::S_DEV_LIVE => DeviceState::Live,
                ublk::S_DEV_QUIESCED => DeviceState::Quiesced,
                ublk::S_DEV_FAIL_IO => DeviceState::FailIo,
                _ => DeviceState::Dead,
            },
            server: u32::try_from(info.ublksrv_pid).ok().filter(|pid| *pid > 0),
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            max_request: info.max_io_buf_bytes,
            flags: info.flags,
            made: info.ublksrv_flags,
        }
    }
}

impl Control {
    /// Opens the driver.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] if the module is missing, the user is not allowed, or io_uring is refused.
    pub fn open() -> Result<Self, Error> {
        let file = rustix::fs::open(CONTROL, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| {
                let refused = Error::not_possible(match error {
                    Errno::NOENT | Errno::NXIO | Errno::NODEV => format!(
                        "{CONTROL} is not there: load the module (modprobe ublk_drv); \
                         `handoff doctor` says whether this kernel has it"
                    ),
                    Errno::ACCESS | Errno::PERM => {
                        format!("{CONTROL} may not be opened: run as root")
                    }
                    error => format!("{CONTROL} cannot be opened: {error}"),
                });
                refused.caused_by(error.into())
            })?;
        Self::of(file)
    }

    /// The driver, which somebody has opened.
    pub(crate) fn of(file: OwnedFd) -> Result<Self, Error> {
        let ring = IoUring::builder().build(2).map_err(|error| {
            Error::not_possible(format!(
                "io_uring is refused: {error}; `handoff doctor` says by what"
            ))
            .caused_by(error)
        })?;
        Ok(Self { ring, file })
    }

    /// The driver's open file, for another server.
    pub(crate) fn file(&self) -> Result<OwnedFd, Error> {
        self.file.try_clone().map_err(Error::doing(CONTROL))
    }

    /// # Safety
    ///
    /// `command.addr` must be 0 or point to `command.len` bytes that the driver may read and write.
    unsafe fn command(&mut self, number: u32, command: ControlCommand) -> io::Result<i32> {
        workers::keep()?;
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), number)
            .cmd(command.to_entry_bytes())
            .build();
        // SAFETY: what the command points to outlives this call, which ends with its completion.
        unsafe { self.ring.submission().push(&entry) }.expect("one command at a time");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                // If the ring fails, a command is under way in memory that must not be freed.
                Err(error) => panic!("the ring of {CONTROL} does not answer: {error}"),
            }
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    result @ 0.. => Ok(result),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
        }
    }

    fn plain(&mut self, number: u32, id: u32, data: u64) -> io::Result<i32> {
        let command =
            ControlCommand { dev_id: id, queue_id: u16::MAX, data, ..ControlCommand::default() };
        // SAFETY: there is no address.
        unsafe { self.command(number, command) }
    }

    fn with<T>(&mut self, number: u32, id: u32, queue: u16, argument: &mut T) -> io::Result<i32> {
        let command = ControlCommand {
            dev_id: id,
            queue_id: queue,
            len: u16::try_from(size_of::<T>()).expect("small"),
            addr: std::ptr::from_mut(argument) as u64,
            data: u64::from(queue),
            ..ControlCommand::default()
        };
        // SAFETY: the argument is borrowed for the call; callers pass plain numbers, for which any
        // bits are valid.
        unsafe { self.command(number, command) }
    }

    /// The driver's `UBLK_F_*` bits.
    ///
    /// # Errors
    ///
    /// Kernels before 6.5 do not know the question.
    pub fn features(&mut self) -> Result<u64, Error> {
        let mut features = 0u64;
        self.with(ublk::U_CMD_GET_FEATURES, u32::MAX, u16::MAX, &mut features).map_err(
            |error| {
                Error::not_possible(format!(
                    "the driver does not tell its features ({error}): it takes Linux 6.5 or newer"
                ))
                .caused_by(error)
            },
        )?;
        Ok(features)
    }

    /// What the driver knows about a device; `None` if this number has none.
    ///
    /// # Errors
    ///
    /// Other errors of the driver.
    pub fn find(&mut self, id: u32) -> Result<Option<Found>, Error> {
        let mut info = DeviceInfo::default();
        match self.with(ublk::U_CMD_GET_DEV_INFO, id, u16::MAX, &mut info) {
            Ok(_) => Ok(Some(info.into())),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(Error::doing(format!("device {id} cannot be asked"))(error)),
        }
    }

    /// Makes a device; remove it if you do not start it.
    pub(crate) fn add(&mut self, wanted: &mut DeviceInfo) -> io::Result<()> {
        let id = wanted.dev_id;
        self.with(ublk::U_CMD_ADD_DEV, id, u16::MAX, wanted).map(drop)
    }

    pub(crate) fn set_parameters(&mut self, id: u32, parameters: &Parameters) -> io::Result<()> {
        let mut parameters = Parameters { len: size_of::<Parameters>() as u32, ..*parameters };
        self.with(ublk::U_CMD_SET_PARAMS, id, u16::MAX, &mut parameters).map(drop)
    }

    /// The processors whose requests come to a queue.
    pub(crate) fn affinity(&mut self, id: u32, queue: u16) -> io::Result<Vec<usize>> {
        let mut cpus = [0u8; CPUS_BYTES];
        self.with(ublk::U_CMD_GET_QUEUE_AFFINITY, id, queue, &mut cpus)?;
        let is_set = |cpu: &usize| cpus[cpu / 8] & 1 << (cpu % 8) != 0;
        Ok((0..CPUS_BYTES * 8).filter(is_set).collect())
    }

    /// Returns when the block device exists; its partitions have been read by then.
    pub(crate) fn start(&mut self, id: u32) -> io::Result<()> {
        self.plain(ublk::U_CMD_START_DEV, id, std::process::id().into()).map(drop)
    }

    /// Takes the block device away, once its requests are answered. A device that is missing or not started
    /// is no error.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn stop(&mut self, id: u32) -> Result<(), Error> {
        gone_is_fine(self.plain(ublk::U_CMD_STOP_DEV, id, 0))
            .map_err(Error::doing(format!("device {id} cannot be stopped")))
    }

    /// Whether the driver knows if a device is open ([`stop_unused`](Self::stop_unused)): from Linux 7.0
    /// on.
    ///
    /// # Errors
    ///
    /// As of [`features`](Self::features).
    pub fn tells_use(&mut self) -> Result<bool, Error> {
        Ok(self.features()? & ublk::F_SAFE_STOP_DEV != 0)
    }

    /// As [`stop`](Self::stop), unless somebody has the block device open: then it stays, and this is
    /// `false`.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn stop_unused(&mut self, id: u32) -> Result<bool, Error> {
        match gone_is_fine(self.plain(ublk::U_CMD_TRY_STOP_DEV, id, 0)) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
            stopped => stopped
                .map(|()| true)
                .map_err(Error::doing(format!("device {id} cannot be stopped"))),
        }
    }

    /// Removes a device. Its number is free ([`wait_until_gone`](Self::wait_until_gone)) when its server and all who had
    /// the block device open have let go of it. A missing device is no error.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn remove(&mut self, id: u32) -> Result<(), Error> {
        let removed = match gone_is_fine(self.plain(ublk::U_CMD_DEL_DEV_ASYNC, id, 0)) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                gone_is_fine(self.plain(ublk::U_CMD_DEL_DEV, id, 0))
            }
            removed => removed,
        };
        removed.map_err(Error::doing(format!("device {id} cannot be removed")))
    }

    /// Waits at most this long until the number of a removed device is free. Returns whether it is.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn wait_until_gone(&mut self, id: u32, time: Duration) -> Result<bool, Error> {
        let deadline = Instant::now() + time;
        while self.find(id)?.is_some() {
            if Instant::now() > deadline {
                return Ok(false);
            }
            thread::sleep(PAUSE);
        }
        Ok(true)
    }

    pub(crate) fn start_recovery(&mut self, id: u32) -> io::Result<()> {
        self.plain(ublk::U_CMD_START_USER_RECOVERY, id, 0).map(drop)
    }

    pub(crate) fn end_recovery(&mut self, id: u32) -> io::Result<()> {
        self.plain(ublk::U_CMD_END_USER_RECOVERY, id, std::process::id().into()).map(drop)
    }
}

fn gone_is_fine(answer: io::Result<i32>) -> io::Result<()> {
    match answer {
        Err(error) if error.raw_os_error() != Some(libc::ENODEV) => Err(error),
        _ => Ok(()),
    }
}
