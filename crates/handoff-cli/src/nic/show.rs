//! `handoff nic show`: one interface in full, or all in a line each.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use handoff_command::{Context, Failure, output};
use handoff_net::nic::failure;
use handoff_nic::{Directory, Nic, Obstacle, Record, Target, Weight};
use serde::Serialize;

use super::numbers::numbers;

const EXAMPLES: &str = "\
`handoff nic prepare` solves what is marked \"prepare\"; nothing helps where it says \"no\".
Whether the driver can exchange the memory of one queue while the others run shows only when a
queue is bound.

Examples:
  handoff nic show
  handoff nic show eth0
  handoff nic show --json";

/// Arguments of `handoff nic show`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    /// Name of the interface [default: all, a line each]
    #[arg(value_name = "IFACE")]
    pub interface: Option<String>,
}

/// The JSON of one interface.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    nic: Nic,
    obstacles: Vec<Obstacle>,
    /// Its record, if there is one.
    prepared: Option<Record>,
    /// Why the record could not be read.
    prepared_unknown: Option<String>,
}

impl From<Nic> for Shown {
    fn from(nic: Nic) -> Self {
        let (prepared, prepared_unknown) = match nic.record(&Directory::default()) {
            Ok(record) => (record, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { obstacles: nic.obstacles(), nic, prepared, prepared_unknown }
    }
}

pub(super) fn run(args: &ShowArgs, context: &Context) -> Result<(), Failure> {
    if let Some(name) = &args.interface {
        let shown = Shown::from(Nic::look(name).map_err(failure)?);
        return match context.json {
            true => output::json(&shown),
            false => output::text(&in_full(&shown)),
        };
    }
    let all: Vec<_> = Nic::all().map_err(failure)?.into_iter().map(Shown::from).collect();
    match context.json {
        true => output::json(&all),
        false => output::text(&overview(&all)),
    }
}

/// The interface and its most important facts.
fn overview(all: &[Shown]) -> String {
    let name = all.iter().map(|shown| shown.nic.name.len()).max().unwrap_or(0);
    let driver = |shown: &Shown| shown.nic.driver.clone().unwrap_or_else(|| "-".to_owned());
    let width = all.iter().map(|shown| driver(shown).len()).max().unwrap_or(0);
    let mut text = String::new();
    for shown in all {
        let nic = &shown.nic;
        let state = if nic.up { "up" } else { "down" };
        let queues = match nic.rx_queues() {
            1 => "1 queue".to_owned(),
            count => format!("{count} queues"),
        };
        let _ = writeln!(
            text,
            "{:name$}  {:width$}  {state:4}  {queues:>9}  {}",
            nic.name,
            driver(shown),
            verdict(shown)
        );
    }
    text
}

fn verdict(shown: &Shown) -> String {
    if let Some(record) = &shown.prepared {
        return format!("queue {} {}", numbers(&record.queues), record.whose());
    }
    let of = |weight| shown.obstacles.iter().find(move |obstacle| obstacle.weight == weight);
    if let Some(blocking) = of(Weight::Blocks) {
        return format!("no: {}", blocking.cause);
    }
    if of(Weight::Prepared).is_some() { "can be prepared" } else { "is ready" }.to_owned()
}

fn in_full(shown: &Shown) -> String {
    let nic = &shown.nic;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:12} {value}");
    };
    let word = |on: bool| if on { "on" } else { "off" };
    line("interface", format!("{} (number {})", nic.name, nic.index));
    line("driver", nic.driver.clone().unwrap_or_else(|| "unknown".to_owned()));
    if let Some(kind) = &nic.kind {
        line("kind", kind.clone());
    }
    line("state", format!("{}, MTU {}", if nic.up { "up" } else { "down" }, nic.mtu));
    if let Some(above) = &nic.controller {
        line("belongs to", above.name.clone());
    }
    if !nic.lower.is_empty() {
        line("stands on", nic.lower.join(", "));
    }
    if let Some(channels) = nic.channels {
        let (now, max) = (channels.now, channels.max);
        line("channels", format!("{now} {}, {max} at most", channels.kind.name()));
    }
    if let Some(rings) = nic.rings {
        let number = |number: Option<u32>| number.map_or("unknown".to_owned(), |n| n.to_string());
        line("rx ring", format!("{} of {} entries", number(rings.entries), number(rings.max)));
        let split = match (rings.data_split, rings.split_threshold) {
            (None, _) => "not to be set".to_owned(),
            (Some(2), Some(above)) => format!("on, above {above} bytes"),
            (Some(2), None) => "on".to_owned(),
            (Some(1), _) => "off".to_owned(),
            (Some(_), _) => "as the driver likes".to_owned(),
        };
        line("split", split);
        if let Some(length) = rings.buffer_length {
            line("rx buffers", format!("{length} bytes"));
        }
    }
    let features = [("ntuple", nic.ntuple), ("hardware GRO", nic.hardware_gro), ("hash", nic.hash)];
    for (name, feature) in features {
        let fixed = if feature.switchable { "" } else { ", cannot be switched" };
        line(name, format!("{}{fixed}", word(feature.on)));
    }
    for table in &nic.tables {
        let name = match table.context {
            0 => "RSS".to_owned(),
            context => format!("RSS {context}"),
        };
        let queues: Vec<u32> = table.queues().into_iter().collect();
        line(&name, format!("{} entries to {}", table.entries.len(), numbers(&queues)));
    }
    for rule in nic.rules.iter().flat_map(|rules| &rules.rules) {
        let flow = rule.flow.map_or("packets of a kind of its own".to_owned(), |f| f.to_string());
        let target = match rule.target {
            Target::Queue(queue) => format!("to queue {queue}"),
            Target::Context { context, first: 0 } => format!("by RSS {context}"),
            Target::Context { context, first } => format!("by RSS {context} from queue {first}"),
            Target::Elsewhere => "elsewhere".to_owned(),
        };
        line(&format!("rule {}", rule.location), format!("{flow} {target}"));
    }
    queues(nic, &mut text);
    match (&shown.prepared, &shown.prepared_unknown) {
        (Some(record), _) => {
            let queues = numbers(&record.queues);
            let _ =
                writeln!(text, "{:12} {}; queue {queues} set aside", "prepared", record.whose());
        }
        (None, Some(why)) => {
            let _ = writeln!(text, "{:12} unknown: {why}", "prepared");
        }
        (None, None) => {}
    }
    for obstacle in &shown.obstacles {
        let mark = match obstacle.weight {
            Weight::Blocks => "no",
            Weight::Prepared => "prepare",
            Weight::Beware => "beware",
        };
        let _ = writeln!(text, "{mark:12} {}", obstacle.cause);
        if let Some(remedy) = &obstacle.remedy {
            let _ = writeln!(text, "{:12} -> {remedy}", "");
        }
    }
    text
}

fn queues(nic: &Nic, text: &mut String) {
    let hashed: BTreeSet<u32> = nic.table().map(|table| table.queues()).unwrap_or_default();
    for queue in nic.queues.iter().flatten() {
        let mut details = Vec::new();
        details.extend(queue.napi.map(|napi| format!("NAPI {napi}")));
        details.extend(queue.irq.map(|irq| format!("interrupt {irq}")));
        details.extend(queue.thread.map(|thread| format!("thread {thread}")));
        if hashed.contains(&queue.id) {
            details.push("host's own traffic".to_owned());
        }
        details.extend(queue.bound.map(|bound| format!("bound to {}", bound.name())));
        let line = format!("{:12} {}", format!("queue {}", queue.id), details.join(", "));
        let _ = writeln!(text, "{}", line.trim_end());
    }
}
