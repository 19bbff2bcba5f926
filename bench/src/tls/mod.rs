//! `handoff bench tls` measures ciphered connections: by the kernel's TLS and by rustls in this process, beside socat,
//! nginx and `openssl s_time`.
//!
//! Contracts:
//!
//! 1. All rows speak TLS 1.3 with AES-128-GCM, in records of 16 KiB where they are long enough.
//! 2. A row is one end of a connection, on its own processor; the other end is a thread of ours, which no figure
//!    includes. Costs are those of the end's thread, of the ring's workers for it, and of its NIC's threads.
//! 3. Ratios compare costs for each byte or handshake.
//! 4. Ciphers differ in code, so the table tells what is the cipher's by its functions, and what is spent beside it.

mod far;
mod identity;
mod measured;
mod ours;
mod programs;
mod rows;
mod testbed;

use std::{fmt::Write as _, sync::atomic::AtomicBool};

use clap::Args;
use handoff_command::quantity::{format_size, parse_size};
use handoff_command::{Context, Failure};

use self::{rows::Operation, testbed::Testbed};
use crate::{
    functions, lab,
    measure::{Compare, Measured, Plan, Subject},
    processor::Pinned,
    report::{self, Report, Row},
    run::{self, Bench, RunOptions, Slots},
};

const EXAMPLES: &str = "\
Rows (an operation and who does it):
  send, send-file        from memory that is registered with the ring; from a file's pages
  receive, receive-file  into such memory; from there to a file, past the page cache
  serve                  a file over HTTPS, one connection, one request after another
  ping                   64 bytes there and back
  accept, connect        whole handshakes (ECDSA, P-256), at the server's end and at the client's
by
  kernel-tls, user-tls   this library, with the kernel's cipher and with rustls's
  socat                  OPENSSL and OPENSSL-LISTEN; it sends zeros, and throws away what it receives
  nginx, nginx-ktls      without kernel TLS and with it (Options KTLS)
  s_time                 openssl s_time -new
The ratio is to socat, to nginx (serve: to nginx-ktls), or to s_time, where those are installed; else to
user-tls. It compares costs of the measured end: above 1 is less.

cipher is the share of these costs in the cipher's own functions, by samples, and beside is what the rest
costs for a GiB. All of libcrypto counts as cipher, as it does not name its functions: so the rest of
other programs looks smaller than it is. Below the table are the functions that take most of the rest.

Examples:
  handoff bench tls --quick
  handoff bench tls --quick --lab
  handoff bench tls --lab --sizes 16k,1m --only '^send|^receive'
  handoff bench tls --json-file before.json

Needs root or a kernel that lets this user make namespaces; the Debian packages nginx, socat and openssl
for rows of these. With --lab, what the lab needs: its guest has nginx and openssl.";

/// Bytes of the pieces by default.
const SIZES: [u64; 2] = [64 << 10, 1 << 20];
/// Bytes of the pieces with `--quick`.
const QUICK_SIZES: [u64; 1] = [256 << 10];
/// The functions of a row that are shown.
const SHOWN: usize = 8;

/// Options of `handoff bench tls`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TlsArgs {
    /// Options of every bench.
    #[command(flatten)]
    pub run: RunOptions,

    /// Bytes of a piece, and of a served file, in powers of 1,024 [default: 64k,1m; with --quick 256k]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = parse_piece)]
    pub sizes: Vec<u64>,

    /// Processor of the measured end [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "lab")]
    pub cpu: Option<usize>,
}

fn parse_piece(text: &str) -> Result<u64, String> {
    let size = parse_size(text)?;
    match size.is_multiple_of(4_096) && testbed::LENGTH.is_multiple_of(size) {
        true => Ok(size),
        false => Err(format!("a piece is 4k, 8k and so on, to {}", format_size(testbed::LENGTH))),
    }
}

impl TlsArgs {
    fn sizes(&self) -> &[u64] {
        match (&self.sizes[..], self.run.quick) {
            ([], true) => &QUICK_SIZES,
            ([], false) => &SIZES,
            (sizes, _) => sizes,
        }
    }
}

impl Bench for TlsArgs {
    const NAME: &'static str = report::TLS;

    fn options(&self) -> &RunOptions {
        &self.run
    }

    fn arguments(&self) -> Vec<String> {
        run::list("sizes", &self.sizes).into_iter().collect()
    }

    fn slots(&self) -> Slots {
        Slots {
            whole: (400, 7),
            quick: (100, 3),
            counted: (100, 3),
            quick_counted: (20, 2),
            quick_total: None,
        }
    }

    fn measure(&self, context: &Context) -> Result<(Measured, String), Failure> {
        // Elsewhere udev loads what the processor has for ciphers; without it, the kernel would cipher by single blocks.
        lab::load_in_guest("aesni_intel")?;
        lab::load_in_guest("tls")?;
        let pinned = Pinned::to(self.cpu).map_err(Failure::Usage)?;
        let testbed = Testbed::new(self.sizes(), &pinned)?;
        let stop: &AtomicBool = context.stop.flag();
        let subjects: Vec<Subject<'_>> = rows::subjects(self, self.sizes(), &testbed, stop);
        let plan = Plan { compare: Compare::Cost, ..self.plan(subjects.len()) };
        let mut measured = self.measure_rows(&subjects, plan, &context.stop)?;
        functions::attest(&subjects, &mut measured.rows, stop);
        for row in &mut measured.rows {
            if !Operation::is_bulk(row.config.op.as_deref()) {
                // What was counted are no bytes.
                (row.bytes_per_s, row.cpu_ns_per_byte) = (None, None);
                (row.copied_share, row.ciphered_share) = (None, None);
            }
        }
        let busy = measured.busy("the processor", "figures spread wide");
        Ok((measured, format!("measured on processor {}\n{busy}", pinned.cpu())))
    }

    fn subject(&self, _report: &Report) -> String {
        "TLS 1.3 with AES-128-GCM".to_owned()
    }

    fn conditions(&self, report: &Report) -> String {
        let target = report.rows.iter().find_map(|row| row.config.target.as_deref());
        format!("over {}; costs are the measured end's\n", target.unwrap_or("no network"))
    }

    /// What the rows do beside the cipher.
    fn verdict(&self, report: &Report) -> String {
        let mut text = String::new();
        for row in report.rows.iter().filter(|row| !row.functions.is_empty()) {
            let _ = write!(text, "\n{}", beside(row));
        }
        text
    }
}

/// A line with the functions that take most of a row's work beside the cipher.
fn beside(row: &Row) -> String {
    let size = row.config.bytes.map(|bytes| format!(" {}", format_size(bytes)));
    let mut text = format!("{}{}", row.name, size.unwrap_or_default());
    if let Some(share) = row.cipher_share {
        let _ = write!(text, ": cipher {:.1} %", share * 100.0);
    }
    let others = row.functions.iter().filter(|it| !functions::ciphers(&it.function));
    for function in others.take(SHOWN) {
        let _ = write!(text, ", {} {:.1} %", function.function, function.share * 100.0);
    }
    text
}

#[cfg(test)]
mod tests;
