//! The data of a page.

use handoff_bench::report::Report;
use handoff_probe::Mechanism;
use serde::{Deserialize, Serialize};

/// Where a finding comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Environment {
    /// The finding comes from the machine itself.
    Native,
    /// The finding comes from a guest whose processor is emulated.
    Emulated,
}

impl Environment {
    /// Both environments, in the order of the page.
    pub(crate) const ALL: [Self; 2] = [Self::Native, Self::Emulated];

    /// The environment's name wherever a figure is shown.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
        }
    }
}

/// The data of one page, which it contains as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// The version of handoff that gathered the data.
    pub version: String,
    /// When the data was gathered: RFC 3339, UTC.
    pub date: String,
    /// What is available, by environment.
    pub availability: Vec<Availability>,
    /// The benches, in the order in which they ran.
    pub runs: Vec<Run>,
}

/// The answers of `handoff doctor` in one environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Availability {
    /// The environment.
    #[serde(rename = "place")]
    pub environment: Environment,
    /// The answers.
    pub mechanisms: Vec<Mechanism>,
}

/// One run of one bench.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Where the bench ran, or should have run.
    #[serde(rename = "place")]
    pub environment: Environment,
    /// The bench's name.
    pub bench: String,
    /// The command, or the file that the run comes from.
    pub origin: String,
    /// The bench's results; `None` if it could not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Why the bench could not run, or failed: the cause and what to do; `None` if it did neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether the problem is a failure, and not something that the machine lacks.
    #[serde(default)]
    pub failed: bool,
}

impl Findings {
    /// The reports of a bench in one environment.
    pub(crate) fn reports<'a>(
        &'a self,
        bench: &'a str,
        environment: Environment,
    ) -> impl Iterator<Item = &'a Report> {
        let of_bench = move |run: &&Run| run.bench == bench && run.environment == environment;
        self.runs.iter().filter(of_bench).filter_map(|run| run.report.as_ref())
    }

    /// Why a bench has no report in one environment; `None` if no run says so.
    pub(crate) fn problem(&self, bench: &str, environment: Environment) -> Option<&str> {
        let of_bench = |run: &&Run| run.bench == bench && run.environment == environment;
        self.runs.iter().filter(of_bench).find_map(|run| run.problem.as_deref())
    }

    /// The JSON, for a page and for programs.
    ///
    /// # Errors
    ///
    /// A line that says what could not be written as JSON.
    pub fn json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| format!("the findings have no JSON form: {error}"))
    }
}
