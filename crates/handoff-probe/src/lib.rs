//! What this kernel, these limits, this user and each network interface can do.
//!
//! Contracts:
//! - an answer is `yes`, `no` with a reason, or `unknown` with the error that kept us from knowing; it
//!   comes from trying the behaviour or from the kernel's query interface, never from comparing versions
//!   ([`Capability::needs_kernel`] is only for the reader);
//! - a probe puts back what it sets up: sockets, rings and mappings are closed, test devices live
//!   in a network namespace of a thread that ends;
//! - a probe does not disturb the machine: it causes no traffic but on loopback, restarts no rx queue,
//!   and loads neither the RDS module, which many systems block for safety, nor `dummy` and `ifb`, which make
//!   devices when they are loaded;
//! - no probe needs privileges to run; if the user may not do something, that is an answer.
//!
//! [`all`] takes well under a second. Minimum kernel: none.

mod answer;
mod block;
mod btf;
mod confinement;
mod devices;
#[cfg(all(doc, not(doctest)))]
pub mod guide;
mod interface;
mod kernel_module;
mod lab;
mod mechanism;
mod memory;
mod netlink;
mod rds;
mod receive;
mod ring;
mod send;
mod splice;
mod tls;
mod tracing;
mod zcrx;

pub use answer::{Capability, State, System};
use answer::{Finding, named};
pub use interface::{interface, interfaces};
pub use mechanism::Mechanism;
pub use memory::{lock_limit, locked_already};
pub use splice::why_no_get_buf;
pub use tls::kernel_tls;

struct Probe {
    system: System,
    mechanism: &'static str,
    needs_kernel: Option<&'static str>,
    ask: fn() -> Finding,
}

impl Probe {
    fn run(&self) -> Capability {
        let answer = (self.ask)().unwrap_or_else(|answer| answer);
        ::tracing::debug!(mechanism = self.mechanism, state = %answer.state, "probed");
        named(self.system, self.mechanism.into(), self.needs_kernel, answer)
    }
}

const fn probe(
    system: System,
    mechanism: &'static str,
    needs_kernel: Option<&'static str>,
    ask: fn() -> Finding,
) -> Probe {
    Probe { system, mechanism, needs_kernel, ask }
}

#[rustfmt::skip]
const PROBES: &[Probe] = &[
    probe(System::Ring, "io_uring", Some("5.6"), ring::set_up),
    probe(System::Ring, "deferred task running", Some("6.1"), ring::deferred),
    probe(System::Ring, "registered buffers", Some("5.1"), ring::registered_buffers),
    probe(System::Confinement, "first user namespace", None, confinement::user_namespace),
    probe(System::Confinement, "all capabilities", None, confinement::capabilities),
    probe(System::Confinement, "all system calls", None, confinement::filter),
    probe(System::Memory, "locked memory", None, memory::locked),
    probe(System::Memory, "huge pages", None, memory::huge_pages),
    probe(System::Send, "SEND_ZC", Some("6.0"), send::send_zc),
    probe(System::Send, "SENDMSG_ZC", Some("6.1"), send::sendmsg_zc),
    probe(System::Send, "SEND_ZC registered", Some("6.0"), send::send_zc_registered),
    probe(System::Send, "SENDMSG_ZC registered", Some("6.15"), send::sendmsg_zc_registered),
    probe(System::Send, "SEND_ZC usage report", Some("6.2"), send::usage_report),
    probe(System::Send, "MSG_ZEROCOPY TCP", Some("4.14"), send::msg_zerocopy_tcp),
    probe(System::Send, "MSG_ZEROCOPY UDP", Some("5.0"), send::msg_zerocopy_udp),
    probe(System::Receive, "provided buffer ring", Some("5.19"), receive::provided_buffers),
    probe(System::Receive, "multishot receive", Some("6.0"), receive::multishot),
    probe(System::Receive, "receive bundle", Some("6.10"), receive::bundle),
    probe(System::Receive, "TCP_ZEROCOPY_RECEIVE", Some("4.18"), receive::tcp_zerocopy_receive),
    probe(System::Receive, "zcrx", Some("6.15"), zcrx::zcrx),
    probe(System::Receive, "zcrx without device", Some("7.2"), zcrx::without_device),
    probe(System::Receive, "zcrx into a dma-buf", Some("6.16"), zcrx::into_dma_buf),
    probe(System::Receive, "zcrx shared by rings", Some("7.2"), zcrx::shared),
    probe(System::Receive, "zcrx areas that grow", Some("7.3"), zcrx::growing),
    probe(System::Receive, "zcrx queue leases", Some("7.1"), devices::queue_leases),
    probe(System::Tls, "kernel TLS", Some("5.1"), tls::in_kernel),
    probe(System::Tls, "kernel TLS key update", Some("6.14"), tls::key_update),
    probe(System::File, "sendfile", Some("2.6.33"), splice::sendfile),
    probe(System::File, "splice on the ring", Some("5.7"), splice::on_ring),
    probe(System::File, "get-buf", Some("7.2"), splice::get_buf),
    probe(System::Rds, "PF_RDS", Some("2.6.30"), rds::sockets),
    probe(System::Rds, "RDS over TCP", Some("2.6.32"), rds::over_tcp),
    probe(System::Rds, "RDS zero copy", Some("4.17"), rds::zero_copy),
    probe(System::Block, "ublk", Some("6.0"), block::driver),
    probe(System::Block, "ublk user copy", Some("6.5"), block::user_copy),
    probe(System::Block, "ublk zero copy", Some("6.15"), block::zero_copy),
    probe(System::Block, "ublk auto buffer registration", Some("6.16"), block::auto_registration),
    probe(System::Block, "ublk batch", Some("7.0"), block::batch),
    probe(System::Block, "BPF I/O loop", Some("7.1"), tracing::io_loop),
    probe(System::Meter, "copy meter", Some("5.5"), tracing::copy_meter),
    probe(System::Bench, "network namespace", None, devices::namespace),
    probe(System::Bench, "veth device", None, devices::veth),
    probe(System::Bench, "dummy device", None, devices::dummy),
    probe(System::Bench, "ifb device", None, devices::ifb),
    probe(System::Lab, "QEMU", None, lab::qemu),
    probe(System::Lab, "mmdebstrap", None, lab::mmdebstrap),
    probe(System::Lab, "KVM", None, lab::kvm),
];

/// In one line, why the kernel refused a ring, and what would help.
pub fn why_no_ring(error: &std::io::Error) -> String {
    ring::refused(error).in_one_line()
}

/// Probes every mechanism, network interfaces last.
pub fn all() -> Vec<Capability> {
    let mut found = general();
    for name in interfaces() {
        found.extend(interface(&name));
    }
    found
}

/// Probes every mechanism that does not depend on one network interface.
pub fn general() -> Vec<Capability> {
    PROBES.iter().map(Probe::run).collect()
}

/// Probes the mechanisms of one part only, except those of a network interface.
pub fn system(system: System) -> Vec<Capability> {
    PROBES.iter().filter(|probe| probe.system == system).map(Probe::run).collect()
}
