//! What runs in the sandbox leaves nothing on this machine, whatever ends it.

mod native {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, geteuid, kill_process_group};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A name that nothing else on this machine has.
    fn mark(test: &str) -> String {
        format!("handoff-track-{}-{test}", std::process::id())
    }

    /// Begins a command that leaves files, a mount and a process, and waits until it has.
    fn begin(place: &Path, mark: &str) -> Child {
        let script = format!(
            "touch /var/tmp/{mark} /run/{mark} /dev/shm/{mark}; mount -t tmpfs {mark} /mnt
             setsid bash -c 'exec -a {mark} sleep 1000' < /dev/null > /dev/null 2>&1 &
             echo up; wait"
        );
        let mut sandbox = Command::new(env!("CARGO_BIN_EXE_xtask"));
        // Not every sh has exec -a.
        sandbox.args(["sandbox", "--", "bash", "-c", &script]);
        sandbox.current_dir(place).process_group(0).stdout(Stdio::piped());
        let mut child = sandbox.spawn().expect("it starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it is open");
        assert_eq!(line, "up\n");
        child
    }

    fn is_left(mark: &str) -> Option<String> {
        for directory in ["/var/tmp", "/run", "/dev/shm"] {
            let path = Path::new(directory).join(mark);
            if path.exists() {
                return Some(path.display().to_string());
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts").expect("there is /proc");
        if mounts.contains(mark) {
            return Some("a mount".to_owned());
        }
        let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
        let words = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let running = words.filter(|words| words.starts_with(mark.as_bytes())).count();
        (running > 0).then(|| format!("{running} processes"))
    }

    fn ended_by(signal: Signal, all: bool) {
        if !geteuid().is_root() {
            return println!("HANDOFF-SKIP ended_by: namespaces need root");
        }
        let mark = mark(&format!("{signal:?}"));
        let place = tempfile::tempdir().expect("a directory");
        let mut child = begin(place.path(), &mark);
        let pid = Pid::from_child(&child);
        if all {
            kill_process_group(pid, signal).expect("it runs");
        } else {
            child.kill().expect("it runs");
        }
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{status:?} {:?}", status.signal());
        let deadline = Instant::now() + PATIENCE;
        while let Some(track) = is_left(&mark) {
            assert!(Instant::now() < deadline, "{track} of {mark}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_kill_leaves_nothing() {
        ended_by(Signal::KILL, false);
    }

    #[test]
    fn ctrl_c_leaves_nothing() {
        ended_by(Signal::INT, true);
    }

    #[test]
    fn what_is_left_inside_is_told() {
        if !geteuid().is_root() {
            return println!("HANDOFF-SKIP what_is_left_inside_is_told: namespaces need root");
        }
        let place = tempfile::tempdir().expect("a directory");
        let script =
            "touch /run/left /dev/shm/other; setsid sleep 1000 < /dev/null > /dev/null 2>&1 &
                      until grep -q sleep /proc/$!/comm; do :; done; exit 7";
        let mut sandbox = Command::new(env!("CARGO_BIN_EXE_xtask"));
        sandbox.args(["sandbox", "--", "sh", "-c", script]).current_dir(place.path());
        let output = sandbox.output().expect("it starts");
        assert_eq!(output.status.code(), Some(7));
        let text = String::from_utf8_lossy(&output.stdout);
        for track in ["/run/left", "/dev/shm/other", "sleep 1000"] {
            let told = |line: &str| line.starts_with("left behind: ") && line.ends_with(track);
            assert!(text.lines().any(told), "no {track}: {text}");
        }
        assert_eq!(text.lines().count(), 3, "{text}");
    }
}
