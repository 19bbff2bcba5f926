//! The profile for containers, in force: what needs no root works with and without io_uring, and little else is
//! allowed.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use handoff_testbed::running::{Listening, Running};
use seccompiler::{BpfMap, BpfProgram, TargetArch};
use serde_json::{Value, json};

const PROFILE: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/seccomp/handoff.json"));

/// The profile as filters in the order in which they are installed, without these calls.
fn filters(without: &str) -> Vec<BpfProgram> {
    let profile: Value = serde_json::from_str(PROFILE).expect("is JSON");
    let (mut allowed, mut filters) = (Vec::new(), Vec::new());
    for rule in profile["syscalls"].as_array().expect("a list") {
        let names = rule["names"].as_array().expect("a list").iter();
        let names = names.map(|name| name.as_str().expect("a name"));
        let args: Vec<_> = rule["args"].as_array().into_iter().flatten().map(condition).collect();
        let kept = names.filter(|name| without.is_empty() || !name.starts_with(without));
        let calls = kept.map(|name| match args.is_empty() {
            true => json!({ "syscall": name }),
            false => json!({ "syscall": name, "args": args }),
        });
        let calls: Vec<_> = calls.collect();
        allowed.extend(calls.iter().cloned());
        if rule["action"] == "SCMP_ACT_ERRNO" {
            // A filter of its own: of two filters' answers the kernel takes the stricter one.
            filters.push(compiled(&json!({
                "mismatch_action": "allow",
                "match_action": { "errno": rule["errnoRet"] },
                "filter": calls,
            })));
        } else {
            assert_eq!(rule["action"], "SCMP_ACT_ALLOW");
        }
    }
    // Last: it does not allow another one.
    filters.push(compiled(&json!({
        "mismatch_action": { "errno": profile["defaultErrnoRet"] },
        "match_action": "allow",
        "filter": allowed,
    })));
    filters
}

/// A condition of the profile's form in the compiler's.
fn condition(argument: &Value) -> Value {
    let (op, value) = match argument["op"].as_str() {
        Some("SCMP_CMP_EQ") => (json!("eq"), &argument["value"]),
        Some("SCMP_CMP_MASKED_EQ") => {
            (json!({ "masked_eq": argument["value"] }), &argument["valueTwo"])
        }
        op => panic!("{op:?} is not known here"),
    };
    json!({ "index": argument["index"], "type": "dword", "op": op, "val": value })
}

fn compiled(filter: &Value) -> BpfProgram {
    let target = TargetArch::try_from(std::env::consts::ARCH).expect("is known");
    let text = json!({ "main": filter }).to_string();
    let compiled: BpfMap =
        seccompiler::compile_from_json(text.as_bytes(), target).expect("compiles");
    compiled.into_values().next().expect("one filter")
}

/// Installs the filters.
fn confine(filters: &[BpfProgram]) -> io::Result<()> {
    let forbidden = |_| io::ErrorKind::PermissionDenied.into();
    filters.iter().try_for_each(|it| seccompiler::apply_filter(it).map_err(forbidden))
}

/// `handoff` with these arguments, under the filters.
fn handoff(filters: &[BpfProgram], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handoff"));
    command.args(arguments);
    let filters = filters.to_vec();
    // SAFETY: between fork and exec, only system calls.
    unsafe { command.pre_exec(move || confine(&filters)) };
    command
}

/// What a system call answers under the profile: nothing, or the number of an error. A process that it makes ends at
/// once.
fn answer(call: libc::c_long, arguments: [libc::c_long; 3]) -> Option<i32> {
    let filters = filters("");
    let mut command = Command::new("/bin/true");
    let [one, two, three] = arguments;
    // SAFETY: between fork and exec, only system calls; what `call` may make of this process, a new one, ends before
    // it returns from here.
    unsafe {
        command.pre_exec(move || {
            confine(&filters)?;
            match libc::syscall(call, one, two, three, 0, 0) {
                0 if matches!(call, libc::SYS_clone | libc::SYS_clone3) => libc::_exit(0),
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    };
    match command.spawn() {
        Ok(mut child) => {
            child.wait().expect("ends");
            None
        }
        Err(error) => Some(error.raw_os_error().expect("a number")),
    }
}

/// Inside a namespace of its own a process is root, and reaches much of the kernel that is closed to it outside.
#[test]
fn no_process_makes_a_namespace_and_sockets_are_of_few_kinds() {
    let clone = |flags: i32| answer(libc::SYS_clone, [libc::c_long::from(flags), 0, 0]);
    assert_eq!(clone(libc::SIGCHLD), None);
    for flag in [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
    ] {
        assert_eq!(clone(flag | libc::SIGCHLD), Some(libc::EPERM), "{flag:#x}");
        assert_eq!(
            answer(libc::SYS_unshare, [libc::c_long::from(flag), 0, 0]),
            Some(libc::EPERM),
            "{flag:#x}"
        );
    }
    // Whatever it asks for: the C library must not take the answer for its own mistake.
    assert_eq!(answer(libc::SYS_clone3, [0, 0, 0]), Some(libc::ENOSYS));

    let socket = |family: i32, kind: i32| {
        answer(libc::SYS_socket, [libc::c_long::from(family), libc::c_long::from(kind), 0])
    };
    for (family, kind) in [
        (libc::AF_UNIX, libc::SOCK_STREAM),
        (libc::AF_INET, libc::SOCK_STREAM),
        (libc::AF_NETLINK, libc::SOCK_RAW),
    ] {
        assert_eq!(socket(family, kind), None, "{family}");
    }
    for family in [libc::AF_VSOCK, libc::AF_ALG, libc::AF_PACKET, libc::AF_KEY] {
        assert_eq!(socket(family, libc::SOCK_RAW), Some(libc::EPERM), "{family}");
    }
}

#[test]
fn a_file_is_copied_served_and_relayed_with_io_uring_and_without() {
    let place = tempfile::tempdir().expect("a directory");
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at * 7 / 5) as u8).collect();
    let [source, copy] = ["source", "copy"].map(|name| place.path().join(name));
    let [source_name, copy_name] = [&source, &copy].map(|path| path.to_str().expect("text"));
    fs::write(&source, &content).expect("writes");
    for (without, plain) in [("", false), ("io_uring", true)] {
        let filters = filters(without);
        let receive = ["cp", "--json", "-f", "tcp-listen://127.0.0.1:0", copy_name];
        let receiver = Listening::start_as(handoff(&filters, &receive));
        let to = format!("tcp://{}", receiver.address);
        let send = ["cp", "--json", "--verify", source_name, &to];
        let sent = Running::start(&mut handoff(&filters, &send)).end();
        assert_eq!(sent.code, Some(0), "{sent:?}");
        assert_eq!(sent.stderr.contains("plain system calls"), plain, "{sent:?}");
        assert_eq!(receiver.end().code, Some(0));
        assert!(fs::read(&copy).expect("reads") == content);

        let directory = place.path().to_str().expect("text");
        let serve = ["serve", directory, "--listen", "127.0.0.1:0"];
        let server = Listening::start_as(handoff(&filters, &serve));
        let target = format!("tcp://{}", server.address);
        let relay = ["relay", "--connections", "1", "tcp-listen://127.0.0.1:0", &target];
        let relay = Listening::start_as(handoff(&filters, &relay));
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
    let found = Running::start(&mut handoff(&filters(""), &["doctor", "--json"])).end().report();
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
        handoff_testbed::skip!("this user may make no user namespace");
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
        handoff_testbed::skip!("no bubblewrap that works: apt-get install bubblewrap");
    };
    assert_eq!(found("first user namespace").0, "no");
    let (state, reason) = found("all capabilities");
    assert!(state == "no" && reason.contains("CAP_SYS_ADMIN (block devices"), "{reason}");
}
