//! The subcommand `handoff report`.

use std::{
    fs::Permissions,
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use clap::{Args, builder::PossibleValuesParser};
use handoff_command::{Context, Failure, output};
use tempfile::NamedTempFile;

use crate::{
    earlier,
    findings::Findings,
    gather::{self, Wanted},
    page::page,
};

const EXAMPLES: &str = "\
The page has the figures of this machine beside those of the kernel proposals, curves of payload,
depth and chunk size, what was copied, and what is available. It is one file that loads nothing,
for screens, phones and paper, and contains its data as JSON. A bench that cannot run here is on
the page with the reason.

Examples:
  handoff report --quick                          in one to two minutes
  handoff report --lab --output all.html          the lab's guest too, for what this kernel lacks
  handoff report --only send,recv
  handoff bench send --json-file results/send.json; handoff report --from results
  handoff report --from all.html --output again.html      drawn again, nothing is run
  handoff report --quick --json | jq '.runs[].report.machine'

Needs what the benches need: root, for most; with --lab, what the lab needs.";

/// Write one page of what handoff does on this machine
///
/// Runs the benches that this machine can and writes one self-contained HTML page: figures beside the
/// published ones, curves, copied shares, and what is available.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Page to write; it replaces an existing file when everything is done
    #[arg(short, long, value_name = "FILE", default_value = "handoff-report.html")]
    pub output: PathBuf,

    /// Run the short forms of the benches; figures spread wider
    #[arg(long)]
    pub quick: bool,

    /// Run the benches in the lab's guest, too; its figures stand apart, and are marked `emulated`
    #[arg(long)]
    pub lab: bool,

    /// Run only these benches
    #[arg(long, value_name = "BENCHES", value_delimiter = ',',
          value_parser = PossibleValuesParser::new(gather::names()))]
    pub only: Vec<String>,

    /// Run nothing; draw the page from earlier runs: JSON files of benches or reports, pages, or
    /// directories of these
    #[arg(long, value_name = "PATHS", num_args = 1.., conflicts_with_all = ["quick", "lab"])]
    pub from: Vec<PathBuf>,
}

/// Gathers the findings, and writes the page.
///
/// # Errors
///
/// See [`Failure`]. If benches have failed, the page is still written.
pub fn run(args: &ReportArgs, context: &Context) -> Result<(), Failure> {
    // Find out now, not after minutes of work, whether the directory takes a file. Drop the file at
    // once, so that a stop leaves none.
    drop(draft(&args.output)?);
    let mut findings = match args.from.as_slice() {
        [] => {
            let meter = handoff_bench::witness::try_out().is_ok();
            let wanted = Wanted { only: &args.only, quick: args.quick, lab: args.lab, meter };
            gather::gather(&wanted, &context.stop)?
        }
        paths => earlier::read(paths)?,
    };
    if !args.only.is_empty() {
        findings.runs.retain(|run| args.only.contains(&run.bench));
    }
    let json = findings.json().map_err(Failure::Failed)?;
    write(&args.output, &page(&findings, &json))?;
    if context.json {
        output::text(&format!("{json}\n"))?;
    } else {
        output::text(&format!("{}\n", summary(&args.output, &findings)))?;
    }
    let failed: Vec<String> = findings
        .runs
        .iter()
        .filter(|run| run.failed)
        .map(|run| format!("{}: {}", run.origin, run.problem.as_deref().unwrap_or_default()))
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!("the page is written, but {}", failed.join("; "))))
}

/// An invisible file in the directory of `path`. It is removed unless it takes the place of `path`.
fn draft(path: &Path) -> Result<NamedTempFile, Failure> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        return Err(Failure::Usage(format!("{} is a directory", path.display())));
    }
    tempfile::Builder::new()
        .prefix(".handoff-report.")
        // The mode is that of any new file: all bits but those of the umask.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("{} cannot be written: {error}", path.display()))
}

/// Writes the file whole or not at all.
fn write(path: &Path, page: &str) -> Result<(), Failure> {
    let mut file = draft(path)?;
    file.write_all(page.as_bytes()).map_err(|error| cannot_write(path, &error))?;
    file.persist(path).map_err(|error| cannot_write(path, &error.error))?;
    Ok(())
}

fn summary(path: &Path, findings: &Findings) -> String {
    let reports = || findings.runs.iter().filter_map(|run| run.report.as_ref());
    let rows = || reports().flat_map(|report| &report.rows);
    format!(
        "{}: {} tables of {} runs, {} rows, {} of them without figures",
        path.display(),
        reports().count(),
        findings.runs.len(),
        rows().count(),
        rows().filter(|row| row.skipped.is_some()).count(),
    )
}
