//! Medians and paired ratios.

/// The middle of a set of figures, and their spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest figure.
    pub min: f64,
    /// The largest figure.
    pub max: f64,
}

impl Spread {
    /// The spread of the figures that are finite numbers; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> =
            figures.into_iter().filter(|figure| figure.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Self { median: (lower + upper) / 2.0, min, max })
    }

    /// The spread of `figures[round] / baseline[round]`, over the rounds that have both; `None` if no round has.
    pub fn of_ratios(figures: &[Option<f64>], baseline: &[Option<f64>]) -> Option<Self> {
        let pairs = figures.iter().zip(baseline);
        Self::of(pairs.filter_map(|(&figure, &base)| {
            let (figure, base) = (figure?, base?);
            (base > 0.0).then(|| figure / base)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of([9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(
            Spread::of([4.0, 1.0, f64::NAN, 2.0, 9.0]),
            Some(Spread { median: 3.0, min: 1.0, max: 9.0 })
        );
    }

    #[test]
    fn ratios_are_paired_by_round_before_the_median_is_taken() {
        // A machine twice as fast in the second round leaves the ratio alone.
        let baseline = [Some(10.0), Some(20.0), None, Some(0.0)];
        let figures = [Some(20.0), Some(40.0), Some(99.0), Some(99.0)];
        assert_eq!(
            Spread::of_ratios(&figures, &baseline),
            Some(Spread { median: 2.0, min: 2.0, max: 2.0 })
        );
        assert_eq!(Spread::of_ratios(&[None], &[Some(1.0)]), None);
    }
}
