//! `handoff doctor`: what this kernel, these limits, this user and each interface can do.

use std::fmt::Write;
use std::io::IsTerminal;

use handoff_command::{Context, Failure, output};
use handoff_probe::{self as probe, Capability, Mechanism, State, System};
use rustix::termios::tcgetwinsize;

use crate::blk;

const EXAMPLES: &str = "\
Examples:
  handoff doctor                  a table of every mechanism and every interface
  handoff doctor --iface eth0     the same with this interface only
  handoff doctor --json           a list of {mechanism, state, reason, remedy, needs_kernel}

States:
  yes      it was tried and works, or the kernel says that it has it
  no       the line gives the reason, and the line below (->) what would help
  unknown  the line says what prevented an answer

The kernel version is the first mainline version that has the mechanism. It decides nothing.";

/// Arguments of `handoff doctor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Check only this network interface
    #[arg(long, value_name = "NAME")]
    pub iface: Option<String>,
}

/// Probes and prints. A missing mechanism is a finding, not a failure.
///
/// # Errors
///
/// [`Failure::Usage`] for an interface that does not exist.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let interfaces = match &args.iface {
        None => probe::interfaces(),
        Some(name) => vec![name.clone()],
    };
    let mut found = Vec::new();
    for name in &interfaces {
        let about = probe::interface(name);
        if about.is_empty() && args.iface.is_some() {
            return Err(Failure::usage(format!(
                "no network interface \"{name}\"; here are: {}",
                probe::interfaces().join(", ")
            )));
        }
        found.extend(about);
    }
    let general = probe::general();
    let block = general.iter().rposition(|one| one.system == System::Block);
    found.splice(0..0, general);
    let place = block.map_or(0, |last| last + 1);
    found.splice(place..place, blk::mirrors().into_iter().map(mirror));
    context.stop.check()?;
    if context.json {
        return output::json(&found.iter().map(Mechanism::from).collect::<Vec<_>>());
    }
    let stdout = std::io::stdout();
    let columns = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok()).flatten();
    let columns = columns.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let table = table(&found, output::takes_colour(&stdout), columns);
    output::text(&format!("{}\n\n{table}", whom()))
}

/// Whether a mirror has all its legs.
fn mirror((id, lacks): (u32, Option<String>)) -> Capability {
    Capability {
        system: System::Block,
        mechanism: format!("mirror /dev/ublkb{id}").into(),
        state: if lacks.is_none() { State::Yes } else { State::No },
        reason: lacks.as_ref().map(|legs| format!("it is degraded, without {legs}")),
        remedy: lacks.map(|_| format!("handoff blk show {id}; docs/block.md says what to type")),
        needs_kernel: None,
    }
}

/// The kernel and user of the answers.
fn whom() -> String {
    let system = rustix::system::uname();
    format!(
        "Linux {} {}, user id {}",
        system.release().to_string_lossy(),
        system.machine().to_string_lossy(),
        rustix::process::geteuid()
    )
}

/// The least room for reasons: a terminal with less breaks the lines itself.
const LEAST_ROOM: usize = 20;

/// The table, one block per system, in lines that fit into so many columns.
fn table(found: &[Capability], colour: bool, columns: Option<usize>) -> String {
    let width = found.iter().map(|one| one.mechanism.chars().count()).max().unwrap_or(0);
    let indent = format!("  {:width$}  {:7}  {:6}  ", "", "", "");
    let room = columns.map(|columns| columns.saturating_sub(indent.len()));
    let room = room.filter(|room| *room >= LEAST_ROOM).unwrap_or(usize::MAX);
    let mut text = String::new();
    let mut before: Option<&Capability> = None;
    for one in found {
        if before.is_none_or(|before| before.system != one.system) {
            let gap = if before.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{gap}{}", one.system);
        }
        // A driver or module that is missing for several mechanisms is explained once.
        let repeats = one.remedy.is_some()
            && before.is_some_and(|before| {
                (before.system, &before.reason, &before.remedy)
                    == (one.system, &one.reason, &one.remedy)
            });
        before = Some(one);
        let (on, off) = if colour { (paint(one.state), "\x1b[0m") } else { ("", "") };
        let reason = if repeats { "as above" } else { one.reason.as_deref().unwrap_or_default() };
        let mut reason = lines(reason, room).into_iter();
        let line = format!(
            "  {:width$}  {on}{:7}{off}  {:6}  {}",
            one.mechanism,
            one.state,
            one.needs_kernel.unwrap_or("-"),
            reason.next().unwrap_or_default(),
        );
        let _ = writeln!(text, "{}", line.trim_end());
        let remedy = one.remedy.as_ref().filter(|_| !repeats);
        let remedy = remedy.map(|remedy| lines(&format!("-> {remedy}"), room));
        for line in reason.chain(remedy.unwrap_or_default()) {
            let _ = writeln!(text, "{indent}{line}");
        }
    }
    text
}

/// A text in lines of at most `room` characters, and no fewer than a word.
fn lines(text: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The terminal's colour for a state: green, red, yellow.
fn paint(state: State) -> &'static str {
    match state {
        State::Yes => "\x1b[32m",
        State::No => "\x1b[31m",
        State::Unknown => "\x1b[33m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(system: System, state: State) -> Capability {
        Capability {
            system,
            mechanism: "SEND_ZC".into(),
            state,
            reason: (state != State::Yes).then(|| "the reason".to_owned()),
            remedy: (state == State::No).then(|| "the remedy".to_owned()),
            needs_kernel: Some("6.0"),
        }
    }

    #[test]
    fn the_table_groups_and_explains_once() {
        let found = [
            capability(System::Send, State::Yes),
            capability(System::Send, State::No),
            capability(System::Send, State::No),
            capability(System::Rds, State::Unknown),
        ];
        assert_eq!(
            table(&found, false, None),
            "send\n  SEND_ZC  yes      6.0\n  SEND_ZC  no       6.0     the reason\n\
             \u{20}                           -> the remedy\n  SEND_ZC  no       6.0     as above\n\n\
             rds\n  SEND_ZC  unknown  6.0     the reason\n"
        );
        assert!(table(&found, true, None).contains("\x1b[31mno     \x1b[0m"));
        let narrow = table(&found[..2], false, Some(48));
        assert_eq!(narrow, table(&found[..2], false, None));
        let mut long = capability(System::Send, State::No);
        long.reason = Some("a reason of more words than fit into that".to_owned());
        let indent = " ".repeat(28);
        assert_eq!(
            table(&[long], false, Some(48)),
            format!(
                "send\n  SEND_ZC  no       6.0     a reason of more\n{indent}words than fit into\n{indent}that\n{indent}-> \
                 the remedy\n"
            )
        );
    }

    #[test]
    fn a_row_has_the_documented_keys() {
        let row = serde_json::to_value(Mechanism::from(&capability(System::Send, State::No)));
        let row = row.expect("serialises");
        let keys: Vec<_> = row.as_object().expect("an object").keys().cloned().collect();
        assert_eq!(keys, ["mechanism", "needs_kernel", "reason", "remedy", "state"]);
        assert_eq!(row["state"], "no");
    }
}
