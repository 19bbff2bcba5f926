//! `handoff blk set`: values in the maps of a policy, while I/O runs.

use handoff_block::{Control, policy};

use crate::{Context, Failure, output};

const EXAMPLES: &str = "\
Keys and values are numbers as long as the map has them, or bytes: hex: and two digits for each.

Examples:
  handoff blk set 0 places 7=1 8=2
  handoff blk set 0 owners 3=hex:00112233";

/// Arguments of `handoff blk set`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SetArgs {
    /// Number of the device
    pub id: u32,
    /// Name of a map of its policy
    pub map: String,
    /// What to set
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub pairs: Vec<(String, String)>,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

pub(super) fn run(args: &SetArgs, context: &Context) -> Result<(), Failure> {
    if Control::open()?.find(args.id)?.is_none() {
        return Err(Failure::usage(format!("there is no device {}: handoff blk list", args.id)));
    }
    policy::set(args.id, &args.map, &args.pairs)?;
    if context.json {
        return output::json(&serde_json::json!({ "set": args.pairs.len() }));
    }
    Ok(())
}
