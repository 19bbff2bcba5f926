//! The probe on the machine that runs the tests: as it is, and with features taken away.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::thread;

use handoff_probe::{self as probe, Capability, State, System};
use handoff_testbed::Namespace;
use rustix::fs::Uid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

fn by_name(found: Vec<Capability>) -> BTreeMap<String, Capability> {
    found.into_iter().map(|one| (one.mechanism.to_string(), one)).collect()
}

/// Runs the probe on a thread that was changed first: filters and users belong to a thread, and end with
/// it.
fn probe_after(change: impl FnOnce() + Send + 'static) -> BTreeMap<String, Capability> {
    let probing = move || {
        change();
        by_name(probe::all())
    };
    thread::spawn(probing).join().expect("the probe does not panic")
}

#[test]
fn every_answer_is_complete() {
    let found = probe::all();
    let names: HashSet<_> = found.iter().map(|one| one.mechanism.clone()).collect();
    assert_eq!(names.len(), found.len(), "a mechanism is listed twice");
    for one in &found {
        match one.state {
            State::Yes => {}
            State::No => assert!(one.reason.is_some() && one.remedy.is_some(), "{one:?}"),
            State::Unknown => assert!(one.reason.is_some(), "{one:?}"),
        }
        for text in [&one.reason, &one.remedy].into_iter().flatten() {
            assert!(!text.contains('\n') && !text.is_empty(), "{one:?}");
        }
    }
    assert!(probe::interfaces().contains(&"lo".to_owned()));
    assert!(probe::interface("no-such-device").is_empty());
}

#[test]
fn the_probe_leaves_nothing_behind() {
    let look = || {
        let mut links = probe::interfaces();
        links.sort();
        links
    };
    let before = look();
    let first = by_name(probe::general());
    let second = by_name(probe::general());
    assert_eq!(look(), before);
    for (name, one) in &first {
        assert_eq!(one.state, second[name].state, "changed: {one:?} to {:?}", second[name]);
    }
}

/// The kernel's symbol table knows which code is in it, whatever the probe believes.
#[test]
fn answers_agree_with_the_symbol_table() {
    let found = by_name(probe::all());
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let symbols: HashSet<_> =
        symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    if !symbols.contains("schedule") {
        println!("HANDOFF-SKIP answers_agree_with_the_symbol_table: no readable /proc/kallsyms");
        return;
    }
    for (mechanism, symbol) in [
        // Some kernels compile the request itself into another function.
        ("SEND_ZC", "io_send_zc_prep"),
        ("SENDMSG_ZC", "io_sendmsg_zc"),
        ("splice on the ring", "io_splice"),
        ("PF_RDS", "rds_create"),
        ("ublk", "ublk_ctrl_uring_cmd"),
        ("dummy device", "dummy_setup"),
        ("ifb device", "ifb_setup"),
        ("veth device", "veth_setup"),
    ] {
        let one = &found[mechanism];
        if symbols.contains(symbol) {
            // Present, but this user may not have it: then the reason says so.
            let granted = one.state == State::Yes || needs_privilege(one);
            assert!(granted, "{symbol} is in the kernel, yet: {one:?}");
        } else {
            let reason = one.reason.as_deref().unwrap_or_default();
            let promised = one.state == State::Yes && !reason.contains("loaded when it is needed");
            assert!(!promised, "{symbol} is not in the kernel, yet: {one:?}");
        }
    }
}

fn needs_privilege(one: &Capability) -> bool {
    let remedy = one.remedy.as_deref().unwrap_or_default();
    ["run as root", "seccomp", "io_uring_disabled", "ulimit"].iter().any(|way| remedy.contains(way))
}

fn refuse_io_uring(errno: i32) {
    let rules = [libc::SYS_io_uring_setup].map(|call| (call, vec![])).into();
    let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
    let filter: BpfProgram = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        architecture,
    )
    .expect("a valid filter")
    .try_into()
    .expect("compiles");
    seccompiler::apply_filter(&filter).expect("everybody may filter himself");
}

#[test]
fn a_seccomp_filter_is_named() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let found = probe_after(move || refuse_io_uring(errno));
        for mechanism in ["io_uring", "SEND_ZC", "multishot receive"] {
            let one = &found[mechanism];
            assert_eq!(one.state, State::No, "{one:?}");
            assert!(one.reason.as_deref().expect("a reason").contains("seccomp"), "{one:?}");
            assert!(one.remedy.as_deref().expect("a remedy").contains("seccomp"), "{one:?}");
        }
        assert_no(&found["all system calls"], "a seccomp filter", "a container with");
        // Mechanisms without a ring are not affected.
        assert_ne!(found["MSG_ZEROCOPY TCP"].state, State::No);
    }
}

#[test]
fn an_unprivileged_user_gets_answers() {
    let nobody = Uid::from_raw(65534);
    if !rustix::process::geteuid().is_root() {
        println!("HANDOFF-SKIP an_unprivileged_user_gets_answers: only root can become nobody");
        return;
    }
    let found = probe_after(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may change user");
    });
    for mechanism in ["network namespace", "veth device", "copy meter"] {
        let one = &found[mechanism];
        assert_eq!(one.state, State::No, "{one:?}");
        assert!(one.remedy.as_deref().expect("a remedy").contains("root"), "{one:?}");
    }
    assert!(!found["locked memory"].reason.as_deref().expect("a detail").contains("CAP_IPC_LOCK"));
}

/// The answer about lending sends on an interface of a namespace.
fn zero_copy_send(namespace: &Namespace, device: &str) -> Capability {
    let found = namespace.run(|| by_name(probe::interface(device))).expect("enters");
    found[&format!("{device}: zero-copy send")].clone()
}

#[track_caller]
fn assert_no(one: &Capability, reason: &str, remedy: &str) {
    assert_eq!(one.state, State::No, "{one:?}");
    assert!(one.reason.as_deref().expect("a reason").starts_with(reason), "{one:?}");
    assert!(one.remedy.as_deref().expect("a remedy").starts_with(remedy), "{one:?}");
}

mod native {
    use std::net::UdpSocket;

    use handoff_sys::ethtool;
    use handoff_testbed::Discard;

    use super::*;

    #[test]
    fn what_can_be_switched_on_is_proposed_until_it_is_on() {
        let sink = handoff_testbed::topology_or_skip!(Discard::new());
        let (namespace, device) = (sink.namespace(), sink.device());
        let switch = |cmd: u32, data: u32| {
            let mut value = ethtool::Value { cmd, data };
            let socket = namespace.run(|| UdpSocket::bind("0.0.0.0:0")).expect("enters");
            // SAFETY: both commands read an ethtool_value.
            unsafe { ethtool::ioctl(socket.expect("binds"), device, &mut value) }
                .expect("switches");
        };
        for (command, option) in [(ethtool::SSG, "sg"), (ethtool::STXCSUM, "tx")] {
            assert_eq!(zero_copy_send(namespace, device).state, State::Yes);
            switch(command, 0);
            let remedy = format!("ethtool -K {device} {option} on");
            assert_no(&zero_copy_send(namespace, device), "", &remedy);
            switch(command, 1);
        }
        assert_eq!(zero_copy_send(namespace, device).state, State::Yes);
    }
}

mod guest {
    use std::process::Command;

    use super::*;

    /// Runs a shell script in a namespace; returns its message if it fails.
    fn shell(namespace: &Namespace, script: &str) -> Result<(), String> {
        let mut shell = Command::new("sh");
        let output = namespace.attach(shell.args(["-euc", script])).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    }

    /// Loading the drivers makes devices in the machine's own namespace.
    #[test]
    fn drivers_of_test_devices_leave_no_devices() {
        // They are modules of the stock kernels, and may be loaded.
        let _ = Command::new("rmmod").args(["dummy", "ifb"]).output().expect("it starts");
        let before = probe::interfaces();
        let found = by_name(probe::general());
        assert_eq!(probe::interfaces(), before);
        for name in ["dummy device", "ifb device"] {
            assert_eq!(found[name].state, State::Yes, "{:?}", found[name]);
        }
        handoff_testbed::Discard::new().expect("as it said");
        assert_eq!(probe::interfaces(), before);
    }

    #[test]
    fn a_question_about_rds_loads_no_module() {
        let is_loaded = || fs::exists("/sys/module/rds_tcp").expect("there is /sys");
        handoff_testbed::load("rds", &[]).expect("the lab's kernel has it");
        assert!(!is_loaded(), "no test of this guest loads it");
        let found = by_name(probe::system(System::Rds));
        assert!(!is_loaded());
        let over_tcp = &found["RDS over TCP"];
        assert_eq!(over_tcp.state, State::Unknown, "{over_tcp:?}");
    }

    #[test]
    fn a_device_without_the_offload_is_not_told_to_switch_it_on() {
        let namespace = Namespace::new().expect("a namespace");
        // One has no scatter-gather, the other no checksums.
        let made = "ip link add fixed type vti remote 10.0.0.1 local 10.0.0.2 key 1
                    ip link add unsummed type nlmon";
        if let Err(reason) = shell(&namespace, made) {
            handoff_testbed::skip!("this kernel has no such devices: {reason}");
        }
        let no_switch = "another network card";
        let fixed = zero_copy_send(&namespace, "fixed");
        assert_no(&fixed, "the driver has no scatter-gather", no_switch);
        let unsummed = zero_copy_send(&namespace, "unsummed");
        assert_no(&unsummed, "the driver has no transmit checksum offload", no_switch);
        for switch in ["ethtool -K fixed sg on", "ethtool -K unsummed tx on"] {
            shell(&namespace, switch)
                .expect_err("it can't be switched, whatever the probe believes");
        }
    }

    #[test]
    fn a_device_that_waits_for_the_one_below_is_served_by_the_remedy_of_that_one() {
        let namespace = Namespace::new().expect("a namespace");
        let made = "ip link add below type ifb
                    ip link add link below name above type vlan id 3
                    ethtool -K below sg off";
        if let Err(reason) = shell(&namespace, made) {
            handoff_testbed::skip!("this kernel has no such devices: {reason}");
        }
        let waits = || zero_copy_send(&namespace, "above");
        let asked_for = ("scatter-gather is asked for", "the remedy of the device below");
        assert_no(&waits(), asked_for.0, asked_for.1);
        shell(&namespace, "ethtool -K above sg on").expect_err("it is not its own to give");
        assert_no(&waits(), asked_for.0, asked_for.1);
        let below = zero_copy_send(&namespace, "below");
        shell(&namespace, below.remedy.as_deref().expect("a remedy")).expect("is carried out");
        assert_eq!(zero_copy_send(&namespace, "below").state, State::Yes);
        assert_eq!(waits().state, State::Yes);
    }
}
