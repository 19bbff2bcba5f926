//! The probe without locked memory. The limit belongs to the process, hence a program of its own.

use handoff_probe::{self as probe, Capability, State};
use rustix::fs::Uid;
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn a_limit_of_zero_is_named() {
    let before = probe::general();
    if find(&before, "registered buffers").state != State::Yes {
        println!(
            "HANDOFF-SKIP a_limit_of_zero_is_named: without the limit, {:?}",
            find(&before, "registered buffers")
        );
        return;
    }
    if rustix::process::geteuid().is_root() {
        let nobody = Uid::from_raw(65534);
        // Also drops CAP_IPC_LOCK, which lifts the limit.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may change user");
    }
    setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) })
        .expect("everybody may lower a limit");
    let found = probe::general();
    for name in ["locked memory", "registered buffers", "SEND_ZC registered"] {
        let one = find(&found, name);
        assert_eq!(one.state, State::No, "{one:?}");
        assert!(one.reason.as_deref().expect("a reason").contains("RLIMIT_MEMLOCK"), "{one:?}");
        assert!(one.remedy.as_deref().expect("a remedy").contains("ulimit -l"), "{one:?}");
    }
}

fn find<'a>(found: &'a [Capability], name: &str) -> &'a Capability {
    found.iter().find(|one| one.mechanism == name).unwrap_or_else(|| panic!("no {name}"))
}
