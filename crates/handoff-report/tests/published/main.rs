//! Our rows beside published figures are rows of the benches.

mod native;
