//! The figures of a row.

use handoff_command::growth::Growth;
use serde::{Deserialize, Serialize};

use super::{Config, Disagreement, Latency};

/// One row: a way to do the work, with its figures or the reason why there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The row's name, which is unique within the report together with the configuration.
    pub name: String,
    /// The engine's name, the same in every bench.
    pub engine: String,
    /// The row's work.
    pub config: Config,
    /// Whether ratios of the same configuration refer to this row.
    pub baseline: bool,
    /// Whether the row is another program, run beside us.
    pub peer: bool,
    /// The speed against the baseline's, or the baseline's cost against this one where the bench compares
    /// costs: above 1 is better. It is the median over the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The worst round's ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_min: Option<f64>,
    /// The best round's ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_max: Option<f64>,
    /// Payload bytes per second, the median over the rounds, as all figures below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Operations (messages) per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ops_per_s: Option<f64>,
    /// CPU time per payload byte, in nanoseconds, user and system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_byte: Option<f64>,
    /// CPU time per operation, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_op: Option<f64>,
    /// CPU time per operation together with the load's, in nanoseconds, if `cpu_ns_per_op` is a server's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_op_all: Option<f64>,
    /// Thousands of instructions per operation, user and kernel, where instructions are counted; then there
    /// are no times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinsn_per_op: Option<f64>,
    /// Thousands of instructions per operation together with the load's, if `kinsn_per_op` is a server's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinsn_per_op_all: Option<f64>,
    /// The share of one processor's time that the server of a limited load took. Where instructions are
    /// counted, a processor executes 10^9 of them a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// Calls of io_uring_enter(2) per operation, counted in a run of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enters_per_op: Option<f64>,
    /// Lends per operation, by the module's own count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lends_per_op: Option<f64>,
    /// Switches per operation from the server's threads to others, and back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches_per_op: Option<f64>,
    /// Millions of instructions per GiB of payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minsn_per_gib: Option<f64>,
    /// Share of the payload that the CPU copied, 0 to 1 for each hop, as reported by the mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_share: Option<f64>,
    /// Share of the payload that a cipher's pass moved, and nothing else, as reported by the mechanism.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ciphered_share: Option<f64>,
    /// Share of the CPU time, or of instructions where those are counted, that the cipher's functions took. By
    /// samples, in a slot of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher_share: Option<f64>,
    /// The functions that took most, by the same samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionShare>,
    /// Bytes that the kernel's CPU copied for each byte of the payload, at all ends on this machine, as the
    /// copy meter saw it in a run of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_share_witness: Option<f64>,
    /// How `copied_share` and the witness disagree, until the report takes it.
    #[serde(skip)]
    pub disagreement: Option<Disagreement>,
    /// Bytes that a software NIC's engine moved for each byte of the payload, where hardware would use DMA.
    /// They are in no other figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_dma_share: Option<f64>,
    /// The share of the time that the receiving host's processors were not idle, as a sum over all of them: 1
    /// is one processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_share: Option<f64>,
    /// The share of the time that those processors spent in software interrupts, where packets arrive, as a
    /// sum, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirq_share: Option<f64>,
    /// Times from a request to its answer, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Latency>,
    /// The same times in thousands of instructions of everything that ran meanwhile, where instructions are
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_kinsn: Option<Latency>,
    /// CPU time per operation that the measured thread spent outside the kernel, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_ns_per_op: Option<f64>,
    /// Share of the CPU time, or of instructions where those are counted, that the measured thread spent
    /// outside the kernel. By samples, in a slot of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_share: Option<f64>,
    /// System calls per completion that only took completions, or asked for what makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap_calls: Option<f64>,
    /// Nanoseconds per completion spent on taking completions; instructions, where those are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reap_ns: Option<f64>,
    /// When the memory that the NIC puts payload into grew, for the engine of the last slot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<Growth>,
    /// Why the row has no figures; `None` if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// A function, and its share of a row's work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionShare {
    /// Its name; a library's or a program's, if that has no names.
    pub function: String,
    /// Its share, 0 to 1.
    pub share: f64,
}

impl Row {
    /// Converts times to instructions: each instruction takes a nanosecond.
    pub(crate) fn count_instructions(&mut self) {
        const GIB: f64 = 1_073_741_824.0;
        const PER_SECOND: f64 = 1e9;
        self.kinsn_per_op = self.ops_per_s.take().map(|rate| PER_SECOND / rate / 1e3);
        self.minsn_per_gib = self.bytes_per_s.take().map(|rate| PER_SECOND / rate * GIB / 1e6);
        self.kinsn_per_op_all = self.cpu_ns_per_op_all.take().map(|count| count / 1e3);
        // A microsecond is a thousand instructions.
        self.latency_kinsn = self.latency_us.take();
        // The kernel samples this time by the clock, so it says nothing about instructions.
        self.user_ns_per_op = None;
        (self.cpu_ns_per_byte, self.cpu_ns_per_op) = (None, None);
    }
}
