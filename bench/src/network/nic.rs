//! Settings of the devices that the bench receives on, and threads of their own for arriving packets.
//!
//! Capability: CAP_NET_ADMIN over the namespace, and CAP_SYS_ADMIN to see its devices in sysfs.

use std::{net::UdpSocket, path::PathBuf};

use handoff_nic::{Directory, Flow, Ip, Plan, Prepared, Wanted};
use handoff_sys::ethtool;
use handoff_testbed::PairEnd;

use crate::tasks;

/// The last queue of a software NIC. Queue 0 takes packets that no rule steers.
pub(crate) const LAST_QUEUE: u16 = 7;

/// Sets the queues after the first aside, steers packets for `port` plus a queue's number to that queue,
/// and makes frames arrive as the sender passed them on if they must be `whole`.
///
/// # Errors
///
/// One line with the error.
pub(crate) fn set_up_queues(end: &PairEnd, port: u16, whole: bool) -> Result<Prepared, String> {
    let queues = 1..=LAST_QUEUE;
    let to_queue = |queue: u16| (Flow::port(Ip::V4, port + queue), usize::from(queue - 1));
    let plan = Plan {
        queues: Wanted::These(queues.clone().map(u32::from).collect()),
        flows: queues.map(to_queue).collect(),
        hardware_gro: whole,
        ..Plan::default()
    };
    let prepare = || Prepared::new(end.device(), &plan, &Directory::default());
    let prepared = end.namespace().run(prepare).map_err(|error| error.to_string())?;
    prepared.map_err(|error| format!("the NIC cannot be set up: {error}"))
}

/// Gives a device NAPI threads of its own, so that their work can be told from others'. Returns the threads'
/// directories in `/proc`.
///
/// # Errors
///
/// The kernel's error, in one line.
pub(crate) fn give_napi_threads(end: &PairEnd) -> Result<Vec<PathBuf>, String> {
    let device = end.device();
    // Devices in other namespaces have the same names.
    let named = || tasks::named(&format!("napi/{device}-"));
    let others = named();
    end.shell(&format!("echo 1 > /sys/class/net/{device}/threaded"))?;
    let mut ours = named();
    ours.retain(|thread| !others.contains(thread));
    if ours.is_empty() {
        return Err(format!("{device} has no NAPI threads after it was given them"));
    }
    Ok(ours)
}

/// Makes the stack cut what is sent into packets of the MTU's size before the device gets it.
///
/// # Errors
///
/// The kernel's error, in one line.
pub(crate) fn send_in_packets(end: &PairEnd) -> Result<(), String> {
    /// `ETHTOOL_STSO` and `ETHTOOL_SGSO` of `linux/ethtool.h`.
    const SWITCHES: [u32; 2] = [0x1f, 0x24];

    let switch = |cmd| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let mut off = ethtool::Value { cmd, data: 0 };
        // SAFETY: both commands read an ethtool_value.
        unsafe { ethtool::ioctl(&socket, end.device(), &mut off) }
    };
    let all = || SWITCHES.into_iter().try_for_each(switch);
    let switched = end.namespace().run(all).map_err(|error| error.to_string())?;
    switched.map_err(|error| {
        format!("the sender's device cannot be told to send single packets: {error}")
    })
}
