//! Redirects connections for one port of a host to another port of it.
//!
//! For ports that a kernel holds in all namespaces at once, such as RDS's TCP port: a program can then
//! stand for a host without RDS. The device's classifiers change the packets: minimum kernel 4.8, with
//! cls_flower, act_pedit and act_csum, and tc(8).

use std::io;

use super::PairEnd;
use crate::driver::load;
use crate::error::TopologyError;
use crate::error::asked;

const MODULES: [&str; 4] = ["sch_ingress", "cls_flower", "act_pedit", "act_csum"];

/// Makes TCP over IPv4 that comes in at this end for `port` arrive at `other`, and answers leave from
/// `port`.
pub(super) fn apply(end: &PairEnd, port: u16, other: u16) -> Result<(), TopologyError> {
    let device = end.device();
    for module in MODULES {
        load(module, &[])?;
    }
    let filter = |way: &str, from: &str, to: &str| {
        format!(
            "filter add dev {device} {way} protocol ip flower ip_proto tcp {from} \
             action pedit ex munge tcp {to} pipe action csum ip and tcp"
        )
    };
    for line in [
        format!("qdisc add dev {device} clsact"),
        filter("ingress", &format!("dst_port {port}"), &format!("dport set {other}")),
        filter("egress", &format!("src_port {other}"), &format!("sport set {port}")),
    ] {
        let failed = |reason| asked("redirect a port")(io::Error::other(reason));
        end.shell(&format!("tc {line}")).map_err(failed)?;
    }
    Ok(())
}
