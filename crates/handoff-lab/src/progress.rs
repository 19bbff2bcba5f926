//! One line on a terminal that says what takes so long; elsewhere nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A spinner with the current step. Vanishes when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Draws on stderr if that is a terminal.
    pub(crate) fn new(title: &str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} ({elapsed}) {wide_msg}")
        {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Shows the step that begins.
    pub(crate) fn step(&self, text: &str) {
        tracing::debug!("{text}");
        self.0.set_message(text.to_owned());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
