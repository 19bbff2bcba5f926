//! One file's way from host to host, and the result of each hop.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use handoff_command::failure::Failed;
use handoff_command::{Failure, Stop};
use handoff_cp::checksum::PieceSum;
use rustix::fs::{Advice, fadvise};
use serde::Deserialize;

use super::report::{Chain, Hop};
use super::running::Running;
use super::testbed::Testbed;
use super::witness::{Part, Seen, Witness};

/// What carries the bytes between the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrier {
    /// One connection of bare bytes.
    Tcp,
    /// Reliable datagrams.
    Rds,
}

impl Carrier {
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::Rds];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Rds => "RDS",
        }
    }
}

const PORT: u16 = 9_000;

/// What `handoff cp` prints about a hop.
#[derive(Deserialize)]
struct Copied {
    from: String,
    to: String,
    engine: String,
    zero_copy: u64,
    copied: u64,
    unknown: u64,
}

/// What `handoff cp` prints.
#[derive(Deserialize)]
struct Copy {
    hops: Vec<Copied>,
    notes: Vec<String>,
}

impl Copied {
    fn hop(&self, seen: Result<&Seen, &String>) -> Hop {
        let bytes = self.zero_copy + self.copied + self.unknown;
        let part = match (self.from.as_str(), self.to.as_str()) {
            ("file", _) => Some(Part::FileRead),
            (_, "file") => Some(Part::FileWrite),
            ("socket", _) => Some(Part::Receive),
            (_, "socket") => Some(Part::Send),
            // The hop is in user space, where the meter does not look.
            _ => None,
        };
        Hop {
            from: self.from.clone(),
            to: self.to.clone(),
            engine: self.engine.clone(),
            bytes,
            copied_by_report: (self.unknown == 0).then_some(self.copied),
            copied_by_witness: part.and_then(|part| seen.ok().map(|seen| seen.on(part))),
            simulated_dma: false,
        }
    }
}

/// Sends the testbed's file from one host to the other, and compares it.
pub(super) fn run(
    testbed: &Testbed,
    carrier: Carrier,
    notes: &mut Vec<String>,
    stop: &Stop,
) -> Result<Chain, Failure> {
    let (source, target) =
        (testbed.near.file(super::testbed::FILE), testbed.far.file(carrier.name()));
    let before = checksum(&source, stop)?;
    let witness = Witness::new();
    let begin = (Instant::now(), testbed.counts()?);
    let (sent, received) = carry(testbed, carrier, &source, &target, stop)?;
    let seconds = begin.0.elapsed().as_secs_f64();
    let traffic = testbed.counts()?.since(begin.1);
    let seen = witness.read();
    if let Err(reason) = &seen {
        let note = format!("no copy witness: {reason}");
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let after = checksum(&target, stop)?;
    if before != after {
        return Err(Failure::failed(format!(
            "{} arrived damaged: CRC {:016x}, not {:016x}",
            target.display(),
            after.sum,
            before.sum
        )));
    }
    for note in sent.notes.iter().chain(&received.notes) {
        notes.push(format!("{}: {note}", carrier.name()));
    }

    let seen = seen.as_ref();
    let mut hops = Vec::new();
    if let Ok(device) = testbed.near.device() {
        hops.push(Hop {
            from: format!("files ({})", device.joined),
            to: "page cache".to_owned(),
            engine: format!("ublk {}", device.engine),
            bytes: traffic.read,
            copied_by_report: None,
            copied_by_witness: seen.ok().map(|seen| seen.on(Part::DeviceRead)),
            simulated_dma: false,
        });
    }
    hops.extend(sent.hops.iter().map(|copied| copied.hop(seen)));
    hops.push(Hop {
        from: "NIC".to_owned(),
        to: "NIC".to_owned(),
        engine: testbed.joint.name().to_owned(),
        bytes: traffic.dma.unwrap_or(before.bytes),
        copied_by_report: None,
        copied_by_witness: None,
        simulated_dma: traffic.dma.is_some(),
    });
    hops.extend(received.hops.iter().map(|copied| copied.hop(seen)));
    if let Ok(device) = testbed.far.device() {
        hops.push(Hop {
            from: "block device".to_owned(),
            to: format!("files ({})", device.joined),
            engine: format!("ublk {}", device.engine),
            bytes: traffic.written,
            copied_by_report: None,
            copied_by_witness: seen.ok().map(|seen| seen.on(Part::DeviceWrite)),
            simulated_dma: false,
        });
    }
    Ok(Chain {
        name: carrier.name().to_owned(),
        bytes: before.bytes,
        seconds,
        checksum: format!("{:016x}", before.sum),
        hops,
        copied_elsewhere: seen.ok().map(|seen| seen.elsewhere),
        copied_by_kernel_threads: seen.ok().map(|seen| seen.by_kernel_threads),
    })
}

/// Carries the file from host to host. Returns what the two ends of the copy print.
fn carry(
    testbed: &Testbed,
    carrier: Carrier,
    source: &Path,
    target: &Path,
    stop: &Stop,
) -> Result<(Copy, Copy), Failure> {
    let (near, far) = (testbed.pair.left.namespace(), testbed.pair.right.namespace());
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (source, target) = (text(source), text(target));
    let address = testbed.pair.right.v4();
    let (receive, send, listen, connect) = match carrier {
        // With `--raw` there are no words of our own between the bytes, so they are aligned to pages at the
        // receiver.
        Carrier::Tcp => (
            vec!["--raw", "--direct"],
            "--raw",
            format!("tcp-listen://{address}:{PORT}"),
            format!("tcp://{address}:{PORT}"),
        ),
        // Messages are received into unaligned memory, so the page cache writes the file.
        Carrier::Rds => {
            let both = format!("rds://{address}:{PORT}");
            (vec!["--sync"], "--direct", both.clone(), both)
        }
    };
    let mut arguments = ["cp"].into_iter().chain(receive).collect::<Vec<_>>();
    if carrier == Carrier::Tcp && testbed.joint.has_queues() {
        arguments.extend(["--nic", testbed.pair.right.device()]);
    }
    arguments.extend([listen.as_str(), target.as_str()]);
    let mut receiver = Running::start(Some(far), &arguments)?;
    receiver.says("listening on", stop)?;
    let sender = Running::start(Some(near), &["cp", send, &source, &connect])?;
    Ok((sender.finish(stop)?, receiver.finish(stop)?))
}

/// The length in bytes and the checksum of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sum {
    bytes: u64,
    sum: u64,
}

/// Reads a file from its disk, and leaves nothing of it in the page cache.
fn checksum(path: &PathBuf, stop: &Stop) -> Result<Sum, Failure> {
    let trying = format!("reading {}", path.display());
    let file = File::open(path).failed(&trying)?;
    let forget = || fadvise(&file, 0, None, Advice::DontNeed);
    // Pages that are not on the disk stay in the page cache.
    file.sync_all().failed(&trying)?;
    forget().failed(&trying)?;
    let mut sum = PieceSum::new(true);
    let mut piece = vec![0; 1 << 20];
    loop {
        stop.check()?;
        match (&file).read(&mut piece).failed(&trying)? {
            0 => break,
            read => sum.update(&piece[..read]),
        }
    }
    forget().failed(&trying)?;
    let bytes = fs::metadata(path).failed(&trying)?.len();
    Ok(Sum { bytes, sum: sum.finish() })
}
