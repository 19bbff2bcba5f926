//! The memory that a server takes while it serves.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use handoff_testbed::{Disk as _, NullDisk};
use rustix::process::Signal;

use super::command::{Added, ENGINES, Files, driver_or_skip, kill, nothing_is_left, parent, tell};
use super::policies::sparse;
use super::processes::waiting;

const TRACING: &str = "/sys/kernel/tracing";
/// Events of memory that the kernel takes, and `__GFP_DIRECT_RECLAIM`: of that for which it would wait.
const MEMORY: [&str; 3] = ["kmem/kmalloc", "kmem/kmem_cache_alloc", "kmem/mm_page_alloc"];
const WAITS: &str = "gfp_flags & 0x400";
/// A ring takes requests by the dozen, of which no event of memory tells.
const REQUESTS: &str = "handoff/requests";

/// What the kernel takes for the threads of a process, and for those that they start.
struct Taken(PathBuf);

impl Taken {
    fn by(process: i32) -> Self {
        if !Path::new(TRACING).join("instances").exists() {
            let mounted = Command::new("mount").args(["-t", "tracefs", "none", TRACING]).status();
            assert!(mounted.expect("mount starts").success(), "tracefs");
        }
        probe(&format!("p:{REQUESTS} __io_alloc_req_refill"));
        let this = Self(format!("{TRACING}/instances/handoff-{process}").into());
        fs::create_dir(&this.0).expect("an instance");
        this.write("options/event-fork", "1");
        let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("its threads");
        let tasks =
            tasks.map(|task| task.expect("one").file_name().into_string().expect("a number"));
        this.write("set_event_pid", &tasks.collect::<Vec<_>>().join(" "));
        for event in MEMORY {
            this.write(&format!("events/{event}/filter"), WAITS);
            this.write(&format!("events/{event}/trigger"), &format!("stacktrace if {WAITS}"));
            this.write(&format!("events/{event}/enable"), "1");
        }
        this.write(&format!("events/{REQUESTS}/trigger"), "stacktrace");
        this.write(&format!("events/{REQUESTS}/enable"), "1");
        this
    }

    fn write(&self, name: &str, what: &str) {
        fs::write(self.0.join(name), what).unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// What was taken that the kernel would have waited for: by whom, and how often.
    fn all(self) -> BTreeMap<String, usize> {
        self.write("tracing_on", "0");
        let trace = fs::read_to_string(self.0.join("trace")).expect("a trace");
        let mut stacks: Vec<String> = Vec::new();
        for line in trace.lines().filter(|line| !line.starts_with('#')) {
            if line.contains("<stack trace>") {
                stacks.push(String::new());
            } else if let Some(function) = line.strip_prefix(" => ") {
                let stack = stacks.last_mut().expect("begun");
                stack.push_str(function);
                stack.push(' ');
            }
        }
        let mut all = BTreeMap::new();
        stacks.into_iter().for_each(|stack| *all.entry(stack).or_insert(0) += 1);
        all
    }
}

/// Adds a probe, or takes it away.
fn probe(what: &str) {
    let probes = fs::File::options().append(true).open(format!("{TRACING}/kprobe_events"));
    probes.and_then(|mut probes| probes.write_all(what.as_bytes())).expect(what);
}

impl Drop for Taken {
    fn drop(&mut self) {
        for event in MEMORY {
            self.write(&format!("events/{event}/enable"), "0");
            self.write(&format!("events/{event}/trigger"), "!stacktrace");
        }
        self.write(&format!("events/{REQUESTS}/enable"), "0");
        self.write(&format!("events/{REQUESTS}/trigger"), "!stacktrace");
        fs::remove_dir(&self.0).expect("the instance goes");
        probe(&format!("-:{REQUESTS}"));
    }
}

const PAGE: usize = 4096;
const PAGES: usize = 128;

/// Reads and writes requests of 512 KiB, as many at once as a queue takes, from pages of which each lies before
/// the last one, so that no two make one piece; and flushes.
fn load(node: &str) {
    #[repr(C, align(4096))]
    struct Page([u8; PAGE]);
    let (node, bytes) = (Path::new(node), (PAGE * PAGES) as i64);
    std::thread::scope(|scope| {
        for thread in 0..64_i64 {
            scope.spawn(move || {
                let mut options = fs::File::options();
                let disk = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(node);
                let disk = disk.expect("opens");
                let mut pages: Vec<Page> = (0..PAGES).map(|_| Page([1; PAGE])).collect();
                let pieces: Vec<libc::iovec> = pages
                    .iter_mut()
                    .rev()
                    .map(|page| libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE })
                    .collect();
                for _ in 0..2 {
                    let (disk, pieces) = (disk.as_raw_fd(), &pieces);
                    // SAFETY: the pieces are pages that nobody else uses until both have returned.
                    let moved = unsafe {
                        let (all, count) = (pieces.as_ptr(), pieces.len() as i32);
                        [
                            libc::pwritev(disk, all, count, thread * bytes),
                            libc::preadv(disk, all, count, thread * bytes),
                        ]
                    };
                    assert_eq!(moved, [bytes as isize; 2], "{}", io::Error::last_os_error());
                }
                disk.sync_all().expect("flushed");
            });
        }
    });
}

/// Serves a load, and tells what memory the server would have waited for. The server is stopped until as many
/// requests wait as it can have at once.
#[track_caller]
fn taken(device: &Added, server: i32) -> BTreeMap<String, usize> {
    let depth = device.show()["depth"].as_u64().expect("a number");
    let (node, taken) = (device.node(), Taken::by(server));
    tell(server, Signal::STOP);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&node));
        while device.under_way() < depth && !load.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        tell(server, Signal::CONT);
    });
    taken.all()
}

/// Records and bits take no memory beside what such disks take without them.
#[track_caller]
fn more_for_records() {
    let disks = [(), ()].map(|()| NullDisk::with_memory(64, 512).expect("a disk"));
    let [one, other] = disks.each_ref().map(|disk| disk.path().to_str().expect("UTF-8"));
    for engine in ENGINES {
        for disk in [one, other] {
            // They take memory for what was never written to them; and no record is left.
            fs::write(disk, vec![0; 64 << 20]).expect("written");
        }
        let by = |record: &str| {
            let device = Added::new(&["mirror", record, one, other, "--engine", engine]);
            let by = taken(&device, device.server(None));
            device.del();
            by
        };
        let (without, mut with) = (by("--no-record"), by("--create"));
        with.retain(|stack, _| !without.contains_key(stack));
        assert!(with.is_empty(), "a mirror with records by {engine}: {with:#?}");
    }
}

/// Memory may be short until this very server has written. A server that was killed is followed by one that
/// has served nothing yet.
#[test]
fn a_server_takes_no_memory_that_it_would_wait_for() {
    driver_or_skip!();
    // A page is a piece.
    rustix::thread::disable_transparent_huge_pages(true).expect("told");
    let disks = [(), ()].map(|()| NullDisk::strict(64, 512, 1 << 20).expect("a disk"));
    let [one, other] = disks.each_ref().map(|disk| disk.path().to_str().expect("UTF-8"));
    for arguments in [
        &["loop", one, "--engine", "bpf"][..],
        &["loop", one, "--engine", "user-auto"],
        &["loop", one, "--engine", "batch-auto"],
        &["loop", one, "--engine", "user-copy"],
        &["mirror", "--no-record", one, other, "--engine", "bpf"],
        &["stripe", one, other, "--engine", "user-auto", "--depth", "32"],
    ] {
        let device = Added::new(arguments);
        assert_eq!(device.answer["no_swap"], serde_json::Value::Null, "{arguments:?}");
        let server = device.server(None);
        let by = taken(&device, server);
        assert!(by.is_empty(), "{arguments:?}: {by:#?}");
        kill(server);
        let by = taken(&device, device.server(Some(server)));
        assert!(by.is_empty(), "{arguments:?}, the server that follows: {by:#?}");
        device.del();
    }
    more_for_records();
    let more = Added::new(&["loop", one, "--engine", "user-auto", "--max-segments", "128"]);
    let by = taken(&more, more.server(None));
    assert!(by.keys().any(|stack| stack.contains("io_buffer_register_bvec")), "{by:#?}");
    more.del();
    nothing_is_left();
}

/// While memory is short, the kernel's verifier may look for pages for ever.
#[test]
fn a_server_that_waits_has_its_program() {
    driver_or_skip!();
    let files = Files::new(1, 8 << 20);
    let plain = || Added::new(&["loop", files.name(0), "--engine", "bpf"]);
    for add in [&plain as &dyn Fn() -> Added, &|| sparse(&files).0] {
        let device = add();
        let server = device.server(None);
        let taken = Taken::by(waiting(parent(server), server, None));
        kill(server);
        device.server(Some(server));
        let by = taken.all();
        let is_attached = |stack: &String| stack.contains("bpf_struct_ops_link_create");
        assert!(by.keys().any(is_attached), "{by:#?}");
        // The verifier's, and that of the code by which the kernel calls the program.
        let is_loaded = |stack: &&String| {
            stack.contains("bpf_check") || stack.contains("bpf_struct_ops_prepare_trampoline")
        };
        let by: Vec<_> = by.keys().filter(is_loaded).collect();
        assert!(by.is_empty(), "{by:#?}");
        device.del();
    }
    nothing_is_left();
}
