//! `handoff nic restore`: puts back what was kept, or left by a killed process.

use std::fmt::Write as _;

use handoff_command::{Context, Failure, output};
use handoff_net::nic::failure;
use handoff_nic::{Directory, Undone, restore, restore_all};

const EXAMPLES: &str = "\
What somebody else has set meanwhile stays, and the command reports it. An interface is left
alone while the process that prepared it lives.

Examples:
  handoff nic restore eth0
  handoff nic restore --all";

/// Arguments of `handoff nic restore`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct RestoreArgs {
    /// Name that the interface has now, or had when it was prepared
    #[arg(value_name = "IFACE", required_unless_present = "all", conflicts_with = "all")]
    pub interface: Option<String>,
    /// Put back all interfaces that were prepared in this network namespace
    #[arg(long)]
    pub all: bool,
}

pub(super) fn run(args: &RestoreArgs, context: &Context) -> Result<(), Failure> {
    let directory = Directory::default();
    let outcomes = match &args.interface {
        Some(name) => vec![Ok(restore(name, &directory).map_err(failure)?)],
        None => restore_all(&directory).map_err(failure)?,
    };
    let (mut undone, mut failed) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(one) => undone.push(one),
            Err(error) => failed.push(error.to_string()),
        }
    }
    if context.json {
        output::json(&undone)?;
    } else {
        output::text(&undone.iter().map(as_text).collect::<String>())?;
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::failed(failed.join("; "))) }
}

fn as_text(undone: &Undone) -> String {
    let name = &undone.interface;
    let mut text = String::new();
    if undone.gone {
        let _ = writeln!(text, "{name} is gone, and its settings with it");
    } else if undone.put_back.is_empty() {
        let _ = writeln!(text, "{name}: nothing was left to put back");
    } else {
        let _ = writeln!(text, "{name}: put back: {}", undone.put_back.join(", "));
    }
    for left in &undone.left {
        let _ = writeln!(text, "{name}: left as it is: {left}");
    }
    text
}
