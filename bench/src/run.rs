//! One run of one bench: the options of every table, where it runs, and how its report reaches the user.
//!
//! Contracts:
//!
//! 1. Errors in the command line show before anything is made or booted.
//! 2. With `--lab` the same bench runs in a guest, and the table is drawn here from its report; the user's
//!    files stay on this side.
//! 3. If the copy meter is requested and not available, the bench ends before anything is measured.
//! 4. Under emulation there are only instructions, if they are counted, or no speeds and ratios.

use std::{fs, path::PathBuf, time::Duration, time::SystemTime};

use clap::Args;
use handoff_command::{Context, Failure, Stop, output};
use handoff_testbed::instructions;
use regex_lite::Regex;

use crate::{
    lab,
    machine::Machine,
    measure::{self, Compare, Measured, Plan, Subject},
    peer::ProgramOptions,
    report::{Config, Report},
    table, witness,
};

/// The options of every bench.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// Run only rows whose name matches, and the rows that their ratios refer to
    #[arg(long, value_name = "REGEX")]
    pub only: Option<Regex>,

    /// Length of a slot in seconds; where instructions are counted, in 10^9 instructions. The table shows it
    /// [default: 0.03 to 1, as the bench needs]
    #[arg(long, value_name = "SECONDS", value_parser = parse_slot)]
    pub time: Option<f64>,

    /// Number of slots for each row [default: 3 to 15]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,

    /// Finish in under 30 seconds (plus the time of peers), in the lab in 3 minutes; figures spread wider
    #[arg(long, conflicts_with_all = ["time", "rounds"])]
    pub quick: bool,

    /// Also count what the kernel copies, by the copy meter, in a run of its own. The table gets a column for
    /// it; the lines below show where it disagrees with the reports. Needs what `handoff meter` needs
    #[arg(long)]
    pub meter: bool,

    /// Run in the lab's guest, on a stock kernel, with --meter, and count instructions instead of time. A run
    /// of more than 2 hours, or 10 minutes with --quick, is ended, and shows where its tasks stood
    #[arg(long)]
    pub lab: bool,

    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,

    /// Show each ratio beside the one in this file, the JSON of an earlier run
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
}

fn parse_slot(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is not a number"))?;
    if (0.01..=600.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("a slot is 0.01 to 600 seconds long".into())
    }
}

/// The length in milliseconds and the number of the slots that a row gets by default.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// The slots of a whole table.
    pub whole: (u64, u32),
    /// The slots with `--quick`.
    pub quick: (u64, u32),
    /// The slots of a whole table where instructions are counted: there slots differ by little more than a
    /// timer interrupt.
    pub counted: (u64, u32),
    /// The slots with `--quick` where instructions are counted.
    pub quick_counted: (u64, u32),
    /// About how long all rows together take with `--quick`: many rows get fewer slots. `None` sets no limit.
    pub quick_total: Option<Duration>,
}

impl Slots {
    fn of(self, rows: usize, quick: bool, counted: bool) -> (Duration, u32) {
        let (milliseconds, rounds) = match (quick, counted) {
            (false, false) => self.whole,
            (true, false) => self.quick,
            (false, true) => self.counted,
            (true, true) => self.quick_counted,
        };
        let slot = Duration::from_millis(milliseconds);
        let fitting = |total: Duration| total.div_duration_f64(slot * rows.max(1) as u32) as u32;
        match self.quick_total.filter(|_| quick && !counted) {
            Some(total) => (slot, fitting(total).clamp(1, rounds)),
            None => (slot, rounds),
        }
    }
}

/// What benches differ in.
pub trait Bench {
    /// The bench's name on the command line.
    const NAME: &'static str;

    /// How many pairs of virtio-net devices the bench's guest needs.
    const VIRTIO_NET: u8 = 0;

    /// The options of every bench.
    fn options(&self) -> &RunOptions;

    /// The bench's own options, for the guest's bench.
    fn arguments(&self) -> Vec<String> {
        Vec::new()
    }

    /// The other programs beside the bench's rows, and what else the guest is given; `None` if the bench runs none.
    fn programs(&self) -> Option<&ProgramOptions> {
        None
    }

    /// The slots of the bench's rows by default.
    fn slots(&self) -> Slots;

    /// The length and the number of the slots of each of `rows` rows, without peers, as the user wants them or
    /// by default. `counted` says whether instructions are counted, not time.
    fn wanted_slots(&self, rows: usize, counted: bool) -> (Duration, u32) {
        let options = self.options();
        let (slot, rounds) = self.slots().of(rows, options.quick, counted);
        let slot = options.time.map_or(slot, Duration::from_secs_f64);
        (slot, options.rounds.unwrap_or(rounds))
    }

    /// How `rows` rows are measured here, each engine made anew for every slot.
    fn plan(&self, rows: usize) -> Plan {
        let (slot, rounds) = self.wanted_slots(rows, instructions::counting());
        Plan { slot, peer_slot: slot, rounds, keep_engines: false, compare: Compare::Speed }
    }

    /// Measures rows, and has the witness attest them with `--meter`.
    ///
    /// # Errors
    ///
    /// [`Failure::Stopped`]; [`Failure::NotPossible`] without the meter that was asked for.
    fn measure_rows(
        &self,
        subjects: &[Subject<'_>],
        plan: Plan,
        stop: &Stop,
    ) -> Result<Measured, Failure> {
        let mut measured = measure::measure(subjects, plan, stop.flag(), &|| Duration::ZERO)
            .ok_or_else(|| stop.failure())?;
        if self.options().meter {
            witness::attest(subjects, &mut measured.rows, true, stop)?;
        }
        Ok(measured)
    }

    /// Measures on this machine. Returns the rows, and remarks for above the table, in lines.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure>;

    /// What was measured and on what, for the table's first line.
    fn subject(&self, report: &Report) -> String;

    /// Further conditions, in lines.
    fn conditions(&self, report: &Report) -> String;

    /// Conclusions from the table, in lines below it.
    fn verdict(&self, _report: &Report) -> String {
        String::new()
    }
}

impl RunOptions {
    /// Whether a row of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.is_match(name))
    }

    /// Keeps the wanted rows, and the baselines that they compare with.
    pub(crate) fn keep_wanted(&self, subjects: &mut Vec<Subject<'_>>) {
        let wanted = subjects.iter().filter(|it| self.wants(&it.name));
        let compared: Vec<Config> = wanted.map(|it| it.config.clone()).collect();
        subjects.retain(|it| {
            let is_compared = || compared.iter().any(|config| config.same_work(&it.config));
            self.wants(&it.name) || it.baseline && is_compared()
        });
    }

    /// The options for the guest's bench: all except those that stay on this side.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            arguments.extend(value.map(|value| format!("--{name}={value}")));
        };
        add("only", self.only.as_ref().map(Regex::to_string));
        add("time", self.time.map(|seconds| seconds.to_string()));
        add("rounds", self.rounds.map(|rounds| rounds.to_string()));
        arguments.extend(self.quick.then(|| "--quick".to_owned()));
        arguments
    }

    fn earlier(&self) -> Result<Option<Report>, Failure> {
        let Some(path) = &self.compare else { return Ok(None) };
        let usage = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        serde_json::from_str(&text)
            .map_err(|error| usage(format!("not the JSON of a bench of this version: {error}")))
    }
}

/// An option for the guest's bench with a list of values; `None` for an empty list.
pub(crate) fn list<T: ToString>(option: &str, values: &[T]) -> Option<String> {
    let values: Vec<String> = values.iter().map(T::to_string).collect();
    (!values.is_empty()).then(|| format!("--{option}={}", values.join(",")))
}

/// What follows `handoff-workshop` on the guest's command line.
pub(crate) fn arguments_in_guest<B: Bench>(bench: &B) -> Vec<String> {
    // The meter is available in the guest.
    let words = ["bench", B::NAME, "--json", "--meter"].map(str::to_owned);
    let programs = bench.programs().into_iter().flat_map(ProgramOptions::arguments);
    let own = bench.options().arguments().into_iter().chain(bench.arguments());
    words.into_iter().chain(own).chain(programs).collect()
}

/// What a bench has found.
#[derive(Debug)]
pub struct Found {
    /// The rows, and what they were measured on.
    pub report: Report,
    /// The report as text.
    text: String,
    /// What failed while running; `None` if nothing did.
    failure: Option<String>,
}

impl Found {
    /// Prints the report, as JSON or as text.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] if something had failed while it was measured, or nobody takes the text.
    pub fn print(self, context: &Context) -> Result<(), Failure> {
        if context.json { output::json(&self.report) } else { output::text(&self.text) }?;
        self.failure.map_or(Ok(()), |failure| Err(Failure::Failed(failure)))
    }
}

/// Runs a bench, here or in the lab.
///
/// # Errors
///
/// See [`Failure`].
pub fn run<B: Bench>(bench: &B, context: &Context) -> Result<Found, Failure> {
    let options = bench.options();
    let earlier = options.earlier()?;
    let carried = bench.programs().map(|programs| programs.carried.clone()).unwrap_or_default();
    if !options.lab && !carried.is_empty() {
        let cause = "--put and --program carry files into the lab's guest: give --lab, too";
        return Err(Failure::Usage(cause.to_owned()));
    }
    let (report, failure) = if options.lab {
        let limit = lab::limit(options.quick);
        lab::run(&arguments_in_guest(bench), &carried, B::VIRTIO_NET, limit, context)?
    } else {
        // Where instructions are counted, the kernel is the lab's, which has everything that the meter needs;
        // and the work that detaching the meter leaves to the kernel would show in the first slots.
        if options.meter && !instructions::counting() {
            witness::try_out()?;
        }
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let (measured, remarks) = bench.measure(context)?;
        let failed = measured.failed.join(", ");
        let failure = (!failed.is_empty()).then(|| format!("failed while running: {failed}"));
        let mut report = Report::new(B::NAME, date, Machine::this(), measured.rows);
        let conditions = heading(bench, &report) + &remarks;
        report.conditions = conditions.lines().map(str::to_owned).collect();
        (report, failure)
    };
    if let Some(path) = &options.json_file {
        let record = report
            .record()
            .map_err(|error| Failure::Failed(format!("the report cannot be written: {error}")))?;
        fs::write(path, record).map_err(|error| {
            Failure::Failed(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    let text = format!(
        "{}\n\n{}{}\n",
        report.conditions.join("\n"),
        table::draw(&report, earlier.as_ref()),
        bench.verdict(&report)
    );
    Ok(Found { report, text, failure })
}

/// The conditions of the measurement, above the table.
fn heading<B: Bench>(bench: &B, report: &Report) -> String {
    let counted = report.counts_instructions();
    let rows = report.rows.iter().filter(|row| !row.peer).count();
    let (slot, rounds) = bench.wanted_slots(rows, counted);
    format!(
        "{}, median of {rounds} slots of {} {}\n{}{}{}\n",
        bench.subject(report),
        slot.as_millis(),
        if counted { "million instructions" } else { "ms" },
        bench.conditions(report),
        report.machine,
        match (report.emulated, counted) {
            (false, _) => "",
            (true, false) => ", emulated: times mean nothing",
            (true, true) => ", emulated: figures and ratios are of instructions, not of time",
        },
    )
}
