//! A device at the driver: made, described, taken over, removed.
//!
//! Contracts: dropping this removes a device that was made; a device taken over stays as it was found until
//! it is served.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use handoff_sys::ublk::{self, DeviceInfo, Parameters};

use crate::backing::Backing;
use crate::control::{Control, DeviceState, Found};
use crate::error::Error;
use crate::limits::Limits;
use crate::request::INTENT_CHUNKS;
use crate::spec::{Engine, Kind, Spec};
use crate::state::{Directory, Record};

/// How often the driver is asked again.
const PAUSE: Duration = Duration::from_millis(25);
/// How long the number of a removed device may take to be free.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);
/// The kernel releases a killed server's requests in the background.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a killed server may seem to live.
const LETTING_GO: Duration = Duration::from_secs(5);
/// The largest discard in bytes; of a stripe, in chunks.
const DISCARD_BYTES: u64 = 1 << 30;
const DISCARD_CHUNKS: u64 = 64;
/// The kernel takes the best size of a request for a signed number of 32 bits.
const IO_OPT_SHIFT: u8 = 30;

/// A device that dropping this removes, unless it is only taken over.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) control: Control,
    pub(crate) id: u32,
    /// [`Found::made`].
    pub(crate) made: u64,
    pub(crate) remove: bool,
}

impl Device {
    /// Whether it is still there. If somebody else has removed it, another device may have its number.
    fn is_there(&mut self) -> Result<bool, Error> {
        Ok(self.control.find(self.id)?.is_some_and(|found| found.made == self.made))
    }

    /// Stops it if it is still there.
    pub(crate) fn stop(&mut self) -> Result<(), Error> {
        if self.is_there()? { self.control.stop(self.id) } else { Ok(()) }
    }

    /// Removes it with its state. Warns if somebody holds the rest of it.
    fn remove(&mut self) -> Result<(), Error> {
        let directory = Directory::of(self.id);
        if !self.is_there()? {
            if directory.read().is_ok_and(|record| record.made == self.made) {
                directory.remove();
            }
            return Ok(());
        }
        self.control.stop(self.id)?;
        // Before the number is free, and another device's.
        directory.remove();
        self.control.remove(self.id)?;
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while self.is_there()? {
            if Instant::now() > deadline {
                tracing::warn!("device {} was removed while somebody had it open", self.id);
                break;
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !self.remove {
            return;
        }
        if let Err(error) = self.remove() {
            tracing::error!("{error}");
        }
    }
}

/// Removes the device of this record with its state, unless it is gone; another device of its number stays. The number is
/// free once the device's server and all who had the block device open have let go of it.
///
/// # Errors
///
/// The driver's errors.
pub fn remove(record: &Record) -> Result<(), Error> {
    let id =
        record.spec.id.ok_or_else(|| Error::invalid("this is no device's record".to_owned()))?;
    Device { control: Control::open()?, id, made: record.made, remove: false }.remove()
}

pub(crate) fn add(
    mut control: Control,
    spec: &Spec,
    engine: Engine,
    features: u64,
) -> Result<Device, Error> {
    let wanted = ublk::F_CMD_IOCTL_ENCODE
        | ublk::F_USER_RECOVERY
        | ublk::F_USER_RECOVERY_REISSUE
        | engine.flags();
    let made = token()?;
    let mut info = DeviceInfo {
        nr_hw_queues: spec.queues,
        queue_depth: spec.depth,
        max_io_buf_bytes: spec.max_request,
        dev_id: spec.id.unwrap_or(u32::MAX),
        ublksrv_pid: -1,
        flags: wanted & features,
        ublksrv_flags: made,
        ..DeviceInfo::default()
    };
    control.add(&mut info).map_err(|error| match (error.raw_os_error(), spec.id) {
        (Some(libc::EEXIST), Some(id)) => Error::DeviceExists { id },
        (Some(libc::EACCES | libc::EPERM), _) => Error::not_possible(
            "the driver refuses a device: run as root (module parameter ublks_max is the most \
             that others may have)",
        )
        .caused_by(error),
        _ => Error::doing("the driver does not make a device")(error),
    })?;
    let device = Device { control, id: info.dev_id, made, remove: true };
    if info.nr_hw_queues != spec.queues || info.queue_depth != spec.depth {
        return Err(Error::invalid(format!(
            "the driver has {} queues of depth {} at most here",
            info.nr_hw_queues, info.queue_depth
        )));
    }
    if info.max_io_buf_bytes != spec.max_request {
        return Err(Error::invalid(format!(
            "the driver has requests of at most {} bytes here",
            info.max_io_buf_bytes
        )));
    }
    Ok(device)
}

/// A value that nothing else has, not 0.
pub(crate) fn token() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(Error::doing("the kernel has no random number"))?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// What is known about a device.
pub(crate) fn found(control: &mut Control, id: u32) -> Result<Found, Error> {
    control.find(id)?.ok_or(Error::NoDevice { id })
}

/// What a server knows that takes over a device whose last server is known to be gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Following<'a> {
    /// [`Record::made`](crate::state::Record::made) of the device.
    pub(crate) made: u64,
    /// Set when the server must end.
    pub(crate) stop: &'a AtomicBool,
}

/// How long a server waits for the last one to let go. A server that only assumes its end gives up; one that
/// knows of it waits as long as the device exists.
#[derive(Debug)]
pub(crate) struct Deadline<'a> {
    id: u32,
    following: Option<Following<'a>>,
    at: Instant,
    is_told: bool,
}

impl<'a> Deadline<'a> {
    pub(crate) fn of_the_last(id: u32, following: Option<Following<'a>>) -> Self {
        Self::of(id, following, LETTING_GO)
    }

    fn of(id: u32, following: Option<Following<'a>>, limit: Duration) -> Self {
        Self { id, following, at: Instant::now() + limit, is_told: false }
    }

    /// Waits a little, or says what it waited for in vain.
    pub(crate) fn wait(&mut self, control: &mut Control, cause: Error) -> Result<(), Error> {
        let id = self.id;
        let is_over = Instant::now() > self.at;
        match self.following {
            None if is_over => return Err(cause),
            None => {}
            Some(Following { made, stop }) => {
                if stop.load(Ordering::Acquire) {
                    return Err(Error::Stopped { waited_for: Box::new(cause) });
                }
                check_same(&found(control, id)?, made)?;
                if is_over && !self.is_told {
                    self.is_told = true;
                    tracing::warn!("the next server of device {id} waits: {cause}");
                }
            }
        }
        thread::sleep(PAUSE);
        Ok(())
    }

    /// Waits a little for what is not to be waited for without end. Returns whether to wait again.
    pub(crate) fn wait_or_go_on(
        &mut self,
        control: &mut Control,
        cause: Error,
    ) -> Result<bool, Error> {
        if Instant::now() > self.at {
            return Ok(false);
        }
        self.wait(control, cause).map(|()| true)
    }
}

/// Checks that a device is still the same one: its number may have been given to another.
pub(crate) fn check_same(found: &Found, made: u64) -> Result<(), Error> {
    match found.made == made {
        true => Ok(()),
        false => Err(Error::DeviceGone { id: found.id }),
    }
}

/// What is known about a device that waits for a server, as soon as the kernel has noticed that the last
/// one is gone.
pub(crate) fn recoverable(
    control: &mut Control,
    id: u32,
    following: Option<Following<'_>>,
) -> Result<Found, Error> {
    let mut deadline = Deadline::of_the_last(id, following);
    loop {
        let found = found(control, id)?;
        if found.flags & ublk::F_USER_RECOVERY == 0 {
            return Err(Error::invalid(format!("device {id} was made without recovery")));
        }
        if found.state != DeviceState::Live {
            return Ok(found);
        }
        deadline.wait(control, Error::HasServer { id })?;
    }
}

pub(crate) fn start_recovery(
    control: &mut Control,
    id: u32,
    following: Option<Following<'_>>,
) -> Result<(), Error> {
    let mut deadline = Deadline::of(id, following, RECOVERY_TIMEOUT);
    loop {
        let Err(error) = control.start_recovery(id) else { return Ok(()) };
        let is_busy = error.raw_os_error() == Some(libc::EBUSY);
        let refused = Error::doing(format!("device {id} cannot be taken over"))(error);
        if !is_busy {
            return Err(refused);
        }
        // Some of what the last server held has not come back.
        deadline.wait(control, refused)?;
    }
}

/// The limits of a device. Lent memory goes to the backings unchanged, so these are the limits of the
/// strictest backing. Memory that is not lent comes in whole sectors.
pub(crate) fn limits(engine: Engine, backings: &[Backing]) -> Limits {
    let least = Limits { memory_alignment: ublk::LEAST_DMA_ALIGN, ..Limits::NONE };
    match engine.lends() {
        true => backings.iter().map(|backing| backing.facts.limits).fold(least, Limits::and),
        false => least,
    }
}

/// Parameters of a device. `chunk` has the bytes of a chunk of a mirror with a record.
pub(crate) fn parameters(
    spec: &Spec,
    size: u64,
    chunk: Option<u64>,
    backings: &[Backing],
) -> Parameters {
    let shift = spec.block_size.trailing_zeros() as u8;
    let mut attrs = ublk::ATTR_VOLATILE_CACHE | ublk::ATTR_FUA;
    if spec.read_only {
        attrs |= ublk::ATTR_READ_ONLY;
    }
    if backings.iter().any(|backing| backing.facts.rotates) {
        attrs |= ublk::ATTR_ROTATIONAL;
    }
    let mut parameters = Parameters {
        types: ublk::PARAM_TYPE_BASIC,
        attrs,
        logical_bs_shift: shift,
        physical_bs_shift: 12,
        io_opt_shift: 12,
        io_min_shift: shift,
        max_sectors: spec.max_request >> 9,
        dev_sectors: size >> 9,
        ..Parameters::default()
    };
    if spec.target == Kind::Stripe {
        parameters.io_opt_shift = (spec.chunk.trailing_zeros() as u8).min(IO_OPT_SHIFT);
    }
    if !spec.read_only && backings.iter().all(|backing| backing.facts.ranges.discards) {
        let most = match spec.target {
            Kind::Stripe => DISCARD_BYTES.min(spec.chunk.saturating_mul(DISCARD_CHUNKS)),
            // It may begin in the midst of a chunk.
            _ => {
                chunk.map_or(DISCARD_BYTES, |chunk| DISCARD_BYTES.min(chunk * (INTENT_CHUNKS - 1)))
            }
        };
        parameters.types |= ublk::PARAM_TYPE_DISCARD;
        parameters.discard_granularity = spec.block_size.max(4096);
        parameters.max_discard_sectors = (most >> 9) as u32;
        parameters.max_discard_segments = 1;
        if backings.iter().all(|backing| backing.facts.ranges.zeroes) {
            parameters.max_write_zeroes_sectors = (most >> 9) as u32;
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discard_has_no_more_chunks_than_a_mirror_counts() {
        let spec = Spec { target: Kind::Mirror, ..Spec::default() };
        for shift in 20..=26 {
            let most = parameters(&spec, 1 << 40, Some(1 << shift), &[]).max_discard_sectors << 9;
            assert_eq!(u64::from(most), (1u64 << (shift + 5)).min(1 << 30));
        }
    }

    #[test]
    fn chunks_of_all_sizes_have_limits_that_the_kernel_takes() {
        for shift in [12, 30, 32, 58, 62] {
            let spec = Spec { target: Kind::Stripe, chunk: 1 << shift, ..Spec::default() };
            let parameters = parameters(&spec, 1 << 62, None, &[]);
            assert_eq!(parameters.io_opt_shift, shift.min(30));
            let most = DISCARD_BYTES.min(1 << (shift + 6).min(62));
            assert_eq!(u64::from(parameters.max_discard_sectors), most >> 9);
        }
    }
}
