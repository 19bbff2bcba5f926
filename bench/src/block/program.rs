//! Another program that serves a ublk device, under our load.
//!
//! The shell runs the command, which may stay or go into the background. The device that is new after its
//! start counts as its device, and the process that the driver knows as the server counts as the serving
//! one. The bench removes the device.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use handoff_block::{Control, DeviceState};
use handoff_sys::hangup;

use super::served::Device;
use crate::{
    peer::{Affinity, Output, Placeholders, Running},
    tasks,
};

/// How long the device may take to appear.
const TIMEOUT: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

pub(super) struct Program {
    device: Taken,
    server: u32,
    _running: Running,
}

/// The device of another program, which is removed on drop.
struct Taken {
    control: Control,
    id: u32,
}

impl Program {
    pub(super) fn start(
        command: &str,
        placeholders: &Placeholders,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let line = |error: handoff_block::Error| error.to_string();
        let mut control = Some(Control::open().map_err(line)?);
        let before = devices();
        let output = Output::new()?;
        let command = placeholders.fill(command);
        let mut running = Running::start(&command, None, || output.sink(), Affinity::Inherited)?;
        let begin = Instant::now();
        let mut device = None;
        loop {
            // The process is checked before the device: it may have made the device as its last act.
            let ended = running.ended()?;
            if device.is_none()
                && let Some(&id) = devices().difference(&before).next()
            {
                device = control.take().map(|control| Taken { control, id });
            }
            if let Some(server) = device.as_mut().map(Taken::server).transpose()?.flatten() {
                let device = device.take().expect("it was asked");
                return Ok(Self { device, server, _running: running });
            }
            if let Some(status) = ended.filter(|status| !status.success()) {
                return Err(output.failure(status));
            }
            if begin.elapsed() > TIMEOUT || stop.load(Ordering::Relaxed) {
                let time = begin.elapsed().as_secs();
                return Err(format!(
                    "it has no ublk device after {time} s: {}",
                    output.text()?.trim()
                ));
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}

impl Taken {
    fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.id).into()
    }

    /// The serving process; `None` until the device can be used.
    fn server(&mut self) -> Result<Option<u32>, String> {
        let found = self.control.find(self.id).map_err(|error| error.to_string())?;
        let live = found.filter(|found| found.state == DeviceState::Live);
        Ok(live.and_then(|found| found.server).filter(|_| self.path().exists()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Self { control, id } = self;
        if let Err(error) = control.stop(*id).and_then(|()| control.remove(*id)) {
            hangup::say(format_args!("handoff: the device of a peer stays: {error}"));
        }
    }
}

/// The numbers of all ublk devices.
fn devices() -> BTreeSet<u32> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix("ublkc")?.parse().ok();
    entries.filter_map(|entry| number(&entry.path())).collect()
}

impl Device for Program {
    fn path(&self) -> PathBuf {
        self.device.path()
    }

    fn threads(&self) -> Vec<PathBuf> {
        tasks::of_process(self.server)
    }
}
