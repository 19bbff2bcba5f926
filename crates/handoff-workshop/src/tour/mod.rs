//! `handoff tour`: a file's way through every available mechanism, and who copied it on the way.
//!
//! The way: a file on a block device of ours, whose loop is a program in the kernel -> lent from the page cache ->
//! sent without a copy -> a software NIC -> received without a copy -> written past the page cache to another block
//! device of ours; then the same by reliable datagrams. Each step is a user's command, with `--json`.
//!
//! Contracts:
//! - the kernel's own reports and the copy meter say side by side what a hop copied; where neither looks,
//!   it is unknown, never 0;
//! - a mechanism that this machine lacks is left out, and a note says so;
//! - devices, mounts, namespaces and files go with the tour, also after a signal; a kill leaves a directory
//!   with the parts of the devices.

use std::path::PathBuf;

use handoff_bench::failure::of_lab;
use handoff_bench::machine::Machine as Here;
use handoff_command::failure::Failed;
use handoff_command::quantity::parse_size;
use handoff_command::{Context, Failure, output};
use handoff_lab::{Disk, DiskContent, Machine, command, command::Carried};
use handoff_sys::companion::WORKSHOP;

mod chain;
mod report;
mod running;
mod testbed;
mod volume;
mod witness;

use chain::Carrier;
use report::Report;
use testbed::Testbed;

const EXAMPLES: &str = "\
The hosts are two network namespaces. For each hop the table has what the kernel reports as
copied, and what the copy meter saw. Simulated DMA is a thread in place of a NIC's engine.

Examples:
  handoff tour --lab                     on a stock kernel in a guest, where everything is there
  handoff tour                           with what this machine has, on files in /var/tmp
  handoff tour --size 1g --directory /mnt/disk
  handoff tour --part /dev/vdb --part /dev/vdc --part /dev/vdd --part /dev/vde    (overwritten)

Needs root, and mkfs.ext4; with --lab, what the lab needs.";

/// The guest's disks that the devices are made of. The far disks must accept memory at any place of a NIC's
/// area, so they are NVMe.
const NEAR: [&str; 2] = ["near-1", "near-2"];
const FAR: [&str; 2] = ["far-1", "far-2"];

/// Arguments of `handoff tour`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Bytes of the file, 1m to 1024g (k, m, g)
    #[arg(long, default_value = "64m", value_parser = size)]
    pub size: u64,

    /// Directory for the files behind the block devices
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp", conflicts_with = "lab")]
    pub directory: PathBuf,

    /// File or disk for the block devices; it is overwritten. Give it four times
    #[arg(long, value_name = "PATH", conflicts_with = "lab")]
    pub part: Vec<PathBuf>,

    /// Run in the lab's guest
    #[arg(long)]
    pub lab: bool,
}

/// Parses the bytes of a file.
fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    // A file of whole pages has no rest that could only be copied.
    if (1 << 20..=1 << 40).contains(&bytes) && bytes % 4_096 == 0 {
        return Ok(bytes);
    }
    Err("a file of 1m to 1024g, in multiples of 4k".to_owned())
}

/// Takes the tour, and reports.
///
/// # Errors
///
/// See [`Failure`]; a missing mechanism is no failure unless nothing is left.
pub(crate) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let report = if args.lab { in_the_lab(args, context)? } else { here(args, context)? };
    if context.json { output::json(&report) } else { output::text(&report.text()) }
}

fn here(args: &Args, context: &Context) -> Result<Report, Failure> {
    if !matches!(args.part.len(), 0 | 4) {
        return Err(Failure::usage(format!(
            "--part is given four times, not {}: two for each device",
            args.part.len()
        )));
    }
    let mut notes = Vec::new();
    output::say(format_args!(
        "making two hosts, two block devices and a file of {} bytes",
        args.size
    ));
    let testbed = Testbed::new(&args.directory, &args.part, args.size, &mut notes, &context.stop)?;
    let mut chains = Vec::new();
    for carrier in Carrier::ALL {
        output::say(format_args!("the file goes from host to host by {}", carrier.name()));
        chains.push(chain::run(&testbed, carrier, &mut notes, &context.stop)?);
    }
    let machine = Here::this();
    Ok(Report { emulated: machine.is_emulated(), kernel: machine.kernel, chains, notes })
}

fn in_the_lab(args: &Args, context: &Context) -> Result<Report, Failure> {
    // A disk has room for the file, and for the file system's own needs.
    let bytes = args.size + (32 << 20);
    let disk = |name: &str| Disk { name: name.into(), content: DiskContent::Scratch(bytes) };
    let (disks, nvme) = (NEAR.map(disk).to_vec(), FAR.map(disk).to_vec());
    let machine = Machine { disks, nvme, ..Machine::default() };
    let mut arguments =
        vec!["tour".to_owned(), "--json".to_owned(), format!("--size={}", args.size)];
    arguments.extend(NEAR.map(|name| format!("--part=/dev/disk/by-id/virtio-{name}")));
    arguments.extend(FAR.map(|name| format!("--part=/dev/disk/by-id/nvme-{name}")));
    let (nothing, stop) = (Carried::default(), context.stop.flag());
    let (code, printed) =
        command::run_program(&machine, &nothing, WORKSHOP, &arguments, None, stop)
            .map_err(|error| of_lab(error, &context.stop))?;
    if code != 0 {
        // The tour in the guest has said why.
        return Err(Failure::Ended(code));
    }
    serde_json::from_slice(&printed).failed("the tour in the guest printed no report")
}
