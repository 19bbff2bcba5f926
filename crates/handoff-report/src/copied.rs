//! What was copied: by the mechanism's own report, and by the copy meter.

use std::collections::BTreeMap;

use handoff_bench::{disagreement, report::Row, statistics::Spread};
use maud::{Markup, html};

use crate::{
    findings::{Environment, Findings, Run},
    seed_table::{NONE, marked},
};

/// A bar of full width stands for this many copied bytes for each byte of payload.
const HOPS: f64 = 2.0;
const WIDTH: f64 = 120.0;
const HEIGHT: f64 = 14.0;

/// The sums over the rows of one engine.
#[derive(Default)]
struct Shares {
    reported: Vec<f64>,
    seen: Vec<f64>,
    rows: usize,
}

/// The section with the engines of all benches, by environment.
pub(crate) fn section(findings: &Findings) -> Markup {
    html! {
        section id="copied" {
            h2 { "Copied shares" }
            p {
                "Of the payload, what the CPU copied from buffer to buffer, once for each hop: as the "
                "mechanism reports it, and as the copy meter saw it, where it counted: in the lab, and with "
                code { "--meter" } ". A dash means that nobody reports it; it does not mean zero. The range is that of the engine's "
                "rows. Smaller is better: the full bar is what the mechanism reports, the outlined one "
                "what the meter saw, the line in the middle the whole payload once."
            }
            @for environment in Environment::ALL { (of_environment(findings, environment)) }
            @for run in &findings.runs { (agreement(run)) }
        }
    }
}

/// Says where the report and the copy meter disagree, or that they agree.
fn agreement(run: &Run) -> Markup {
    let disagreements = run.report.as_ref().map(disagreement::lines).unwrap_or_default();
    html! {
        @if let Some((first, rows)) = disagreements.split_first() {
            p { code { (run.origin) } " " (marked(run.environment)) ": " (first) @if rows.is_empty() { "." } }
            @if !rows.is_empty() { ul { @for row in rows { li { (row) } } } }
        }
    }
}

fn of_environment(findings: &Findings, environment: Environment) -> Markup {
    let mut engines: BTreeMap<(&str, &str), Shares> = BTreeMap::new();
    for report in findings
        .runs
        .iter()
        .filter(|run| run.environment == environment)
        .filter_map(|run| run.report.as_ref())
    {
        for row in report.rows.iter().filter(|row| row.skipped.is_none()) {
            engines.entry((&report.bench, &row.engine)).or_default().add(row);
        }
    }
    if engines.is_empty() {
        return html! { p.missing { (environment.word()) ": nothing was measured." } };
    }
    html! {
        div.scroll tabindex="0" role="region" aria-label=(format!("Copied shares, {}", environment.word())) {
            table {
                caption { (marked(environment)) }
                thead {
                    tr {
                        th scope="col" { "bench" }
                        th scope="col" { "engine" }
                        th.number scope="col" { "rows" }
                        th.number scope="col" { "reported" }
                        th.number scope="col" { "copy meter" }
                        th scope="col" { "0 to 200 % of the payload" }
                    }
                }
                tbody {
                    @for ((bench, engine), shares) in &engines {
                        tr {
                            th scope="row" { (bench) }
                            th scope="row" { (engine) }
                            td.number { (shares.rows) }
                            td.number { (percents(&shares.reported)) }
                            td.number { (percents(&shares.seen)) }
                            td { (shares.bars()) }
                        }
                    }
                }
            }
        }
    }
}

fn percents(shares: &[f64]) -> String {
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let Some(Spread { min, max, .. }) = Spread::of(shares.iter().copied()) else {
        return NONE.to_owned();
    };
    let (min, max) = (percent(min), percent(max));
    if min == max { format!("{min} %") } else { format!("{min}–{max} %") }
}

impl Shares {
    fn add(&mut self, row: &Row) {
        self.rows += 1;
        self.reported.extend(row.copied_share);
        self.seen.extend(row.copied_share_witness);
    }

    fn bars(&self) -> Markup {
        let most = |shares: &[f64]| shares.iter().copied().max_by(f64::total_cmp);
        let width = |share: f64| format!("{:.1}", (share / HOPS).min(1.0) * WIDTH);
        let (reported, seen) = (most(&self.reported), most(&self.seen));
        let label =
            format!("reported {}, copy meter {}", percents(&self.reported), percents(&self.seen));
        html! {
            svg.share viewBox=(format!("-1 0 {} {HEIGHT}", WIDTH + 2.0)) role="img" aria-label=(label) {
                rect.whole x="0" y="0.5" width=(WIDTH) height=(HEIGHT - 1.0) {}
                @if let Some(share) = reported {
                    rect.reported x="0" y="2.5" width=(width(share)) height="4.5" {}
                }
                @if let Some(share) = seen {
                    rect.seen x="0" y="7.5" width=(width(share)) height="4" {}
                }
                line.once x1=(WIDTH / HOPS) x2=(WIDTH / HOPS) y1="0" y2=(HEIGHT) {}
            }
        }
    }
}
