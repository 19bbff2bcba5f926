//! What is available and what is missing, by `handoff doctor`, and its table.

use handoff_probe::Capability;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::findings::{Availability, Findings};

/// One answer, in the form of `handoff doctor --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mechanism {
    /// The mechanism's usual name.
    pub mechanism: String,
    /// `yes`, `no` or `unknown`.
    pub state: String,
    /// Why not, why unknown, or a detail.
    pub reason: Option<String>,
    /// A remedy.
    pub remedy: Option<String>,
    /// The first mainline kernel that has it.
    pub needs_kernel: Option<String>,
}

impl From<&Capability> for Mechanism {
    fn from(capability: &Capability) -> Self {
        Self {
            mechanism: capability.mechanism.clone().into_owned(),
            state: capability.state.as_str().to_owned(),
            reason: capability.reason.clone(),
            remedy: capability.remedy.clone(),
            needs_kernel: capability.needs_kernel.map(str::to_owned),
        }
    }
}

/// The section with the answers of each place.
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
            @for of_place in &findings.availability { (table(of_place)) }
        }
    }
}

fn table(found: &Availability) -> Markup {
    let count = |state: &str| found.mechanisms.iter().filter(|one| one.state == state).count();
    let caption = format!(
        "{}: {} available, {} not, {} unknown",
        found.place.word(),
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
