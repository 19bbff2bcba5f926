//! The result of a run of `handoff rds stress`.

use std::time::Duration;

use handoff::Tally;
use serde::Serialize;

/// Buckets of a factor of two.
const STEPS: u32 = 16;

/// Times, to within a sixteenth.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    counts: Vec<u64>,
    all: u64,
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos().clamp(u128::from(STEPS), u128::from(u64::MAX)) as u64;
        let octave = nanos.ilog2() - STEPS.ilog2();
        let step = (nanos >> octave) as u32 - STEPS;
        let bucket = (octave * STEPS + step) as usize;
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.all += 1;
    }

    /// This share of all times is at most so many microseconds.
    fn below(&self, share: f64) -> Option<f64> {
        let wanted = (self.all as f64 * share).ceil().max(1.0) as u64;
        let mut count = 0;
        let bucket = self.counts.iter().position(|here| {
            count += here;
            count >= wanted
        })? as u32;
        let upper = (u64::from(STEPS + bucket % STEPS) + 1) << (bucket / STEPS);
        Some(upper as f64 / 1000.0)
    }

    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let at = |share| self.below(share);
        Some(Percentiles { p50: at(0.5)?, p90: at(0.9)?, p99: at(0.99)?, p999: at(0.999)? })
    }
}

/// Microseconds from a request to its answer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
}

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: &'static str,
    /// Why the kernel's engine does not serve, if the choice was open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) passed_over: Option<String>,
    pub(super) seconds: f64,
    /// Requests answered; for the answering side, answers sent.
    pub(super) messages: u64,
    pub(super) messages_per_s: f64,
    /// Payload of requests.
    pub(super) bytes: u64,
    pub(super) bytes_per_s: f64,
    /// What did not arrive as it was sent.
    pub(super) corrupt: u64,
    /// Requests sent again because their peer was restarted or had fallen silent.
    pub(super) asked_again: u64,
    /// Those of them that were never answered.
    pub(super) lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<Percentiles>,
    /// Bytes that came back, by what happened to them.
    #[serde(serialize_with = "handoff_command::output::tally")]
    pub(super) sent: Tally,
}

impl Report {
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{}: {} messages in {:.1} s, {:.0} a second, {:.1} MB/s, {} corrupt\n",
            self.engine,
            self.messages,
            self.seconds,
            self.messages_per_s,
            self.bytes_per_s / 1e6,
            self.corrupt
        );
        if self.asked_again > 0 {
            let (again, lost) = (self.asked_again, self.lost);
            text += &format!("{again} requests were asked again, {lost} of them were lost\n");
        }
        if let Some(it) = self.latency_us {
            text += &format!(
                "answers after (us): p50 {:.0}, p90 {:.0}, p99 {:.0}, p99.9 {:.0}\n",
                it.p50, it.p90, it.p99, it.p999
            );
        }
        let Tally { zero_copy, copied, unknown, .. } = self.sent;
        text += &format!(
            "bytes sent: {zero_copy} without a copy, {copied} copied, {unknown} unknown\n"
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_within_a_sixteenth() {
        let mut times = Times::default();
        assert!(times.percentiles().is_none());
        (1..=1000).for_each(|micros| times.add(Duration::from_micros(micros)));
        let found = times.percentiles().expect("has some");
        for (found, right) in
            [(found.p50, 500.0), (found.p90, 900.0), (found.p99, 990.0), (found.p999, 999.0)]
        {
            assert!((right..right * 1.07).contains(&found), "{found} for {right}");
        }
    }
}
