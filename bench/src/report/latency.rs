//! Times from a request to its answer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Percentiles of the times of a row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of all times are at most this.
    pub p50: f64,
    /// 90 % of all times are at most this.
    pub p90: f64,
    /// 99 % of all times are at most this.
    pub p99: f64,
    /// 99.9 % of all times are at most this.
    pub p999: f64,
    /// The average time that a software NIC's engine takes for one request: it is part of all the percentiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated_dma: Option<f64>,
}

impl Latency {
    /// The percentiles of `times` in microseconds; `None` without times. It sorts the times.
    pub(crate) fn of(times: &mut [Duration]) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let us = |share: f64| {
            let place = (times.len() as f64 * share).ceil() as usize;
            times[place.saturating_sub(1).min(last)].as_secs_f64() * 1e6
        };
        Some(Self {
            p50: us(0.5),
            p90: us(0.9),
            p99: us(0.99),
            p999: us(0.999),
            simulated_dma: None,
        })
    }

    /// The median without the time of a software NIC's engine.
    pub fn without_simulated_dma(&self) -> f64 {
        self.p50 - self.simulated_dma.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_times() {
        assert_eq!(Latency::of(&mut []), None);
        let mut times: Vec<_> = (1..=1000).rev().map(Duration::from_micros).collect();
        let found = Latency::of(&mut times).unwrap();
        for (found, right) in
            [(found.p50, 500.0), (found.p90, 900.0), (found.p99, 990.0), (found.p999, 999.0)]
        {
            assert!((found - right).abs() < 1e-6, "{found} for {right}");
        }
        assert_eq!(Latency::of(&mut [Duration::from_micros(7)]).unwrap().p999, 7.0);
    }
}
