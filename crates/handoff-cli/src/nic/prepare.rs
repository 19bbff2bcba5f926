//! `handoff nic prepare`: for as long as a command runs, or until `restore`.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use handoff_command::{Context, Failure, output};
use handoff_net::nic::failure;
use handoff_net::nic::{Card, put_back};
use handoff_nic::{Directory, Flow, Ip, Nic, Plan, Prepared, Step, Wanted};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};

use super::numbers::numbers;

const EXAMPLES: &str = "\
The steps, where they are still needed: header/data split on, with threshold 0; rules (ntuple)
on; RSS narrowed, so that the queues get only what rules send there; a rule for each port and
version of IP.

Queues are taken from the highest down, but never queue 0, nor a queue that others have bound or
steer traffic to. If there are too few, the number of channels is raised. With several queues,
ports take turns; both versions of IP go to the same queue. With --spread the connections of a
port go to all queues, each to one.

A COMMAND has HANDOFF_NIC and HANDOFF_NIC_QUEUES (such as 2,3) in its environment. When it ends,
everything is put back, and its exit code is that of `handoff`. With --json its standard output
goes to standard error.

Examples:
  handoff nic prepare eth0 --port 8000 --dry-run
  handoff nic prepare eth0 --queues 2 --port 8000 --port 8001 -- ./server
  handoff nic prepare eth0 --port 8000 && ./server; handoff nic restore eth0";

/// Arguments of `handoff nic prepare`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct PrepareArgs {
    /// Name of the interface
    #[arg(value_name = "IFACE")]
    pub interface: String,
    #[command(flatten)]
    queues: Queues,
    /// Steer TCP connections to this local port to the queues; may be repeated
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// Spread the connections of each port over all queues, by an RSS context (Linux 6.17)
    #[arg(long, requires = "port")]
    pub spread: bool,
    /// Set the length of the ring's buffers, in bytes
    #[arg(long, value_name = "BYTES")]
    pub rx_buf_len: Option<u32>,
    /// Switch hardware GRO on: the card joins packets of a connection
    #[arg(long)]
    pub hw_gro: bool,
    /// Show the steps, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The command to run while the queues are set aside
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "dry_run")]
    pub command: Vec<OsString>,
}

/// Which queues.
#[derive(Debug, clap::Args)]
pub(super) struct Queues {
    /// Number of rx queues to set aside
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    queues: u32,
    /// Set aside this queue; may be repeated
    #[arg(long, value_name = "NUMBER", conflicts_with = "queues")]
    queue: Vec<u32>,
}

impl Queues {
    pub(super) fn wanted(&self) -> Wanted {
        match &self.queue[..] {
            [] => Wanted::Count(self.queues),
            queues => Wanted::These(queues.to_vec()),
        }
    }
}

impl PrepareArgs {
    fn plan(&self) -> Plan {
        let of = |(place, port): (usize, &u16)| {
            [Ip::V4, Ip::V6].map(|ip| (Flow::port(ip, *port), place))
        };
        let flows = self.port.iter().enumerate().flat_map(of).collect();
        Plan {
            queues: self.queues.wanted(),
            flows,
            spread: self.spread,
            buffer_length: self.rx_buf_len,
            hardware_gro: self.hw_gro,
        }
    }
}

pub(super) fn run(args: &PrepareArgs, context: &Context) -> Result<(), Failure> {
    let name = &args.interface;
    let plan = args.plan();
    if args.dry_run {
        let nic = not_prepared(name, &Directory::default())?;
        let (queues, steps) =
            (plan.queues(&nic).map_err(failure)?, plan.steps(&nic).map_err(failure)?);
        if context.json {
            return output::json(&json!({ "interface": name, "queues": queues, "steps": steps }));
        }
        return output::text(&as_text(name, &queues, &steps, "would be"));
    }
    let prepared = Prepared::new(name, &plan, &Directory::default()).map_err(failure)?;
    context.stop.check()?;
    let (queues, steps) = (prepared.queues().to_vec(), prepared.steps().to_vec());
    let text = as_text(name, &queues, &steps, "is");
    let answer = json!({ "interface": name, "queues": queues, "steps": steps });
    let command = args.command.split_first().map(|(program, arguments)| {
        let mut command = Command::new(program);
        command.args(arguments);
        command.env("HANDOFF_NIC", name).env("HANDOFF_NIC_QUEUES", numbers(&queues));
        command
    });
    hold(prepared, command, &text, answer, context)
}

/// The interface, which nobody has prepared.
pub(super) fn not_prepared(name: &str, directory: &Directory) -> Result<Nic, Failure> {
    let nic = Nic::look(name).map_err(failure)?;
    match nic.record(directory).map_err(failure)? {
        Some(record) => Err(Failure::failed(format!("{name} {}", record.whose()))),
        None => Ok(nic),
    }
}

/// Holds the interface while the command runs, or else until it is restored. `text` and `answer` say what
/// was done.
pub(super) fn hold(
    prepared: Prepared,
    command: Option<Command>,
    text: &str,
    mut answer: Value,
    context: &Context,
) -> Result<(), Failure> {
    let name = prepared.name().to_owned();
    let Some(mut command) = command else {
        let record = prepared.keep().map_err(failure)?;
        let undo = format!("handoff nic restore {name}");
        if !context.json {
            return output::text(&format!("{text}to put it back: {undo}\n"));
        }
        answer["record"] = json!(record);
        answer["undo"] = json!(undo);
        return output::json(&answer);
    };
    if !context.json {
        output::print_aside(text.trim_end());
    }
    let status = match attend(&mut command, context) {
        Ok(status) => status,
        Err(failure) => return put_back(Card::Prepared(prepared), Err(failure)),
    };
    let undone = prepared.undo().map_err(failure)?;
    for left in &undone.left {
        output::print_aside(format_args!("{name}: left as it is: {left}"));
    }
    if context.json {
        answer["undone"] = json!(undone);
        output::json(&answer)?;
    }
    context.stop.check()?;
    match code_of(status) {
        0 => Ok(()),
        code => Err(Failure::Ended(code)),
    }
}

pub(super) fn as_text(name: &str, queues: &[u32], steps: &[Step], is: &str) -> String {
    let mut text = String::new();
    for step in steps {
        text.push_str(&format!("{name}: {}\n", step.text));
    }
    let (noun, is) = match (queues.len(), is) {
        (1, is) => ("queue", is),
        (_, "is") => ("queues", "are"),
        (_, is) => ("queues", is),
    };
    text.push_str(&format!("{name}: {noun} {} {is} set aside\n", numbers(queues)));
    text
}

/// Runs a command to its end; asks it to end when we are asked.
fn attend(command: &mut Command, context: &Context) -> Result<ExitStatus, Failure> {
    if context.json {
        let errors = io::stderr().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
        command.stdout(Stdio::from(errors));
    }
    let mut child = command.spawn().map_err(|error| {
        let program = command.get_program().display();
        Failure::usage(format!("{program} cannot be started: {error}"))
    })?;
    let outcome = wait(&child, context);
    if outcome.is_err() {
        // It must not continue with queues that are taken away.
        let _ = child.kill();
    }
    let status = child.wait();
    outcome?;
    status.map_err(|error| Failure::failed(format!("the command cannot be waited for: {error}")))
}

/// Returns when it has ended.
fn wait(child: &Child, context: &Context) -> Result<(), Failure> {
    let failed = |errno| {
        Failure::failed(format!("the command cannot be waited for: {}", io::Error::from(errno)))
    };
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
    let stop = context.stop.fd();
    let mut watched = vec![PollFd::new(&ended, PollFlags::IN), PollFd::new(&stop, PollFlags::IN)];
    loop {
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => continue,
            done => done.map_err(failed)?,
        };
        if !watched[0].revents().is_empty() {
            return Ok(());
        }
        // Asked once; it takes the time that it needs.
        kill_process(pid, Signal::TERM).map_err(failed)?;
        watched.truncate(1);
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
