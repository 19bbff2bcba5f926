//! The JSON form of an answer.

use serde::{Deserialize, Serialize};

use crate::answer::Capability;

/// One answer as `handoff doctor --json` and reports have it.
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
