//! Who may connect, said above the progress line.

use std::net::{IpAddr, SocketAddr};

use handoff_bench::visitors::{Visitors, warning, warning_of_kernel};
use ipnet::IpNet;

use crate::output;

/// Those who may connect.
pub(crate) fn of(from: &[IpNet]) -> Visitors {
    Visitors::new(from, output::say)
}

/// Those that this side talks to. That others were turned away is for the log: they may be peers of an earlier run.
pub(crate) fn only(peers: impl IntoIterator<Item = IpAddr>) -> Visitors {
    Visitors::only(peers, |line| tracing::info!("{line}"))
}

/// Says that anyone may come, where that is so.
pub(crate) fn warn(address: SocketAddr, from: &[IpNet], what: &str) {
    warning(address, from, what).into_iter().for_each(output::say);
}

/// Says that anyone may send by RDS, where that is so.
pub(crate) fn warn_of_rds(by_kernel: bool, address: SocketAddr, from: &[IpNet]) {
    let said = if by_kernel { warning_of_kernel(address) } else { warning(address, from, "send") };
    said.into_iter().for_each(output::say);
}
