//! `handoff report`: mounts the page of all benches.

use handoff_command::{Context, Failure};
use handoff_report::ReportArgs;

use crate::bench;

pub(crate) fn run(args: &ReportArgs, context: &Context) -> Result<(), Failure> {
    bench::on_stdout(context, |with| handoff_report::run(args, with))
}
