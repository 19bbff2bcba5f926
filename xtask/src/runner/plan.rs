//! A run of tests, as it is asked for.

use std::path::PathBuf;
use std::time::Duration;

use handoff_lab::Machine;

use crate::may_skip::MaySkip;
use crate::report::TestResult;
use crate::selection::{Part, Program, Stage};

/// A run of tests.
#[derive(Debug)]
pub struct Plan {
    /// The test programs.
    pub programs: Vec<Program>,
    /// Other programs that tests start by their absolute path; guests have them at that path and on the
    /// `PATH`.
    pub companions: Vec<PathBuf>,
    /// Where to run which tests.
    pub stages: Vec<Stage>,
    /// Which of their tests.
    pub part: Part,
    /// The skips that are foreseen.
    pub may_skip: MaySkip,
    /// How long one test may take.
    pub timeout: Duration,
    /// How often each test runs.
    pub repeat: usize,
    /// Results of an earlier run of these programs: part of the report, without running these tests again.
    pub known: Vec<TestResult>,
    /// The directory for files about failed tests, if you want any.
    pub keep: Option<PathBuf>,
    /// The guests; the stages set their kernel and their files.
    pub machine: Machine,
}
