//! The tables of published figures of each proposal, with ours beside them.

use handoff_bench::statistics::Spread;
use maud::{Markup, html};

use crate::{
    findings::{Environment, Findings},
    seeds::{self, Ours, Seed},
};

/// The cell where there is nothing.
pub(crate) const NONE: &str = "–";

/// The section with the best ratio of each proposal, one a line.
pub(crate) fn glance(findings: &Findings) -> Markup {
    let best = |seed: &Seed, environment| {
        let rows = seed.ours(findings, environment).unwrap_or_default().into_iter().flatten();
        let ratios =
            rows.filter(|ours| !ours.baseline).filter_map(|ours| Some((ours.ratio?, ours.name)));
        ratios.max_by(|(one, _), (other, _)| one.median.total_cmp(&other.median))
    };
    html! {
        section id="glance" {
            h2 { "At a glance" }
            p {
                "The best ratio of each table to its baseline, which does the same work without zero "
                "copy or by the older way, and the row that has it; above 1 is better. The proposals measured on \
                 other machines."
            }
            div.scroll tabindex="0" role="region" aria-label="Best ratios" {
                table {
                    thead {
                        tr {
                            th scope="col" { "what" }
                            th.number scope="col" { "published" }
                            @for environment in Environment::ALL {
                                th.number scope="col" { (marked(environment)) }
                            }
                            th scope="col" { "baseline" }
                        }
                    }
                    tbody {
                        @for seed in seeds::all() {
                            tr {
                                th scope="row" {
                                    a href=(format!("#seed-{}", seed.bench)) { (seed.title) }
                                }
                                td.number { (ratio_or_none(seed.best_published())) }
                                @for environment in Environment::ALL {
                                    @let (ratio, row) = best(&seed, environment).unzip();
                                    td.number {
                                        (spread_or_none(ratio))
                                        @if let Some(row) = row { small { (row) } }
                                    }
                                }
                                td { (seed.baseline) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The section with an article for each proposal.
pub(crate) fn section(findings: &Findings) -> Markup {
    html! {
        section id="seeds" {
            h2 { "Beside the published figures" }
            p {
                "Five proposals of 2018 to 2024, the figures that they published, and rows of ours that "
                "do the same work. Ratios are to the baseline of the same column, above 1 is better; in "
                "brackets, the worst and the best round. Figures of different columns are of "
                "different machines and do not compare."
            }
            @for seed in seeds::all() { (article(&seed, findings)) }
        }
    }
}

fn article(seed: &Seed, findings: &Findings) -> Markup {
    // A proposal without a bench has no columns.
    let columns: Vec<_> = Environment::ALL
        .into_iter()
        .filter_map(|environment| {
            Some((environment, seed.figure(environment)?, seed.ours(findings, environment)))
        })
        .collect();
    let better = if seed.smaller_is_better { "smaller" } else { "larger" };
    html! {
        article id=(format!("seed-{}", seed.bench)) {
            h3 { (seed.title) }
            p.source { "Published: " (seed.source) "." }
            p { "Measured there: " (seed.setting) ". Baseline: " (seed.baseline) "." }
            div.scroll tabindex="0" role="region" aria-label=(seed.title) {
                table {
                    thead {
                        tr {
                            th scope="col" rowspan="2" { "row" }
                            th.group scope="colgroup" colspan="2" { "published" }
                            @for (environment, ..) in &columns {
                                th.group scope="colgroup" colspan="2" { (marked(*environment)) }
                            }
                        }
                        tr {
                            th.number scope="col" { (seed.unit) br; small { (better) " is better" } }
                            th.number scope="col" { "ratio" }
                            @for (_, figure, _) in &columns {
                                th.number scope="col" { (figure.unit) }
                                th.number scope="col" { "ratio" }
                            }
                        }
                    }
                    tbody {
                        @for (at, row) in seed.rows.iter().enumerate() {
                            tr {
                                th scope="row" { (row.name) }
                                td.number { (row.figure.as_deref().unwrap_or(NONE)) }
                                td.number { (ratio_or_none(row.ratio)) }
                                @for (_, _, ours) in &columns {
                                    @let cell = ours.as_ref().and_then(|rows| rows[at].as_ref());
                                    (cells(cell))
                                }
                            }
                        }
                    }
                }
            }
            ul.remarks {
                @for remark in &seed.remarks { li { (remark) } }
                @if columns.is_empty() { li.missing { "No bench answers it." } }
                @for (environment, _, ours) in &columns {
                    @if ours.is_none() {
                        li.missing {
                            (environment.word()) ": not measured. "
                            (findings.problem(&seed.bench, *environment).unwrap_or("It was not run."))
                        }
                    }
                    @for reason in reasons(ours.iter().flatten()) {
                        li.missing { (environment.word()) ", rows without figures: " (reason) }
                    }
                }
            }
        }
    }
}

fn cells(ours: Option<&Ours>) -> Markup {
    html! {
        td.number { (ours.and_then(|ours| ours.figure.as_deref()).unwrap_or(NONE)) }
        td.number { (spread_or_none(ours.and_then(|ours| ours.ratio))) }
    }
}

/// All reasons, each once.
fn reasons<'a>(rows: impl Iterator<Item = &'a Option<Ours>>) -> Vec<&'a str> {
    let mut reasons = Vec::new();
    for reason in rows.flatten().filter_map(|ours| ours.skipped.as_deref()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

/// The name of the environment; emulation is emphasised.
pub(crate) fn marked(environment: Environment) -> Markup {
    html! { span class=(format!("place {}", environment.word())) { (environment.word()) } }
}

fn ratio_or_none(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| NONE.to_owned(), |ratio| format!("{ratio:.2}"))
}

fn spread_or_none(spread: Option<Spread>) -> String {
    spread.map_or_else(|| NONE.to_owned(), show)
}

/// The median, with the range if there is one.
pub(crate) fn show(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    let (least, most) = (format!("{min:.2}"), format!("{max:.2}"));
    if least == most { format!("{median:.2}") } else { format!("{median:.2} ({least}–{most})") }
}
