//! How a guest ends: switched off, or by force, with what is known about a guest that hangs.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::state::{CONSOLE_TIMEOUT, Guest};
use crate::channel::send;
use crate::console::Fault;
use crate::error::{Error, Result, Trying};
use crate::job::Hang;
use crate::machine::{Acceleration, QEMU};
use crate::scheduled::Stretch;
use crate::wire;

/// How long switching off may take, in time that the host leaves to the guest; a sanitizer kernel looks for
/// leaks first.
const OFF_TIMEOUT: Duration = Duration::from_secs(90);

impl Guest {
    /// Switches the guest off and returns the kernel's reports on its way down.
    ///
    /// # Errors
    ///
    /// If the guest does not switch off; it is then ended.
    pub fn power_off(mut self) -> Result<Option<Fault>> {
        // A guest that is gone already needs no message.
        let _ = send(&self.control, wire::OFF, &[]);
        let stretch = Stretch::of(self.process.id());
        while self.process.try_wait().trying(QEMU)?.is_none() {
            if stretch.is_past(OFF_TIMEOUT) || self.stop.load(Ordering::Acquire) {
                let lines = self.end().join(" | ");
                return Err(Error::Failed(format!("the guest does not switch off: {lines}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.console.wait_for_close(CONSOLE_TIMEOUT);
        Ok(self.console.take_fault())
    }

    /// Ends a guest in which nothing can be ended any more, and reports what is known about it.
    pub(super) fn hang(&mut self, tasks: String) -> Hang {
        let stretch = Stretch::of(self.process.id());
        thread::sleep(Duration::from_secs(1));
        let counts = self.acceleration == Acceleration::InstructionCounting;
        let emulator = if counts { None } else { stretch.percent() };
        Hang { tasks, emulator, lines: self.end() }
    }

    /// Ends the emulator and returns the last console lines.
    pub(super) fn end(&mut self) -> Vec<String> {
        // A guest that died resets, and QEMU then ends: read its last words first.
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        self.console.wait_for_close(CONSOLE_TIMEOUT);
        self.console.last_lines()
    }

    pub(super) fn end_and_explain(&mut self) -> String {
        let mut lines = self.end();
        let complaints = self.complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        lines.extend(complaints.iter().cloned());
        if lines.is_empty() {
            lines.push("it printed nothing".to_owned());
        }
        let first = lines.len().saturating_sub(8);
        lines[first..].join(" | ")
    }

    fn kill(&mut self) {
        // Both fail only for a process that is gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
        // The reader of the control channel may wait for room in `messages`.
        let (_, empty) = mpsc::sync_channel(0);
        self.messages = empty;
        for reader in self.readers.drain(..) {
            // A reader that panicked has been reported by the panic itself.
            let _ = reader.join();
        }
    }
}
