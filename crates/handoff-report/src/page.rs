//! The page as a whole.

use std::collections::{BTreeMap, BTreeSet};

use handoff_bench::machine::Machine;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{
    availability, copied, curve,
    findings::{Environment, Findings},
    rows,
    seed_table::{self, marked},
};

const STYLE: &str = include_str!("style.css");
/// The page loads nothing, whatever it contains; its style and its icon are part of it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
/// The icon in the browser's tab.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E\
                    %3Cpath d='M0 3h5V1l3 3-3 3V5H0z' fill='%23777'/%3E%3C/svg%3E";
/// How the JSON in a page begins.
pub(crate) const EMBEDDED: &str = r#"<script type="application/json" id="findings">"#;

const PARTS: [(&str, &str); 7] = [
    ("glance", "At a glance"),
    ("seeds", "Published figures"),
    ("curves", "Curves"),
    ("copied", "Copied shares"),
    ("rows", "All rows"),
    ("missing", "Not run"),
    ("available", "Available"),
];

/// Draws the page of the findings, and embeds them as `json`.
pub fn page(findings: &Findings, json: &str) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Handoff on " (kernels(findings)) }
                link rel="icon" href=(PreEscaped(ICON));
                style { (PreEscaped(STYLE)) }
            }
            body {
                (header(findings))
                main {
                    (seed_table::glance(findings))
                    (reading())
                    (seed_table::section(findings))
                    (curve::section(findings))
                    (copied::section(findings))
                    (rows::section(findings))
                    (rows::missing(findings))
                    (availability::section(findings))
                }
                footer { "The data of this page is in it, as JSON: " code { "handoff report --from" }
                    " draws it again." }
                (PreEscaped(EMBEDDED))
                (PreEscaped(inert(json)))
                (PreEscaped("</script>"))
            }
        }
    };
    markup.into_string()
}

/// JSON that cannot end its element: these characters occur only in strings, and are escaped there.
fn inert(json: &str) -> String {
    json.replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026")
}

/// Each machine once, with the environment and the days of its runs.
fn machines(findings: &Findings) -> BTreeMap<(Environment, String), Vec<&str>> {
    let mut machines: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for run in &findings.runs {
        let Some(report) = &run.report else { continue };
        let day = report.date.split('T').next().unwrap_or_default();
        let days = machines.entry((run.environment, report.machine.to_string())).or_default();
        if !days.contains(&day) {
            days.push(day);
        }
    }
    machines
}

fn kernels(findings: &Findings) -> String {
    let reports = findings.runs.iter().filter_map(|run| run.report.as_ref());
    let mut kernels: BTreeSet<&str> =
        reports.map(|report| report.machine.kernel.as_str()).collect();
    let here = Machine::this().kernel;
    if kernels.is_empty() {
        kernels.insert(&here);
    }
    let names: Vec<String> = kernels.into_iter().map(|kernel| format!("Linux {kernel}")).collect();
    names.join(", ")
}

fn header(findings: &Findings) -> Markup {
    html! {
        header {
            h1 { "Handoff report" }
            p { "Zero-copy I/O, as measured by the benches of handoff " (findings.version) "; " (findings.date) "." }
            ul.machines {
                @for ((environment, machine), days) in machines(findings) {
                    li { (marked(environment)) " " (machine) " – " (days.join(", ")) }
                }
            }
            nav aria-label="Parts of this page" {
                @for (id, title) in PARTS { a href=(format!("#{id}")) { (title) } " " }
            }
        }
    }
}

fn reading() -> Markup {
    html! {
        section id="reading" {
            h2 { "How to read it" }
            ul {
                li {
                    "All rows of a table take turns in short slots of one run. A " em { "ratio" } " is the "
                    "median, over the rounds, of a row's speed to its baseline's in the same round: above 1 is "
                    "better. Figures of different runs and machines do not compare."
                }
                li {
                    (marked(Environment::Native)) " figures are of time on this machine. "
                    (marked(Environment::Emulated)) " ones are from the lab's guest, whose processor is emulated "
                    "in software: they count instructions, not time, and say nothing about caches or memory; "
                    "they never stand in one plot with native ones."
                }
                li {
                    em { "Copied" } " means bytes that a CPU moved from buffer to buffer. A dash is unknown or "
                    "not measured, never zero."
                }
            }
        }
    }
}
