//! How tests ended.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "lowercase")]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It failed; why, with its output.
    Failed {
        /// What it printed, or what happened to it.
        reason: String,
    },
    /// It could not run here; why.
    Skipped {
        /// Its own words.
        reason: String,
    },
}

/// A test that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// Where: `host` or a kernel's name.
    pub place: String,
    /// Program and path of the test.
    pub name: String,
    /// Its result.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
    /// How long it was on a processor; in a guest, the emulator.
    pub processor_seconds: f64,
    /// False if it failed because there was no guest for it.
    pub ran: bool,
    /// The file with everything known about a failed test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<PathBuf>,
}

/// The results of all stages.
///
/// [`run`](crate::run) returns it.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that skipped.
    pub skipped: usize,
    /// Every test, in the order in which they ended.
    pub tests: Vec<TestResult>,
    /// The guests that booted.
    pub boots: usize,
    /// How long their emulators were on a processor until they were up.
    pub boots_processor_seconds: f64,
    /// The places where this machine cannot boot a guest, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub left_out: BTreeMap<String, String>,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped, .. } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Report {
    pub(crate) fn add(&mut self, test: TestResult) {
        match test.verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed { .. } => self.failed += 1,
            Verdict::Skipped { .. } => self.skipped += 1,
        }
        self.tests.push(test);
    }
}

/// The result of a test, and what else is known about it.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) verdict: Verdict,
    pub(crate) took: Duration,
    /// How long it was on a processor.
    pub(crate) computed: Duration,
    pub(crate) ran: bool,
    /// Titles and texts for the file about a failed test.
    pub(crate) details: Vec<(&'static str, String)>,
}

impl Ran {
    pub(crate) fn failed(reason: String) -> Self {
        let verdict = Verdict::Failed { reason };
        let (took, computed) = (Duration::ZERO, Duration::ZERO);
        Self { verdict, took, computed, ran: true, details: Vec::new() }
    }
}
