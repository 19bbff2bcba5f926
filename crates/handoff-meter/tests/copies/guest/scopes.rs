//! Whose copies are counted: a tree, a control group, the machine; one at a time.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use handoff_meter::{Meter, Scope};
use handoff_testbed::{Disk as _, LoopDisk};

use crate::counting::{
    Counting, EXT4, PIECE, SIZE, TMPFS, TURN, assert_near, attach, counting, myself,
};
use crate::files::{file_in, write_all};

#[test]
fn the_tree_has_all_that_it_starts_and_no_neighbour() {
    // It exists from the beginning, and copies when told to.
    let mut neighbour = Command::new("sh")
        .args(["-c", "read _ && exec dd if=/dev/urandom of=/dev/null bs=64k"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("sh");
    let read_by_neighbour = |id: u32| -> u64 {
        let io = fs::read_to_string(format!("/proc/{id}/io")).expect("it runs");
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).expect("rchar")
    };
    let attached = attach(Scope::ChildrenOf(std::process::id()));
    if let Ok(counting) = &attached {
        neighbour.stdin.take().expect("piped").write_all(b"\n").expect("it waits");
        let before = read_by_neighbour(neighbour.id());
        let counted = counting.during(|| {
            let target = Path::new(TMPFS).join(format!("tree-{}", std::process::id()));
            // The shell's child, not ours.
            let script = format!(
                "dd if=/dev/zero of={0} bs=32k count={1}; rm {0}",
                target.display(),
                SIZE / PIECE
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).stderr(Stdio::null());
            assert!(shell.status().expect("sh").success());
            // Not counted: we did not start it, it is us.
            write_all(&mut file_in(TMPFS));
            while read_by_neighbour(neighbour.id()) - before < SIZE as u64 {
                assert!(neighbour.try_wait().expect("ours").is_none(), "the neighbour is gone");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        // Starting three programs costs copies of their own.
        assert!(counted.copied_bytes >= SIZE as u64, "{counted:?}");
        assert!(counted.copied_bytes < SIZE as u64 + (512 << 10), "{counted:?}");
    }
    neighbour.kill().expect("ours");
    neighbour.wait().expect("ours");
    if let Err(reason) = attached {
        handoff_testbed::skip!("{reason}");
    }
}

#[test]
fn a_pid_namespace_has_its_tree_with_the_namespaces_below() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut inside = Command::new("unshare");
    inside.args(IN_PID_NAMESPACE).arg(std::env::current_exe().expect("this program"));
    inside.args(["--exact", "--ignored", "--nocapture", "guest::scopes::fixture::counts_its_tree"]);
    let output = inside.output().expect("unshare");
    let words = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&words));
}

/// Words for unshare(1).
const IN_PID_NAMESPACE: [&str; 3] = ["--pid", "--fork", "--mount-proc"];

/// Started in a PID namespace, where no process has the kernel's number for it.
mod fixture {
    use super::*;

    /// A command that waits for a line and then copies [`SIZE`] bytes.
    fn waiting(wrapper: &[&str]) -> Child {
        let copy =
            format!("read _ && head -c {SIZE} /dev/zero | dd of=/dev/null bs=32k iflag=fullblock");
        let words = [wrapper, &["sh", "-c", &copy]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stderr(Stdio::null());
        command.spawn().expect("starts")
    }

    /// Makes it copy, and waits for its end.
    fn copied_by(mut child: Child, counting: &Counting) -> u64 {
        let mut input = child.stdin.take().expect("piped");
        let counted = counting.during(|| {
            input.write_all(b"\n").expect("it waits");
            assert!(child.wait().expect("ours").success());
        });
        counted.copied_bytes
    }

    #[test]
    #[ignore = "started by a test"]
    fn counts_its_tree() {
        let unshare = [&["unshare"], &IN_PID_NAMESPACE[..]].concat();
        let (before, below_before) = (waiting(&[]), waiting(&unshare));
        let counting = attach(myself()).expect("the other tests of this program have attached");
        let counted = counting.during(|| write_all(&mut file_in(TMPFS)));
        assert_near("by itself", counted.copied_bytes, SIZE);
        let started = [
            ("a child that was there", before),
            ("one in a namespace below", below_before),
            ("a new child", waiting(&[])),
            ("a new one in a namespace below", waiting(&unshare)),
        ];
        for (which, child) in started {
            // Into a pipe and out of it; programs copy little as they start.
            let copied = copied_by(child, &counting);
            assert!(copied.abs_diff(2 * SIZE as u64) < SIZE as u64 / 16, "{which}: {copied} bytes");
        }
    }
}

#[test]
fn a_control_group_has_those_in_it_and_no_others() {
    let group = Group::new();
    let counting = counting!(Scope::Cgroup(group.0.clone()));
    let copy = |inside: bool| {
        let join = if inside {
            format!("echo $$ > {}/cgroup.procs && ", group.0.display())
        } else {
            String::new()
        };
        let script =
            format!("{join} exec dd if=/dev/zero of={TMPFS}/group bs=32k count=512 status=none");
        let status = Command::new("sh").args(["-c", &script]).status().expect("starts");
        assert!(status.success(), "{status}");
        fs::remove_file(format!("{TMPFS}/group")).expect("was there");
    };
    let outside = counting.during(|| copy(false));
    assert!(outside.copied_bytes < SIZE as u64 / 100, "{outside:?}");
    let inside = counting.during(|| copy(true));
    assert_near("copied inside", inside.copied_bytes, SIZE);
}

/// A control group; removed when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Self {
        let root = Path::new("/sys/fs/cgroup");
        if !root.join("cgroup.procs").exists() {
            let mounted = Command::new("mount").args(["-t", "cgroup2", "none"]).arg(root).status();
            assert!(mounted.expect("starts").success());
        }
        let path = root.join(format!("meter-{}", std::process::id()));
        fs::create_dir(&path).expect("makes");
        Self(path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fs::remove_dir(&self.0).expect("is empty");
    }
}

#[test]
fn the_machine_has_everybody_and_no_second_meter() {
    let counting = counting!(Scope::Machine);
    let counted = counting.during(|| write_all(&mut file_in(TMPFS)));
    assert!(counted.copied_bytes >= SIZE as u64, "{counted:?}");
    assert_eq!(counted.unattributed_bytes, 0);
    let second = Meter::attach(Scope::Machine).expect_err("four breakpoints");
    assert!(second.to_string().contains("another meter"), "{second}");
}

#[test]
fn what_a_thread_of_the_kernel_copies_is_nobodys_and_has_a_place() {
    let counting = counting!(myself());
    let directory = Path::new(EXT4);
    let disk =
        handoff_testbed::topology_or_skip!(LoopDisk::new(directory, SIZE as u64, 4_096, false));
    let mut file = OpenOptions::new().write(true).open(disk.path()).expect("a disk");
    let counted = counting.during(|| {
        write_all(&mut file);
        file.sync_all().expect("written");
    });
    // Into the disk's cache by us, out of it into the file by the disk's thread.
    assert_near("ours", counted.copied_bytes, SIZE);
    assert!(counted.unattributed_bytes >= SIZE as u64, "{counted:?}");
    let places = counting.report().unattributed_places;
    let by_disk = places.iter().filter(|place| {
        place.function == "copy_folio_from_iter_atomic"
            && place.path.iter().any(|caller| caller.starts_with("loop_"))
    });
    let by_disk: u64 = by_disk.map(|place| place.bytes).sum();
    assert!(by_disk.abs_diff(SIZE as u64) < SIZE as u64 / 100, "{by_disk} bytes: {places:#?}");
}
