//! The rows of ours that stand beside published figures are rows of the benches.

mod native;
