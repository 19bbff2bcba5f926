//! Settings of the devices that the bench receives on, and threads of their own for what arrives.
//!
//! Capability: CAP_NET_ADMIN over the namespace, and CAP_SYS_ADMIN to see its devices in sysfs.

use std::{net::UdpSocket, path::PathBuf, process::Command};

use handoff_lab::topology::PairEnd;
use handoff_nic::{Directory, Flow, Ip, Plan, Prepared, Wanted};
use handoff_sys::ethtool;

use crate::tasks;

/// Of a software NIC. Queue 0 takes what no rule names.
pub(crate) const LAST_QUEUE: u16 = 7;

/// Sets the queues behind the first aside, has what is sent to `port` and a queue's number arrive at
/// that queue, and frames as the sender passed them on if they are to be `whole`.
///
/// # Errors
///
/// What stands in the way, in one line.
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

/// Gives NAPI threads of its own, so that its work is told from that of others; with their
/// directories in `/proc`.
///
/// # Errors
///
/// What the kernel says, in one line.
pub(crate) fn give_napi_threads(end: &PairEnd) -> Result<Vec<PathBuf>, String> {
    let device = end.device();
    // Namespaces have devices of the same names.
    let named = || tasks::named(&format!("napi/{device}-"));
    let others = named();
    let script = format!("mount -t sysfs sysfs /sys; echo 1 > /sys/class/net/{device}/threaded");
    run(end, &script)?;
    let mut ours = named();
    ours.retain(|thread| !others.contains(thread));
    if ours.is_empty() {
        return Err(format!("{device} has no NAPI threads after it was given them"));
    }
    Ok(ours)
}

/// Runs a script of the shell in the namespace of this end, and in mounts of its own.
fn run(end: &PairEnd, script: &str) -> Result<String, String> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script]);
    let output = end.namespace().attach(&mut command).output();
    let output = output.map_err(|error| format!("unshare(1) cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(format!("{script}: {said}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has the stack cut what is sent into packets of the MTU's size before the device gets it.
///
/// # Errors
///
/// What the kernel says, in one line.
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
