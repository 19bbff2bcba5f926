//! `handoff nic lease`: queues of a card for a program in another network namespace.

use std::ffi::OsString;
use std::net::IpAddr;
use std::process::Command;

use handoff_command::{Context, Failure, output};
use handoff_net::nic::failure;
use handoff_nic::{Directory, Lease, Namespace, Prepared, Step};
use ipnet::IpNet;
use serde_json::json;

use super::prepare::{self, Queues};

const EXAMPLES: &str = "\
A program in the container receives without a copy on the device that appears there, as on a card:
`handoff cp --nic nk0`. Its queues are 1, 2, ... of that device; the host has prepared the card, so
the program prepares and steers nothing. While a program has such a queue bound, no other can read
what fills it: --port keeps all but its own port out of the queue. The program needs
CAP_NET_ADMIN of the first user namespace; `handoff doctor` in the container says whether it has
it.

The steps: those of `handoff nic prepare`, with a rule for each address; a netkit pair with the
leased queues, its far end in the container, with new addresses and routes; a redirect of what
arrives at the card for the addresses. Other hosts need a route to them by this host:
`ip route add ADDRESS via THIS-HOST`.

A COMMAND runs in the container's network namespace, and has HANDOFF_NIC and HANDOFF_NIC_QUEUES
(such as 1,2) in its environment. When it ends, everything is put back. Without one the lease lasts
until `handoff nic restore`.

Examples:
  handoff nic lease eth0 --to 4711
  handoff nic lease eth0 --to blue --queues 2 --address 10.9.0.2 --address fd00:9::2
  handoff nic lease eth0 --to blue --address 10.9.0.2 -- ./server
  handoff nic restore eth0";

/// Arguments of `handoff nic lease`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct LeaseArgs {
    /// Name of the card's interface
    #[arg(value_name = "IFACE")]
    pub interface: String,
    /// Network namespace that gets the queues: a process's number, a name (ip netns), or a path
    #[arg(long, value_name = "PID|NETNS")]
    pub to: String,
    /// Address of the container, new or not; may be repeated [default: all that it has]
    #[arg(long, value_name = "ADDRESS")]
    pub address: Vec<IpAddr>,
    /// Let only TCP packets for this port of the addresses fill the leased queues; may be repeated
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// Network that the container reaches by the card; may be repeated [default: for new addresses, those of
    /// the card]
    #[arg(long, value_name = "NETWORK")]
    pub route: Vec<IpNet>,
    /// Name of the device in the container
    #[arg(long, value_name = "NAME", default_value = "nk0")]
    pub device: String,
    #[command(flatten)]
    queues: Queues,
    /// Switch hardware GRO on: the card joins packets of a connection
    #[arg(long)]
    pub hw_gro: bool,
    /// Show the steps, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The command to run in the network namespace while it has the queues
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "dry_run")]
    pub command: Vec<OsString>,
}

pub(super) fn run(args: &LeaseArgs, context: &Context) -> Result<(), Failure> {
    let (name, device) = (&args.interface, &args.device);
    let to = Namespace::find(&args.to).map_err(failure)?;
    let addresses = match &args.address[..] {
        [] => to.addresses().map_err(failure)?,
        addresses => addresses.to_vec(),
    };
    if addresses.is_empty() {
        let cause = format!(
            "the network namespace of {} has no address yet: choose one (--address)",
            args.to
        );
        return Err(Failure::usage(cause));
    }
    let lease = Lease {
        to,
        device: device.clone(),
        addresses,
        ports: args.port.clone(),
        routes: args.route.clone(),
    };
    let directory = Directory::default();
    let told = |queues: &[u32], steps: &[Step], is: &str| {
        let far: Vec<u32> = (1..=queues.len() as u32).collect();
        let answer = json!({
            "interface": name, "queues": queues, "steps": steps, "device": device,
            "device_queues": far, "to": args.to,
        });
        let text = prepare::as_text(name, queues, steps, is);
        (text, answer, super::numbers::numbers(&far))
    };
    if args.dry_run {
        let nic = prepare::not_prepared(name, &directory)?;
        let plan = lease.plan(args.queues.wanted(), args.hw_gro);
        let (queues, mut steps) =
            (plan.queues(&nic).map_err(failure)?, plan.steps(&nic).map_err(failure)?);
        steps.extend(lease.changes(&nic, &queues).map_err(failure)?.map(Step::from));
        let (text, answer, _) = told(&queues, &steps, "would be");
        return if context.json { output::json(&answer) } else { output::text(&text) };
    }
    let prepared = Prepared::leased(name, args.queues.wanted(), args.hw_gro, &lease, &directory)
        .map_err(failure)?;
    context.stop.check()?;
    let (text, answer, far) = told(prepared.queues(), prepared.steps(), "is");
    let command = args.command.split_first().map(|(program, arguments)| {
        let mut command = Command::new(program);
        command.args(arguments).env("HANDOFF_NIC", device).env("HANDOFF_NIC_QUEUES", far);
        lease.to.attach(&mut command);
        command
    });
    prepare::hold(prepared, command, &text, answer, context)
}
