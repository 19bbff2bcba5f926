//! The five proposals behind the benches, with their published figures (`seeds.json`), and our rows
//! beside them.

use handoff_bench::{
    report::{Report, Row},
    statistics::Spread,
};
use serde::Deserialize;

use crate::findings::{Environment, Findings};

const PUBLISHED: &str = include_str!("seeds.json");
/// The end of the name of the row that ratios refer to.
const BASELINE: &str = "(baseline)";

/// One proposal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Seed {
    /// The bench that answers the proposal.
    pub(crate) bench: String,
    pub(crate) title: String,
    /// Who published it: what, where and when.
    pub(crate) source: String,
    /// The machine of the published figures.
    pub(crate) setting: String,
    /// The unit of the published figures.
    pub(crate) unit: String,
    pub(crate) smaller_is_better: bool,
    /// What ratios refer to.
    pub(crate) baseline: String,
    /// The payload of our rows in bytes, if a bench has the same rows for several payloads.
    bytes: Option<u64>,
    /// Our figures in time and in instructions that are shown beside the published one.
    native: Option<Figure>,
    emulated: Option<Figure>,
    pub(crate) rows: Vec<Published>,
    /// What limits the comparison.
    pub(crate) remarks: Vec<String>,
}

/// Where a row of a report has a figure, and how to show it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    /// A JSON pointer to the row's field.
    field: String,
    scale: f64,
    digits: usize,
    pub(crate) unit: String,
}

/// One published row, or a row of ours without a counterpart.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) name: String,
    /// The figure as published.
    pub(crate) figure: Option<String>,
    /// The ratio: above 1 is better. It is calculated if only figures were published.
    pub(crate) ratio: Option<f64>,
    /// The name of our row that does the same work; `None` if we have none.
    ours: Option<String>,
    /// The name of the row that our row's ratio refers to, if that is not the bench's own baseline, or if the
    /// bench has no ratio: then the ratio is calculated from figures.
    against: Option<String>,
    /// The published curve that the row is a point of, and its place there.
    pub(crate) series: Option<String>,
    pub(crate) x: Option<u64>,
}

/// Our row beside a published one.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ours {
    pub(crate) name: String,
    /// Whether ratios refer to this row.
    pub(crate) baseline: bool,
    pub(crate) figure: Option<String>,
    pub(crate) ratio: Option<Spread>,
    /// Why the row has neither figure nor ratio.
    pub(crate) skipped: Option<String>,
}

/// All proposals.
pub(crate) fn all() -> Vec<Seed> {
    serde_json::from_str(PUBLISHED).expect("a test reads the file that is built in")
}

impl Figure {
    fn of(&self, row: &Row) -> Option<f64> {
        let row = serde_json::to_value(row).ok()?;
        Some(row.pointer(&self.field)?.as_f64()? * self.scale)
    }

    fn show(&self, figure: f64) -> String {
        format!("{figure:.*}", self.digits)
    }
}

impl Seed {
    /// How our figure of one environment is shown; `None` if the environment has none.
    pub(crate) fn figure(&self, environment: Environment) -> Option<&Figure> {
        match environment {
            Environment::Native => self.native.as_ref(),
            Environment::Emulated => self.emulated.as_ref(),
        }
    }

    /// The best ratio of the published rows.
    pub(crate) fn best_published(&self) -> Option<f64> {
        self.rows.iter().filter_map(|row| row.ratio).max_by(f64::total_cmp)
    }

    /// Our rows of one environment, in the order of the published ones; `None` if no report has any. All are from one
    /// report: figures of different runs do not compare.
    pub(crate) fn ours(
        &self,
        findings: &Findings,
        environment: Environment,
    ) -> Option<Vec<Option<Ours>>> {
        let matched = |report: &Report| {
            self.rows.iter().filter(|published| self.find(report, published).is_some()).count()
        };
        let best =
            findings.reports(&self.bench, environment).max_by_key(|report| matched(report))?;
        let beside = |published: &Published| {
            self.find(best, published).map(|row| self.beside(row, published, best, environment))
        };
        (matched(best) > 0).then(|| self.rows.iter().map(beside).collect())
    }

    fn find<'a>(&self, report: &'a Report, published: &Published) -> Option<&'a Row> {
        self.named(report, published.ours.as_ref()?)
    }

    fn named<'a>(&self, report: &'a Report, name: &str) -> Option<&'a Row> {
        report.rows.iter().find(|row| {
            row.name == name && self.bytes.is_none_or(|bytes| row.config.bytes == Some(bytes))
        })
    }

    fn beside(
        &self,
        row: &Row,
        published: &Published,
        report: &Report,
        environment: Environment,
    ) -> Ours {
        let figure = self.figure(environment);
        let of = |row: &Row| figure.and_then(|figure| figure.of(row));
        let against = published.against.as_ref().and_then(|name| self.named(report, name));
        let of_bench = row.ratio.filter(|_| against.is_none_or(|against| against.baseline));
        let of_figures = || {
            let (ours, theirs) = (of(row)?, of(against?)?);
            let ratio = if self.smaller_is_better { theirs / ours } else { ours / theirs };
            ratio.is_finite().then_some(Spread { median: ratio, min: ratio, max: ratio })
        };
        let spread = |median| Spread {
            median,
            min: row.ratio_min.unwrap_or(median),
            max: row.ratio_max.unwrap_or(median),
        };
        Ours {
            name: row.name.clone(),
            baseline: published.name.ends_with(BASELINE),
            figure: of(row).zip(figure).map(|(value, figure)| figure.show(value)),
            ratio: of_bench.map(spread).or_else(of_figures),
            skipped: row.skipped.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_are_read() {
        let seeds = all();
        let benches: Vec<&str> = seeds.iter().map(|seed| seed.bench.as_str()).collect();
        assert_eq!(benches, ["send", "rds", "recv", "splice", "block"]);
        for seed in &seeds {
            assert!(seed.rows.iter().any(|row| row.figure.is_some()), "{}", seed.title);
            assert!(
                !seed.remarks.is_empty() && seed.best_published() > Some(1.0),
                "{}",
                seed.title
            );
            for row in &seed.rows {
                assert!(row.figure.is_some() || row.ours.is_some(), "{}", row.name);
                assert_eq!(row.series.is_some(), row.x.is_some(), "{}", row.name);
            }
        }
    }

    #[test]
    fn published_ratios_are_those_of_the_published_figures() {
        let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
        for seed in all() {
            let mut baseline = None;
            for row in &seed.rows {
                let figure = row.figure.as_deref().and_then(number);
                if row.name.ends_with(BASELINE) && row.figure.is_some() {
                    assert_eq!(row.ratio, Some(1.0), "{}", row.name);
                    baseline = figure;
                }
                let (Some(figure), Some(baseline), Some(ratio)) = (figure, baseline, row.ratio)
                else {
                    continue;
                };
                let found = match seed.smaller_is_better {
                    true => baseline / figure,
                    false => figure / baseline,
                };
                // The first row of `send` comes before its baseline.
                assert!((found / ratio - 1.0).abs() < 0.02, "{}: {found}", row.name);
            }
        }
    }
}
