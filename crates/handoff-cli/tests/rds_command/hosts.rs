//! Two hosts, and strangers to their talk.

use std::net::Ipv4Addr;
use std::process::Command;

use handoff_rds::wire::MAX_LANES;
use handoff_testbed::{Pair, PairEnd};

use crate::strangers::CROWD;

/// Strangers come from so many addresses.
const ADDRESSES: usize = CROWD / MAX_LANES as usize;

pub(crate) fn ip(end: &PairEnd, arguments: &[&str]) {
    let mut command = Command::new("ip");
    end.namespace().attach(command.args(arguments));
    assert!(command.status().expect("starts").success(), "{arguments:?}");
}

/// An address so much larger than that of this end.
fn address(end: &PairEnd, more: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(end.v4()) + more as u32)
}

/// The address of this number that strangers at this end have.
pub(crate) fn stranger_at(end: &PairEnd, number: usize) -> Ipv4Addr {
    address(end, 10 + number)
}

/// Two hosts: strangers are at the left end's further addresses, and at the right end is the address that is
/// larger than theirs, to which they connect; of two addresses the smaller one does.
pub(crate) fn hosts() -> (Pair, Ipv4Addr) {
    let pair = Pair::new(9_000).expect("namespaces and veth");
    for number in 0..ADDRESSES {
        let own = format!("{}/24", stranger_at(&pair.left, number));
        ip(&pair.left, &["addr", "add", &own, "dev", pair.left.device()]);
    }
    let visited = address(&pair.right, 100);
    ip(&pair.right, &["addr", "add", &format!("{visited}/24"), "dev", pair.right.device()]);
    (pair, visited)
}
