//! The profile for containers, in force: what needs no root works with and without io_uring, and little else is
//! allowed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use seccompiler::{BpfMap, BpfProgram, TargetArch};
use serde_json::{Value, json};

use crate::running::{Listening, Running};

const PROFILE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/seccomp/handoff.json"));

/// The profile as a filter, without these calls.
fn filter(without: &str) -> BpfProgram {
    let profile: Value = serde_json::from_str(PROFILE).expect("is JSON");
    let allowed = profile["syscalls"].as_array().expect("a list").iter().flat_map(|rule| {
        assert_eq!(rule["action"], "SCMP_ACT_ALLOW");
        rule["names"].as_array().expect("a list")
    });
    let names = allowed.map(|name| name.as_str().expect("a name"));
    let kept = names.filter(|name| without.is_empty() || !name.starts_with(without));
    let calls: Vec<_> = kept.map(|name| json!({ "syscall": name })).collect();
    let filter = json!({ "main": {
        "mismatch_action": { "errno": profile["defaultErrnoRet"] },
        "match_action": "allow",
        "filter": calls,
    }});
    let target = TargetArch::try_from(std::env::consts::ARCH).expect("is known");
    let compiled: BpfMap =
        seccompiler::compile_from_json(filter.to_string().as_bytes(), target).expect("compiles");
    compiled.into_values().next().expect("one filter")
}

/// `handoff` with these arguments, under the filter.
fn handoff(filter: &BpfProgram, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(arguments);
    let filter = filter.clone();
    // SAFETY: between fork and exec, two system calls.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&filter)
                .map_err(|_| std::io::ErrorKind::PermissionDenied.into())
        })
    };
    command
}

#[test]
fn a_file_is_copied_served_and_relayed_with_io_uring_and_without() {
    let place = tempfile::tempdir().expect("a directory");
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 / 5) as u8).collect();
    let [source, copy] = ["source", "copy"].map(|name| place.path().join(name));
    let [source_name, copy_name] = [&source, &copy].map(|path| path.to_str().expect("text"));
    fs::write(&source, &content).expect("writes");
    for (without, plain) in [("", false), ("io_uring", true)] {
        let filter = filter(without);
        let receive = ["cp", "--json", "-f", "tcp-listen://127.0.0.1:0", copy_name];
        let receiver = Listening::start_as(handoff(&filter, &receive));
        let to = format!("tcp://{}", receiver.address);
        let send = ["cp", "--json", "--verify", source_name, &to];
        let sent = Running::start(&mut handoff(&filter, &send)).end();
        assert_eq!(sent.code, Some(0), "{sent:?}");
        assert_eq!(sent.stderr.contains("plain system calls"), plain, "{sent:?}");
        assert_eq!(receiver.end().code, Some(0));
        assert!(fs::read(&copy).expect("reads") == content);

        let directory = place.path().to_str().expect("text");
        let serve = ["serve", directory, "--listen", "127.0.0.1:0"];
        let server = Listening::start_as(handoff(&filter, &serve));
        let target = format!("tcp://{}", server.address);
        let relay = ["relay", "--connections", "1", "tcp-listen://127.0.0.1:0", &target];
        let relay = Listening::start_as(handoff(&filter, &relay));
        let mut stream = relay.connect();
        let request = b"GET /source HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("sends");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("receives");
        assert!(answer.ends_with(&content), "{} bytes", answer.len());
        drop(stream);
        assert_eq!(relay.end().code, Some(0));
    }
}

#[test]
fn doctor_sees_io_uring_and_what_is_forbidden() {
    let found = Running::start(&mut handoff(&filter(""), &["doctor", "--json"])).end().report();
    let state = |name: &str| {
        let mut all = found.as_array().expect("a list").iter();
        let one = all.find(|it| it["mechanism"] == name);
        one.unwrap_or_else(|| panic!("{found}"))["state"].clone()
    };
    assert_eq!(state("io_uring"), "yes");
    assert_eq!(state("network namespace"), "no", "unshare is not in the profile");
}

/// What `doctor` says in a container that these words start, as state and reason of each mechanism; `None` if this
/// machine cannot.
fn doctor_in(words: &[&str]) -> Option<impl Fn(&str) -> (String, String) + use<>> {
    let started = |arguments: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(arguments).output().ok().filter(|it| it.status.success())
    };
    started(&["true"])?;
    let output = started(&[env!("CARGO_BIN_EXE_handoff"), "doctor", "--json"]).expect("ends well");
    let found: Value = serde_json::from_slice(&output.stdout).expect("is JSON");
    Some(move |name: &str| {
        let mut all = found.as_array().expect("a list").iter();
        let one = all.find(|it| it["mechanism"] == name).expect("is told");
        let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("reason"))
    })
}

#[test]
fn doctor_names_a_user_namespace() {
    let Some(found) = doctor_in(&["unshare", "--user", "--map-root-user"]) else {
        handoff_lab::skip!("this user may make no user namespace");
    };
    let (state, reason) = found("first user namespace");
    assert!(state == "no" && reason.contains("its root is user "), "{reason}");
    assert_eq!(found("all capabilities").0, "yes", "those of the namespace are all there");
    // Memory is counted there as for any user.
    let (_, reason) = found("locked memory");
    assert!(!reason.contains("CAP_IPC_LOCK"), "{reason}");
}

#[test]
fn doctor_names_what_a_container_drops() {
    let sandbox = ["bwrap", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/"];
    let dropped = ["--cap-drop", "ALL", "--cap-add", "CAP_NET_BIND_SERVICE"];
    let Some(found) = doctor_in(&[&sandbox[..], &dropped].concat()) else {
        handoff_lab::skip!("no bubblewrap that works: apt-get install bubblewrap");
    };
    assert_eq!(found("first user namespace").0, "no");
    let (state, reason) = found("all capabilities");
    assert!(state == "no" && reason.contains("CAP_SYS_ADMIN (block devices"), "{reason}");
}
