//! Our terminal while it belongs to a command in the guest.

use std::io;
use std::os::fd::AsFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::{Result, Trying};

/// A terminal in raw mode: every key, Ctrl-C too, goes to the guest. Dropping it restores it.
pub(crate) struct Screen {
    before: Termios,
}

impl Screen {
    /// Switches the terminal on standard input to raw mode.
    pub(crate) fn take() -> Result<Self> {
        let input = io::stdin();
        let before = tcgetattr(input.as_fd()).trying("standard input is not a terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(input.as_fd(), OptionalActions::Now, &raw).trying("terminal")?;
        Ok(Self { before })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}

/// Rows and columns of the terminal on standard input; 24 by 80 where there is none.
pub(crate) fn size() -> (u16, u16) {
    tcgetwinsize(io::stdin().as_fd()).map_or((24, 80), |size| (size.ws_row, size.ws_col))
}
