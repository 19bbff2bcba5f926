//! `handoff blk set`: values in the maps of a policy, or the policy itself, while I/O runs.

use std::path::{self, PathBuf};

use handoff_block::{Control, policy};
use handoff_command::named::parse_named;
use handoff_command::{Context, Failure, output};

use super::failure::{device, failure};

const EXAMPLES: &str = "\
Keys and values are numbers of the map's length, or bytes: hex: and two digits for each byte.

A new policy is checked as when a device is made; if it is refused, nothing changes. Maps that
both policies have, with the same type and sizes, keep what is in them.

Examples:
  handoff blk set 0 places 7=1 8=2
  handoff blk set 0 owners 3=hex:00112233
  handoff blk set 0 --policy shard-2.bpf.o";

/// Arguments of `handoff blk set`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SetArgs {
    /// Number of the device
    pub id: u32,
    /// Name of a map of its policy
    #[arg(required_unless_present = "policy", conflicts_with = "policy")]
    pub map: Option<String>,
    /// What to set
    #[arg(required_unless_present = "policy", value_name = "KEY=VALUE", value_parser = parse_named)]
    pub pairs: Vec<(String, String)>,
    /// The BPF object with the new policy
    #[arg(long, value_name = "OBJECT")]
    pub policy: Option<PathBuf>,
}

pub(super) fn run(args: &SetArgs, context: &Context) -> Result<(), Failure> {
    device(&mut Control::open().map_err(failure)?, args.id)?;
    let set = match (&args.policy, &args.map) {
        (Some(object), _) => {
            let object = path::absolute(object)
                .map_err(|error| Failure::usage(format!("a path is wrong: {error}")))?;
            policy::exchange(args.id, &object).map_err(failure)?;
            serde_json::json!({ "policy": object })
        }
        (None, Some(map)) => {
            policy::set(args.id, map, &args.pairs).map_err(failure)?;
            serde_json::json!({ "set": args.pairs.len() })
        }
        (None, None) => unreachable!("one of them is required"),
    };
    if context.json { output::json(&set) } else { Ok(()) }
}
