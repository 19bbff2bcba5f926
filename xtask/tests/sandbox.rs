//! What runs in the sandbox leaves nothing on this machine, whatever ends it.

mod native {
    use std::collections::BTreeSet;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use rustix::thread::{CapabilitySet, capabilities};

    const TIMEOUT: Duration = Duration::from_secs(30);
    const LOOK: Duration = Duration::from_millis(5);

    macro_rules! need_namespaces {
        () => {
            let may = capabilities(None).expect("can be asked").effective;
            if !may.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN) {
                handoff_testbed::skip!("namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN");
            }
        };
    }

    macro_rules! need_loop_devices {
        () => {
            let free = Command::new("losetup").arg("--find").output().expect("it starts");
            let free = String::from_utf8_lossy(&free.stdout);
            if !Path::new(free.trim()).exists() {
                handoff_testbed::skip!("no free loop device: '{}'", free.trim());
            }
        };
    }

    /// A name that nothing else on this machine has, short enough for a network device.
    fn mark(of: char) -> String {
        format!("ht-{}-{of}", std::process::id())
    }

    /// Leaves files, a mount, a namespace with a name and a process, and what `also` leaves. Then the file `up` is
    /// there, and it goes on.
    fn leaving(mark: &str, also: &str, up: &Path) -> String {
        let up = up.display();
        // Not every sh has exec -a.
        format!(
            "#!/bin/bash
             set -e
             touch /var/tmp/{mark} /run/{mark} /dev/shm/{mark}
             mount -t tmpfs {mark} /mnt
             ip netns add {mark}
             setsid bash -c 'exec -a {mark} sleep 1000' < /dev/null > /dev/null 2>&1 &
             {also}
             : > {up}
             wait"
        )
    }

    /// Leaves a pair of network devices.
    fn pair(mark: &str) -> String {
        format!("ip link add {mark} type veth")
    }

    fn is_left(mark: &str) -> Option<String> {
        for directory in ["/var/tmp", "/run", "/dev/shm", "/run/netns"] {
            let path = Path::new(directory).join(mark);
            if path.exists() {
                return Some(path.display().to_string());
            }
        }
        for (tracks, what) in [("/proc/self/mounts", "a mount"), ("/proc/net/dev", "a device")] {
            if fs::read_to_string(tracks).expect("there is /proc").contains(mark) {
                return Some(what.to_owned());
            }
        }
        for device in fs::read_dir("/sys/class/block").expect("there is /sys").flatten() {
            let file = fs::read_to_string(device.path().join("loop/backing_file"));
            if file.is_ok_and(|file| file.contains(mark)) {
                return Some(device.path().display().to_string());
            }
        }
        let processes = fs::read_dir("/proc").expect("there is /proc").flatten();
        let words = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let running = words.filter(|words| words.starts_with(mark.as_bytes())).count();
        (running > 0).then(|| format!("{running} processes"))
    }

    /// Starts the command, ends it, or all of its group, by the signal once the file `up` is there, and waits until
    /// nothing with this mark is left.
    fn leaves_nothing(command: &mut Command, mark: &str, up: &Path, signal: Signal, all: bool) {
        let mut child = command.process_group(0).spawn().expect("it starts");
        while !up.exists() {
            assert_eq!(child.try_wait().expect("it is ours"), None, "ended before {mark} was up");
            thread::sleep(LOOK);
        }
        let pid = Pid::from_child(&child);
        let send = if all { kill_process_group } else { kill_process };
        send(pid, signal).expect("it runs");
        let status = child.wait().expect("it ends");
        assert!(!status.success(), "{status:?}");
        let deadline = Instant::now() + TIMEOUT;
        while let Some(track) = is_left(mark) {
            assert!(Instant::now() < deadline, "{track} of {mark}");
            thread::sleep(LOOK);
        }
    }

    fn sandbox(place: &Path, script: &str) -> Command {
        let mut sandbox = Command::new(env!("CARGO_BIN_EXE_xtask"));
        sandbox.args(["sandbox", "--", "bash", "-c", script]).current_dir(place);
        sandbox
    }

    fn sandbox_leaves_nothing(mark: &str, also: &str, signal: Signal, all: bool) {
        let place = tempfile::tempdir().expect("a directory");
        let up = place.path().join("up");
        let script = leaving(mark, also, &up);
        leaves_nothing(&mut sandbox(place.path(), &script), mark, &up, signal, all);
    }

    #[test]
    fn a_kill_leaves_nothing() {
        need_namespaces!();
        let mark = mark('k');
        sandbox_leaves_nothing(&mark, &pair(&mark), Signal::KILL, false);
    }

    #[test]
    fn ctrl_c_leaves_nothing() {
        need_namespaces!();
        let mark = mark('c');
        sandbox_leaves_nothing(&mark, &pair(&mark), Signal::INT, true);
    }

    /// A loop device belongs to no namespace. mount(8) makes it end with its last user.
    #[test]
    fn a_kill_leaves_no_mounted_loop_device() {
        need_namespaces!();
        need_loop_devices!();
        let mark = mark('l');
        let file = format!("/var/tmp/{mark}.ext4");
        let mount =
            format!("mke2fs -q {file} 1M; mkdir /run/there; mount -o loop {file} /run/there");
        sandbox_leaves_nothing(&mark, &mount, Signal::KILL, false);
    }

    /// The exit code of a command in the sandbox, and the tracks that it is told to have left.
    fn told(script: &str) -> (Option<i32>, Vec<String>) {
        let place = tempfile::tempdir().expect("a directory");
        let output = sandbox(place.path(), script).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = |line: &str| line.strip_prefix("left behind: ").map(str::to_owned);
        (output.status.code(), text.lines().map(|text| line(text).expect("a track")).collect())
    }

    #[test]
    fn what_is_left_inside_is_told() {
        need_namespaces!();
        let (code, tracks) = told(
            "touch /run/left /dev/shm/other; mkdir /run/place; mount -t tmpfs none /run/place
             ip netns add name; ip link add one type veth peer two
             setsid sleep 1000 < /dev/null > /dev/null 2>&1 &
             until grep -q sleep /proc/$!/comm; do :; done; exit 7",
        );
        assert_eq!(code, Some(7));
        // Others may make such devices meanwhile.
        let is_ours = |track: &&String| !track.starts_with("loop ") && !track.starts_with("block ");
        let ours = tracks.iter().filter(is_ours).map(|track| match track.split_once(" at ") {
            Some((mount, place)) if mount.starts_with("mount ") => format!("mount at {place}"),
            _ => track.clone(),
        });
        let (processes, others): (Vec<_>, Vec<_>) =
            ours.partition(|track| track.starts_with("process "));
        assert!(
            matches!(&processes[..], [process] if process.ends_with(", sleep 1000")),
            "{tracks:?}"
        );
        let expected = [
            "/dev/shm/other",
            "/run/left",
            "/run/netns",
            "/run/place",
            "mount at /run/netns",
            "mount at /run/netns/name",
            "mount at /run/place",
            "network device one",
            "network device two",
        ];
        let others: BTreeSet<_> = others.iter().map(String::as_str).collect();
        assert_eq!(others, BTreeSet::from(expected));
    }

    /// It ends with its last user, so that none is left however this ends.
    #[test]
    fn an_attached_loop_device_is_told() {
        need_namespaces!();
        need_loop_devices!();
        let file = format!("/var/tmp/{}", mark('a'));
        let (code, tracks) = told(&format!(
            "truncate -s 1M {file}; device=$(losetup --find --show {file})
             exec 9< $device; losetup --detach $device
             setsid sleep 1000 < /dev/null > /dev/null 2>&1 &
             until grep -q sleep /proc/$!/comm; do :; done"
        ));
        let ours = |track: &&String| track.starts_with("loop ") && track.contains(&file);
        assert_eq!(tracks.iter().filter(ours).count(), 1, "{code:?} {tracks:?}");
    }

    /// The lab's cache, for instance.
    #[test]
    fn what_is_needed_stays_in_hidden_directories() {
        need_namespaces!();
        let place = tempfile::tempdir().expect("a directory");
        let cache = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let script = "touch $HANDOFF_LAB_DIR/kept; ls -A /dev/shm";
        let mut sandbox = sandbox(place.path(), script);
        let output = sandbox.env("HANDOFF_LAB_DIR", cache.path()).output().expect("it starts");
        let name = cache.path().file_name().expect("has one").to_str().expect("text");
        // Nothing else is seen, and nothing is left.
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{name}\n"));
        assert!(cache.path().join("kept").exists());
    }

    /// Runs `make test` in a tree where stand-ins for the build, and for the command that runs the tests, leave
    /// their tracks, which must not outlast it.
    fn make_leaves_nothing(mark: &str, in_tests: bool, signal: Signal, all: bool) {
        let tree = tempfile::tempdir().expect("a directory");
        let place = |name: &str| tree.path().join(name);
        let up = place("up");
        // Whoever builds has the network of this machine, to fetch something.
        let (build, tests) = match in_tests {
            true => ("exit 0".to_owned(), leaving(mark, &pair(mark), &up)),
            false => (leaving(mark, "", &up), "exit 0".to_owned()),
        };
        for (name, script) in [
            ("scripts/setup", "exit 0".to_owned()),
            (
                "bin/cargo",
                format!(
                    "case $1 in xtask) shift; exec '{}' \"$@\";; test) ;; *) exit 0;; esac\n{build}",
                    env!("CARGO_BIN_EXE_xtask")
                ),
            ),
            ("target/debug/handoff-workshop", "exit 0".to_owned()),
            ("target/debug/xtask", format!("[ \"$1\" = run-tests ] || exit 0\n{tests}")),
        ] {
            let path = place(name);
            fs::create_dir_all(path.parent().expect("has one")).expect("makes");
            fs::write(&path, format!("#!/bin/bash\n{script}\n")).expect("writes");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("is ours");
        }
        let makefile = concat!(env!("CARGO_MANIFEST_DIR"), "/../Makefile");
        let path = std::env::var("PATH").expect("is set");
        let path = format!("{}:{path}", place("bin").display());
        let mut make = Command::new("make");
        make.args(["--file", makefile, "test"]).current_dir(tree.path()).env("PATH", path);
        // Of whoever runs this test.
        make.env_remove("CARGO").env_remove("MAKEFLAGS").stdout(Stdio::null());
        leaves_nothing(&mut make, mark, &up, signal, all);
    }

    #[test]
    fn make_test_leaves_nothing_when_killed() {
        need_namespaces!();
        make_leaves_nothing(&mark('K'), true, Signal::KILL, false);
        make_leaves_nothing(&mark('B'), false, Signal::KILL, false);
    }

    #[test]
    fn make_test_leaves_nothing_on_ctrl_c() {
        need_namespaces!();
        make_leaves_nothing(&mark('C'), true, Signal::INT, true);
        make_leaves_nothing(&mark('D'), false, Signal::INT, true);
    }
}
