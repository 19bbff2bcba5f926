//! A device whose maker serves it, by a ring outside this crate.
//!
//! Contracts: one queue; only reads and writes come, in whole blocks and of memory aligned to 512 bytes; a
//! request's memory is registered, under the index given for its tag, before the request is reported. If
//! the server goes, requests fail. Dropping this removes the device.
//!
//! Minimum kernel: 6.16. Capability: CAP_SYS_ADMIN. The module `ublk_drv`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use handoff_sys::ublk::{self, Parameters};

use crate::device::{self, Device};
use crate::limits::Limits;
use crate::spec::Engine;
use crate::target::MOST;
use crate::{Control, Error, Spec};

/// A block device whose requests another ring takes: `Driver::requests` of the library.
///
/// Before [`start`](Self::start) returns, the server must ask for requests with all tags. So call `start`
/// on another thread than the one that serves.
///
/// ```no_run
/// use handoff::Driver;
/// use handoff_block::{OwnDevice, Spec};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut device = OwnDevice::new(64 << 20, &Spec { depth: 8, ..Spec::default() })?;
/// let opened = device.open()?;
/// let serving = std::thread::spawn(move || -> handoff::Result<()> {
///     let driver = Driver::new()?;
///     let queue = driver.requests(opened, 0, 8)?;
///     driver.block_on(async {
///         while let Some(request) = queue.next().await? {
///             let len = request.len();
///             // Here send or write `request.source()`, or fill `request.destination()`.
///             request.answer(Ok(len));
///         }
///         Ok(())
///     })?
/// });
/// device.start()?;
/// println!("{}", device.path().display());
/// device.stop()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct OwnDevice(Device);

impl OwnDevice {
    /// Makes a device of `size` bytes, in blocks of 512 bytes. It uses the number, the depth and the
    /// largest request of the specification.
    ///
    /// # Errors
    ///
    /// [`Error::NotPossible`] if the driver lends no memory, [`Error::Invalid`] for what it refuses.
    pub fn new(size: u64, spec: &Spec) -> Result<Self, Error> {
        if size == 0 || size > MOST || !size.is_multiple_of(ublk::SECTOR) {
            return Err(Error::invalid(format!(
                "a device of {size} bytes is not possible: a multiple of {}, at most {MOST}",
                ublk::SECTOR
            )));
        }
        let mut control = Control::open()?;
        let features = control.features()?;
        if features & ublk::F_AUTO_BUF_REG == 0 {
            return Err(Error::not_possible(
                "the driver has no UBLK_F_AUTO_BUF_REG, which came with Linux 6.16",
            ));
        }
        let spec = Spec { queues: 1, ..spec.clone() };
        // Nobody else could continue with its server's state.
        let features = features & !(ublk::F_USER_RECOVERY | ublk::F_USER_RECOVERY_REISSUE);
        let mut device = device::add(control, &spec, Engine::UserAuto, features)?;
        let mut parameters = Parameters {
            types: ublk::PARAM_TYPE_BASIC,
            logical_bs_shift: 9,
            physical_bs_shift: 12,
            io_opt_shift: 12,
            io_min_shift: 9,
            max_sectors: spec.max_request >> 9,
            dev_sectors: size >> 9,
            ..Parameters::default()
        };
        // The server may write requests to any file.
        Limits { memory_alignment: ublk::SECTOR as u32, ..Limits::NONE }.announce(&mut parameters);
        device
            .control
            .set_parameters(device.id, &parameters)
            .map_err(Error::doing("the driver does not take the device's parameters"))?;
        Ok(Self(device))
    }

    /// The descriptor by which its server asks for requests.
    ///
    /// # Errors
    ///
    /// When it cannot be opened; only one can be open at a time.
    pub fn open(&self) -> Result<OwnedFd, Error> {
        let path = format!("/dev/ublkc{}", self.0.id);
        let opened = File::options().read(true).write(true).open(&path);
        opened.map(OwnedFd::from).map_err(Error::doing(format!("{path} cannot be opened")))
    }

    /// The block device, once it is started.
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.0.id).into()
    }

    /// Returns when all tags have been asked for and the block device exists; its partitions have been read
    /// by then.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn start(&mut self) -> Result<(), Error> {
        let id = self.0.id;
        let started = self.0.control.start(id);
        started.map_err(Error::doing(format!("the driver does not start device {id}")))
    }

    /// Takes the block device away, once its requests are answered. Its server is told; the device goes
    /// when the server has let go of it and you drop this.
    ///
    /// # Errors
    ///
    /// The driver's errors.
    pub fn stop(&mut self) -> Result<(), Error> {
        self.0.control.stop(self.0.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_no_device_has_is_refused() {
        for size in [0, 511, MOST + 512, MOST + 1024] {
            let refused = OwnDevice::new(size, &Spec::default());
            assert!(matches!(refused, Err(Error::Invalid(_))), "{size}");
        }
    }
}
