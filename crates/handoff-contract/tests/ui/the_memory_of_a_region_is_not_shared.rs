#![forbid(unsafe_code)]
use handoff::{Memory, Region};

fn keep(region: &Region) {
    let _ = region.backing().clone();
}

fn through_a_bound<M: Memory>(memory: &M) {
    let _ = memory.backing().clone();
}

fn main() {}
