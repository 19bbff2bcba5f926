//! Every row of every run, and what could not be run.

use handoff_bench::{
    report::Report,
    table::{self, Sheet},
};
use handoff_probe::Mechanism;
use maud::{Markup, html};

use crate::{
    findings::{Environment, Findings, Run},
    gather,
    seed_table::marked,
};

/// The section with the tables, as `handoff bench` prints them.
pub(crate) fn section(findings: &Findings) -> Markup {
    html! {
        section id="rows" {
            h2 { "All rows" }
            p {
                "As " code { "handoff bench" } " prints them. A ratio is to the baseline of the same work, "
                "the median of rounds in which both took turns; above 1 is better. Min-max are the worst and "
                "the best round."
            }
            @for run in &findings.runs {
                @if let Some(report) = &run.report { (of_run(run, report)) }
            }
        }
    }
}

fn of_run(run: &Run, report: &Report) -> Markup {
    let Sheet { titles, rows, footnotes } = table::sheet(report);
    html! {
        article {
            h3 { (report.bench) " " (marked(run.environment)) }
            p.source { code { (run.origin) } ", " (report.date) ", handoff " (report.version) }
            p.conditions {
                @if report.conditions.is_empty() { (report.machine) }
                @for line in &report.conditions { (line) br; }
            }
            div.scroll tabindex="0" role="region" aria-label=(run.origin) {
                table {
                    thead {
                        tr {
                            @for (at, title) in titles.iter().enumerate() {
                                th.number[at > 0] scope="col" { (title) }
                            }
                        }
                    }
                    tbody {
                        @for (cells, row) in rows.iter().zip(&report.rows) {
                            tr.baseline[row.baseline] {
                                @for (at, cell) in cells.iter().enumerate() {
                                    @if at == 0 { th scope="row" { (cell) } }
                                    @else { td.number { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
            @for footnote in &footnotes { p.missing { (footnote) } }
            @if let Some(problem) = &run.problem { p.missing { (problem) } }
        }
    }
}

/// The mechanism that the run's bench cannot do without and the run's environment lacks; `None` if it lacks none.
fn lacking<'a>(findings: &'a Findings, run: &Run) -> Option<&'a Mechanism> {
    let mechanism = gather::mechanism(&run.bench)?;
    let of_environment =
        findings.availability.iter().filter(|found| found.environment == run.environment);
    let mut mechanisms = of_environment.flat_map(|found| &found.mechanisms);
    mechanisms.find(|one| one.mechanism == mechanism && one.state != "yes")
}

/// The section with the runs without a table, and the reasons.
pub(crate) fn missing(findings: &Findings) -> Markup {
    let missing: Vec<&Run> = findings.runs.iter().filter(|run| run.report.is_none()).collect();
    let guest = findings.runs.iter().any(|run| run.environment == Environment::Emulated);
    html! {
        section id="missing" {
            h2 { "What could not be run" }
            @if missing.is_empty() { p { "Every bench ran." } }
            ul {
                @for run in &missing {
                    li {
                        code { (run.origin) } " " (marked(run.environment)) ": "
                        (run.problem.as_deref().unwrap_or("it printed no report"))
                        @if let Some(lacking) = lacking(findings, run) {
                            div.remedy {
                                code { "handoff doctor" } " on " (lacking.mechanism) ": "
                                (lacking.reason.as_deref().unwrap_or(&lacking.state))
                                @if let Some(remedy) = &lacking.remedy { " → " (remedy) }
                            }
                        }
                    }
                }
            }
            p {
                "Rows that could not run stand with their tables, with the reason."
                @if !guest {
                    " What this kernel lacks runs in the lab: " code { "handoff report --lab" } "."
                }
            }
        }
    }
}
