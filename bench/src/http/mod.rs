//! `handoff bench http` measures the cost of serving files and bytes over HTTP, beside hyper's own server,
//! nginx and other programs.
//!
//! Contracts:
//!
//! 1. A row is a server on its own processor, with wrk as the client at the other end of a network. Our servers
//!    have one thread; their costs are those of this thread, of the ring's workers for it, and of its NIC's
//!    threads. Costs of other programs are those of all their threads, and of the NIC's threads.
//! 2. A slot begins and ends while answers are under way, so no figure includes making and ending
//!    connections. Requests are the bytes that arrived in the slot, divided by the length of an answer.
//! 3. Ratios compare the server's cost for each request, here as in the lab.
//! 4. For the witness, one connection sends requests and discards the answers: whatever the witness sees was
//!    copied for the server.

mod asking;
mod hyper;
mod ours;
mod program;
mod served;
mod testbed;
mod wrk;

use std::sync::atomic::AtomicBool;

use clap::Args;
use handoff_command::quantity::{parse_count, parse_size};
use handoff_command::{Context, Failure};

use self::{
    hyper::Hyper,
    ours::{Ours, Source},
    program::Program,
    served::{MakeServer, Served},
    testbed::Testbed,
};
use crate::{
    lab,
    measure::{Compare, Measured, Plan, Subject},
    network::far::Network as _,
    peer::ProgramOptions,
    processor::Pinned,
    report::{self, Config, Report},
    run::{self, Bench, RunOptions, Slots},
};

const EXAMPLES: &str = "\
Rows (the ratio is to nginx, of the same size and number of connections):
  nginx        sendfile on, one worker, no log
  serve        handoff serve, one thread
  file         a tower service on handoff-http that answers with a file that it has open
  bytes        the same with Bytes
  hyper-file   hyper's own server on tokio, one thread, which reads the file by 64 KiB
  hyper-bytes  the same with Bytes

The load is wrk, one thread, with connections that stay. CPU and instructions are the server's:
those of its thread, of the ring's workers for it, and of its NIC's threads. Ratios are of these,
for each request; above 1 is less than nginx. What the witness (--meter) sees was copied for the
server, or by the network.

A peer is another server. It must stay in the foreground, listen at {addr} and {port}, and speak
HTTP/1.1 with connections that stay and answers that have a Content-Length. The files that are asked
for are in the directory {root}; {cpu} is its processor. Its costs are those of all its threads and
of its NIC. Only the witness knows what it copied.

Servers and wrk are in network namespaces of their own, joined by software NICs in the lab, and
elsewhere by veth, where the kernel copies what is lent.

Examples:
  handoff bench http --quick
  handoff bench http --quick --lab
  handoff bench http --sizes 64k,1m --connections 64 --only 'nginx|serve'
  handoff bench http --json-file before.json
  handoff bench http --quick --lab --only 'serve|caddy' --program /usr/bin/caddy \\
      --peer 'caddy=exec caddy file-server --root {root} --listen {addr}:{port}'

Needs root or a kernel that lets this user make namespaces, and the Debian package wrk; the row of
nginx needs the package nginx. With --lab, what the lab needs: its guest has both.";

/// Bytes of the bodies by default.
const SIZES: [u64; 5] = [1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20];
/// Bytes of the bodies with `--quick`.
const QUICK_SIZES: [u64; 2] = [1 << 10, 256 << 10];
const CONNECTIONS: [u32; 2] = [1, 64];

/// The operation of rows, as `config.op` names it.
const GET: &str = "get";

/// Options of `handoff bench http`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct HttpArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Bytes of the bodies, in powers of 1,024 [default: 1k,16k,64k,1m,16m; with --quick 1k,256k]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_size)]
    pub sizes: Vec<u64>,

    /// Number of connections that send requests at the same time; may be a list [default: 1,64]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_connections)]
    pub connections: Vec<u32>,

    /// Processor to serve on [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,

    /// The peers: other programs to compare with.
    #[command(flatten)]
    pub programs: ProgramOptions,
}

fn parse_connections(text: &str) -> Result<u32, String> {
    let count = parse_count(text)?;
    if count > testbed::MOST_CONNECTIONS {
        return Err(format!("at most {} connections", testbed::MOST_CONNECTIONS));
    }
    Ok(count)
}

/// What a row requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Job {
    size: u64,
    connections: u32,
}

impl HttpArgs {
    fn jobs(&self) -> Vec<Job> {
        let HttpArgs { run, sizes, connections, .. } = self;
        let sizes = match (&sizes[..], run.quick) {
            ([], true) => &QUICK_SIZES[..],
            ([], false) => &SIZES,
            (sizes, _) => sizes,
        };
        let connections = if connections.is_empty() { &CONNECTIONS[..] } else { connections };
        let of_size = |&size| connections.iter().map(move |&connections| Job { size, connections });
        sizes.iter().flat_map(of_size).collect()
    }
}

impl Bench for HttpArgs {
    const NAME: &'static str = report::HTTP;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn arguments(&self) -> Vec<String> {
        let sizes = run::list("sizes", &self.sizes);
        sizes.into_iter().chain(run::list("connections", &self.connections)).collect()
    }

    fn programs(&self) -> Option<&ProgramOptions> {
        Some(&self.programs)
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (300, 7),
            quick: (100, 3),
            counted: (200, 3),
            quick_counted: (30, 2),
            quick_total: None,
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        lab::load_in_guest("getbuf")?;
        wrk::must_be_there().map_err(Failure::NotPossible)?;
        let pinned = Pinned::to(self.cpu).map_err(Failure::Usage)?;
        let jobs = self.jobs();
        let testbed = Testbed::new(&jobs, &pinned)?;
        let subjects = subjects(self, &jobs, &testbed, context.stop.flag());
        // The plan makes each engine anew for each slot, because there are fewer ports than rows.
        let plan = Plan { compare: Compare::Cost, ..self.plan(subjects.len()) };
        let mut measured = self.measure_rows(&subjects, plan, &context.stop)?;
        for row in &mut measured.rows {
            // Only bytes are counted. All answers have the same length, so the number of requests follows.
            let size = row.config.bytes.map(|bytes| bytes as f64);
            row.ops_per_s = row.bytes_per_s.zip(size).map(|(rate, size)| rate / size);
            row.cpu_ns_per_op = row.cpu_ns_per_byte.zip(size).map(|(cost, size)| cost * size);
        }
        let remarks = format!("served on processor {}\n", pinned.cpu());
        Ok((measured, remarks))
    }

    fn subject(&self, _report: &Report) -> String {
        "serve over HTTP".to_owned()
    }

    fn conditions(&self, report: &Report) -> String {
        let target = report.rows.iter().find_map(|row| row.config.target.as_deref());
        format!("asked by wrk over {}; costs are the server's\n", target.unwrap_or("no network"))
    }
}

/// All rows that match `--only`, and their baselines, in the table's order.
fn subjects<'a>(
    args: &'a HttpArgs,
    jobs: &[Job],
    testbed: &'a Testbed,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let mut subjects = Vec::new();
    for &job in jobs {
        let mut add = |engine: &str, make: MakeServer<'a>| {
            subjects.push(subject(job, engine, testbed, make));
        };
        add("nginx", Box::new(move |port| Ok(Box::new(Program::nginx(testbed, port, stop)?))));
        add("serve", Box::new(move |port| Ok(Box::new(Program::serve(testbed, port, stop)?))));
        for (engine, source) in [("file", Source::File), ("bytes", Source::Bytes)] {
            add(engine, Box::new(move |port| Ok(Box::new(Ours::new(testbed, port, source, job)?))));
        }
        for (engine, source) in [("hyper-file", Source::File), ("hyper-bytes", Source::Bytes)] {
            let size = job.size;
            add(
                engine,
                Box::new(move |port| Ok(Box::new(Hyper::new(testbed, port, source, size)?))),
            );
        }
        subjects.extend(args.programs.peer.iter().map(|(name, command)| {
            let make: MakeServer<'a> =
                Box::new(move |port| Ok(Box::new(Program::start(command, testbed, port, stop)?)));
            Subject { peer: true, baseline: false, ..subject(job, name, testbed, make) }
        }));
    }
    args.run.keep_wanted(&mut subjects);
    subjects
}

fn subject<'a>(job: Job, engine: &str, testbed: &'a Testbed, make: MakeServer<'a>) -> Subject<'a> {
    let config = Config {
        bytes: Some(job.size),
        op: Some(GET.to_owned()),
        proto: Some("tcp".to_owned()),
        sockets: Some(job.connections),
        target: Some(testbed.network().joint().name().to_owned()),
        mtu: Some(testbed::MTU),
        gro: Some(testbed.network().load().gro),
        ..Config::default()
    };
    let name = format!("connections={} {engine}", job.connections);
    let subject = Subject::new(name, engine, config, move || Served::new(&make, testbed, job));
    Subject { baseline: engine == "nginx", ..subject }
}

#[cfg(test)]
mod tests;
