//! Settings of the devices that the bench receives on: by ethtool(8) of the software NIC
//! (`kmod/wire`), by the ioctl of veth.
//!
//! Capability: CAP_NET_ADMIN over the namespace, and CAP_SYS_ADMIN to see its devices in sysfs.

use std::{io, os::fd::AsRawFd as _, path::PathBuf, process::Command};

use handoff_lab::topology::PairEnd;

use crate::tasks;

/// Of a software NIC. Queue 0 takes what no rule names.
pub(super) const LAST_QUEUE: u16 = 7;

/// Splits headers from payload, has what is sent to `port` and a queue's number arrive at that queue,
/// and frames as the sender passed them on if they are to be `whole`.
///
/// # Errors
///
/// What ethtool says, in one line.
pub(super) fn set_up_queues(end: &PairEnd, port: u16, whole: bool) -> Result<(), String> {
    let device = end.device();
    let whole = if whole { "on" } else { "off" };
    let mut script = format!(
        "ethtool -L {device} combined {}; ethtool -G {device} tcp-data-split on; \
         ethtool -K {device} rx-gro-hw {whole}; ethtool -X {device} equal 1; ",
        LAST_QUEUE + 1,
    );
    for queue in 1..=LAST_QUEUE {
        let port = port + queue;
        script += &format!("ethtool -N {device} flow-type tcp4 dst-port {port} action {queue}; ");
    }
    run(end, &script).map(drop)
}

/// Gives NAPI threads of its own, so that its work is told from that of others; with their
/// directories in `/proc`.
///
/// # Errors
///
/// What the kernel says, in one line.
pub(super) fn give_napi_threads(end: &PairEnd) -> Result<Vec<PathBuf>, String> {
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

/// Bytes that the engine of the software NIC has moved to this end.
///
/// # Errors
///
/// What ethtool says, in one line.
pub(super) fn simulated_dma(end: &PairEnd) -> Result<u64, String> {
    let device = end.device();
    let counters = run(end, &format!("ethtool -S {device}"))?;
    let count = counters.lines().find_map(|line| line.trim().strip_prefix("dma_bytes: "));
    count
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| format!("ethtool -S {device} tells nothing of dma_bytes"))
}

/// Runs a script of the shell in the namespace of this end, and in mounts of its own.
fn run(end: &PairEnd, script: &str) -> Result<String, String> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", script]);
    let output = end.namespace().attach(&mut command).output();
    let output = output.map_err(|error| format!("unshare(1) cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(format!("the NIC cannot be set up: {said}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Has the stack cut what is sent into packets of the MTU's size before the device gets it.
///
/// # Errors
///
/// What the kernel says, in one line.
pub(super) fn send_in_packets(end: &PairEnd) -> Result<(), String> {
    /// `ETHTOOL_STSO` and `ETHTOOL_SGSO` of `linux/ethtool.h`.
    const SWITCHES: [u32; 2] = [0x1f, 0x24];

    let switch = |command| -> io::Result<()> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        // `struct ethtool_value`: what to switch, and to what.
        let mut value: [u32; 2] = [command, 0];
        // SAFETY: all-zero bytes are a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(end.device().bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        // SAFETY: the request and what it points to outlive the call.
        match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let all = || SWITCHES.into_iter().try_for_each(switch);
    let switched = end.namespace().run(all).map_err(|error| error.to_string())?;
    switched.map_err(|error| {
        format!("the sender's device cannot be told to send single packets: {error}")
    })
}
