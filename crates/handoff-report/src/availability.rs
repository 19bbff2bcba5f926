//! What is available and what is missing, by `handoff doctor`, and its table.

use maud::{Markup, html};

use crate::findings::{Availability, Findings};

/// The section with the answers of each environment.
pub(crate) fn section(findings: &Findings) -> Markup {
    html! {
        section id="available" {
            h2 { "What is available" }
            p {
                "As " code { "handoff doctor" } " says it: each mechanism is tried, or asked of the "
                "kernel; the version is where mainline has it first, and nothing is decided by it."
            }
            @if findings.availability.is_empty() {
                p.missing { "The results that this page is drawn from say nothing of it." }
            }
            @for of_environment in &findings.availability { (table(of_environment)) }
        }
    }
}

fn table(found: &Availability) -> Markup {
    let count = |state: &str| found.mechanisms.iter().filter(|one| one.state == state).count();
    let caption = format!(
        "{}: {} available, {} not, {} unknown",
        found.environment.word(),
        count("yes"),
        count("no"),
        count("unknown"),
    );
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table.text {
                caption { (caption) }
                thead {
                    tr {
                        th scope="col" { "mechanism" }
                        th scope="col" { "state" }
                        th scope="col" { "since" }
                        th scope="col" { "reason, and what would help" }
                    }
                }
                tbody {
                    @for one in &found.mechanisms {
                        tr {
                            th scope="row" { (one.mechanism) }
                            td { span class=(format!("state {}", one.state)) { (one.state) } }
                            td { (one.needs_kernel.as_deref().unwrap_or("–")) }
                            td {
                                (one.reason.as_deref().unwrap_or_default())
                                @if let Some(remedy) = &one.remedy { div.remedy { "→ " (remedy) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
