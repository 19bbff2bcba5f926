//! Programs whose copies are known exactly, counted by the meter.
//!
//! They need a kernel that allows tracing, and root; elsewhere they skip. A processor has
//! breakpoints for one meter, so the tests take turns.

mod guest {
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::{AsFd, AsRawFd};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Mutex, MutexGuard};
    use std::thread;

    use clap::Parser;
    use handoff_lab::topology::{Discard, Disk as _, LoopDisk, Namespace, Pair};
    use handoff_meter::command::{self, Context, MeterArgs, MeterError};
    use handoff_meter::{Meter, Options, Report, Scope, Totals};
    use io_uring::{IoUring, cqueue, opcode, types};

    /// Bytes that each program moves, and in pieces of which size.
    const SIZE: usize = 16 << 20;
    const PIECE: usize = 32 << 10;
    /// A file system whose files are memory.
    const TMPFS: &str = "/dev/shm";
    const EXT4: &str = "/var/tmp";

    static TURN: Mutex<()> = Mutex::new(());

    struct Counting {
        meter: Meter,
        _turn: MutexGuard<'static, ()>,
    }

    impl Counting {
        /// Counts what `program` makes this process and its descendants copy.
        fn during(&self, program: impl FnOnce()) -> Totals {
            let before = self.meter.totals().expect("counters");
            program();
            self.meter.totals().expect("counters").since(before)
        }

        fn report(&self) -> Report {
            self.meter.read().expect("counters")
        }
    }

    fn attach(scope: Scope) -> Result<Counting, String> {
        attach_with(Options { scope, paths: true, libc: false })
    }

    fn attach_with(options: Options) -> Result<Counting, String> {
        // A test that failed leaves nothing behind that could mislead the next.
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let meter = Meter::attach_with(options).map_err(|unavailable| unavailable.to_string())?;
        Ok(Counting { meter, _turn: turn })
    }

    macro_rules! counting {
        ($scope:expr) => {
            match attach($scope) {
                Ok(counting) => counting,
                Err(reason) => handoff_lab::skip!("{reason}"),
            }
        };
    }

    fn myself() -> Scope {
        Scope::Tree(std::process::id())
    }

    #[track_caller]
    fn assert_near(what: &str, bytes: u64, expected: usize) {
        let expected = expected as u64;
        assert!(
            bytes.abs_diff(expected) <= SIZE as u64 / 100,
            "{what}: {bytes} bytes, expected {expected}"
        );
    }

    fn place<'a>(report: &'a Report, function: &str) -> &'a handoff_meter::Place {
        let found = report.places.iter().find(|place| place.function == function);
        found.unwrap_or_else(|| panic!("nothing by {function}: {:?}", report.places))
    }

    /// A file without a name.
    fn file_in(directory: &str) -> File {
        tempfile::tempfile_in(directory).expect("a file")
    }

    fn filled_file_in(directory: &str) -> File {
        let mut file = file_in(directory);
        write_all(&mut file);
        rewind(&mut file);
        file
    }

    fn rewind(file: &mut File) {
        std::io::Seek::rewind(file).expect("a file");
    }

    fn write_all(to: &mut impl Write) {
        let piece = vec![7; PIECE];
        for _ in 0..SIZE / PIECE {
            to.write_all(&piece).expect("written");
        }
    }

    fn read_all(from: &mut impl Read) {
        let mut piece = vec![7; PIECE];
        for _ in 0..SIZE / PIECE {
            from.read_exact(&mut piece).expect("read");
        }
    }

    #[test]
    fn writing_to_tmpfs_copies_each_byte_once() {
        let counting = counting!(myself());
        let mut file = file_in(TMPFS);
        let counted = counting.during(|| write_all(&mut file));
        assert_near("copied", counted.copied_bytes, SIZE);
        assert_near("moved", counted.moved_bytes, SIZE);
        let report = counting.report();
        let place = place(&report, "copy_folio_from_iter_atomic");
        assert!(place.path.iter().any(|caller| caller == "vfs_write"), "{place:?}");
        assert_near("by path", place.bytes, SIZE);
    }

    #[test]
    fn a_loop_of_read_and_write_copies_twice() {
        let counting = counting!(myself());
        for directory in [TMPFS, EXT4] {
            let mut from = filled_file_in(directory);
            let mut to = file_in(directory);
            let counted = counting.during(|| {
                let mut piece = vec![7; PIECE];
                for _ in 0..SIZE / PIECE {
                    from.read_exact(&mut piece).expect("read");
                    to.write_all(&piece).expect("written");
                }
            });
            assert_near(directory, counted.copied_bytes, 2 * SIZE);
            assert_near(directory, counted.moved_bytes, 2 * SIZE);
        }
    }

    #[test]
    fn memory_that_must_be_faulted_in_first_is_counted_once() {
        let counting = counting!(myself());
        let source = filled_file_in(TMPFS);
        let mut to = file_in(TMPFS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                SIZE,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE,
                &source,
                0,
            )
        }
        .expect("mapped");
        // SAFETY: mapped just now for so many bytes; nobody else has the file.
        let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), SIZE) };
        let counted = counting.during(|| to.write_all(bytes).expect("written"));
        assert_near("copied", counted.copied_bytes, SIZE);
    }

    #[test]
    fn filling_with_zeroes_is_no_copy() {
        let counting = counting!(myself());
        let mut zeroes = File::open("/dev/zero").expect("a device");
        let counted = counting.during(|| read_all(&mut zeroes));
        assert_near("copied", counted.copied_bytes, 0);
        assert_near("moved", counted.moved_bytes, SIZE);
    }

    #[test]
    fn writing_through_a_ring_moves_and_copies_the_same() {
        let counting = counting!(myself());
        let file = file_in(TMPFS);
        let mut ring = IoUring::new(4).expect("a ring");
        let piece = vec![7; PIECE];
        let counted = counting.during(|| {
            for number in 0..SIZE / PIECE {
                let write = opcode::Write::new(
                    types::Fd(file.as_raw_fd()),
                    piece.as_ptr(),
                    u32::try_from(PIECE).expect("small"),
                )
                .offset((number * PIECE) as u64)
                .build();
                // SAFETY: the buffer and the file outlive the completion that is awaited next.
                unsafe { ring.submission().push(&write) }.expect("room");
                ring.submit_and_wait(1).expect("submitted");
                let completion = ring.completion().next().expect("completed");
                assert_eq!(completion.result(), PIECE as i32);
            }
        });
        assert_near("copied", counted.copied_bytes, SIZE);
        assert_near("moved", counted.moved_bytes, SIZE);
    }

    #[test]
    fn sendfile_to_a_device_that_ends_packets_copies_nothing() {
        let counting = counting!(myself());
        let sink = handoff_lab::topology_or_skip!(Discard::new());
        let socket = connected(sink.namespace(), (sink.v4(), 9).into());
        for directory in [TMPFS, EXT4] {
            let mut file = filled_file_in(directory);
            let counted = counting.during(|| {
                for _ in 0..SIZE / PIECE {
                    let sent = rustix::fs::sendfile(&socket, &file, None, PIECE).expect("sent");
                    assert_eq!(sent, PIECE);
                }
            });
            rewind(&mut file);
            assert_near(directory, counted.copied_bytes, 0);
            assert_near(directory, counted.moved_bytes, 2 * SIZE);
        }
    }

    #[test]
    fn send_zc_to_a_device_that_ends_packets_copies_nothing() {
        let counting = counting!(myself());
        let sink = handoff_lab::topology_or_skip!(Discard::new());
        let socket = connected(sink.namespace(), (sink.v4(), 9).into());
        let counted = counting.during(|| send_zc(&socket));
        assert_near("copied", counted.copied_bytes, 0);
        assert_near("moved", counted.moved_bytes, SIZE);
    }

    #[test]
    fn plain_send_to_the_same_device_copies_each_byte() {
        let counting = counting!(myself());
        let sink = handoff_lab::topology_or_skip!(Discard::new());
        let socket = connected(sink.namespace(), (sink.v4(), 9).into());
        let piece = vec![7; PIECE];
        let counted = counting.during(|| {
            for _ in 0..SIZE / PIECE {
                assert_eq!(socket.send(&piece).expect("sent"), PIECE);
            }
        });
        assert_near("copied", counted.copied_bytes, SIZE);
        assert_near("moved", counted.moved_bytes, SIZE);
    }

    #[test]
    fn send_zc_over_loopback_is_copied_on_its_way_in() {
        let counting = counting!(myself());
        let namespace = handoff_lab::topology_or_skip!(Namespace::new());
        // Never read: what arrives is dropped when its queue is full, after the copy.
        let receiver = namespace
            .run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))
            .expect("run")
            .expect("bound");
        let socket = connected(&namespace, receiver.local_addr().expect("bound"));
        let counted = counting.during(|| send_zc(&socket));
        assert_near("copied", counted.copied_bytes + counted.unattributed_bytes, SIZE);
        assert_near("moved", counted.moved_bytes, SIZE);
        let report = counting.report();
        assert_near("orphaned", place(&report, "skb_copy_ubufs").bytes, SIZE);
    }

    #[test]
    fn tcp_over_loopback_copies_in_and_out() {
        let counting = counting!(myself());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = listener.local_addr().expect("bound");
        let counted = counting.during(|| {
            let receiver = thread::spawn(move || read_all(&mut listener.accept().expect("peer").0));
            write_all(&mut TcpStream::connect(address).expect("connected"));
            receiver.join().expect("all was read");
        });
        assert_near("copied", counted.copied_bytes, 2 * SIZE);
        assert_near("moved", counted.moved_bytes, 2 * SIZE);
    }

    #[test]
    fn a_copy_with_a_checksum_is_counted_once() {
        let counting = counting!(myself());
        // Datagrams that are cut into fragments are summed while they are copied.
        let pair = handoff_lab::topology_or_skip!(Pair::new(1_500));
        let receiver = pair.right.namespace().run(|| UdpSocket::bind((pair.right.v4(), 0)));
        let receiver = receiver.expect("run").expect("bound");
        let socket = connected(pair.left.namespace(), receiver.local_addr().expect("bound"));
        let piece = vec![7; PIECE];
        counting.during(|| {
            for _ in 0..SIZE / PIECE {
                assert_eq!(socket.send(&piece).expect("sent"), PIECE);
            }
        });
        let report = counting.report();
        let by = |function: &str| {
            let places = report.places.iter().filter(|place| place.function == function);
            places.map(|place| place.bytes).sum::<u64>()
        };
        assert_near("summed", by("csum_and_copy_from_iter_full"), SIZE);
        assert_near("not summed", by("_copy_from_iter"), 0);
    }

    #[test]
    fn the_tree_has_all_that_it_starts_and_no_neighbour() {
        let mut neighbour = Command::new("dd")
            .args(["if=/dev/urandom", "of=/dev/null", "bs=64k"])
            .stderr(Stdio::null())
            .spawn()
            .expect("dd");
        let read_by_neighbour = |id: u32| -> u64 {
            let io = fs::read_to_string(format!("/proc/{id}/io")).expect("it runs");
            io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).expect("rchar")
        };
        let attached = attach(Scope::ChildrenOf(std::process::id()));
        if let Ok(counting) = &attached {
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
                // Not counted: it was not started by us, it is us.
                write_all(&mut file_in(TMPFS));
            });
            let meanwhile = read_by_neighbour(neighbour.id()) - before;
            assert!(meanwhile > SIZE as u64 / 50, "the neighbour copied {meanwhile} bytes only");
            // Starting three programs costs copies of their own.
            assert!(counted.copied_bytes >= SIZE as u64, "{counted:?}");
            assert!(counted.copied_bytes < SIZE as u64 + (512 << 10), "{counted:?}");
        }
        neighbour.kill().expect("ours");
        neighbour.wait().expect("ours");
        if let Err(reason) = attached {
            handoff_lab::skip!("{reason}");
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
            let script = format!(
                "{join} exec dd if=/dev/zero of={TMPFS}/group bs=32k count=512 status=none"
            );
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
                let mounted =
                    Command::new("mount").args(["-t", "cgroup2", "none"]).arg(root).status();
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
    fn the_machine_has_everybody() {
        let counting = counting!(Scope::Machine);
        let counted = counting.during(|| write_all(&mut file_in(TMPFS)));
        assert!(counted.copied_bytes >= SIZE as u64, "{counted:?}");
        assert_eq!(counted.unattributed_bytes, 0);
    }

    #[test]
    fn what_a_thread_of_the_kernel_copies_is_nobodys_and_has_a_place() {
        let counting = counting!(myself());
        let directory = Path::new(EXT4);
        let disk =
            handoff_lab::topology_or_skip!(LoopDisk::new(directory, SIZE as u64, 4_096, false));
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

    #[test]
    fn a_second_meter_is_told_why_it_cannot_count() {
        let _counting = counting!(Scope::Machine);
        let second = Meter::attach(Scope::Machine).expect_err("four breakpoints");
        assert!(second.to_string().contains("another meter"), "{second}");
    }

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        meter: MeterArgs,
    }

    /// What `handoff meter` does with these words.
    fn meter(words: &[&str]) -> (Result<(), MeterError>, serde_json::Value) {
        let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let words = ["meter"].iter().chain(words);
        let cli = Cli::try_parse_from(words).expect("a good command line");
        let mut out = Vec::new();
        let stop = AtomicBool::new(false);
        let mut context = Context { json: true, stop: &stop, out: &mut out };
        let result = command::run(&cli.meter, &mut context);
        (result, serde_json::from_slice(&out).unwrap_or_default())
    }

    #[test]
    fn the_command_fails_above_its_limit_and_not_below() {
        let source = Path::new(TMPFS).join(format!("source-{}", std::process::id()));
        let mut file = OpenOptions::new().create(true).append(true).open(&source).expect("a file");
        write_all(&mut file);
        let input = format!("if={}", source.display());
        let (copying, report) =
            meter(&["--fail-above", "0.01", "--", "dd", &input, "of=/dev/null", "bs=32k"]);
        fs::remove_file(&source).expect("ours");
        if let Err(MeterError::NotPossible(unavailable)) = &copying {
            handoff_lab::skip!("{unavailable}");
        }
        assert!(matches!(copying, Err(MeterError::AboveLimit(_))), "{copying:?}");
        assert_near("copied", report["copied_bytes"].as_u64().expect("a number"), SIZE);
        assert!(report["places"][0]["path"].as_array().is_some_and(|path| !path.is_empty()));

        let filling = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=64"];
        let (filled, report) = meter(&[&["--fail-above", "0.01", "--"], &filling[..]].concat());
        assert!(filled.is_ok(), "{filled:?} {report}");
    }

    #[test]
    fn what_the_c_library_copies_is_counted_if_asked_for() {
        let copy = || {
            let (from, mut to) = (vec![7_u8; PIECE], vec![0; PIECE]);
            for _ in 0..SIZE / PIECE {
                std::hint::black_box(to.as_mut_slice())
                    .copy_from_slice(std::hint::black_box(&from));
            }
        };
        let counting = match attach_with(Options { scope: myself(), paths: false, libc: true }) {
            Ok(counting) => counting,
            Err(reason) => handoff_lab::skip!("{reason}"),
        };
        let spent = counting.during(copy);
        assert_near("by the library", spent.libc_bytes.expect("asked for"), SIZE);
        assert_near("by the kernel", spent.copied_bytes, 0);
        drop(counting);
        let unasked = counting!(myself()).during(copy);
        assert_eq!(unasked.libc_bytes, None);
    }

    #[test]
    fn the_exit_code_of_a_command_that_fails_is_passed_on() {
        let (ended, report) = meter(&["--fail-above", "0", "--", "sh", "-c", "exit 7"]);
        if let Err(MeterError::NotPossible(unavailable)) = &ended {
            handoff_lab::skip!("{unavailable}");
        }
        assert!(matches!(ended, Err(MeterError::Ended(7))), "{ended:?}");
        assert!(report["copied_bytes"].is_u64(), "{report}");
    }

    fn connected(namespace: &Namespace, to: SocketAddr) -> UdpSocket {
        let socket = namespace.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let socket = socket.expect("run").expect("bound");
        socket.connect(to).expect("connected");
        socket
    }

    /// Sends one piece after the other, each after the one before has come back.
    fn send_zc(socket: &impl AsFd) {
        let mut ring = IoUring::new(4).expect("a ring");
        let piece = vec![7; PIECE];
        for _ in 0..SIZE / PIECE {
            let send = opcode::SendZc::new(
                types::Fd(socket.as_fd().as_raw_fd()),
                piece.as_ptr(),
                u32::try_from(PIECE).expect("small"),
            )
            .build();
            // SAFETY: buffer and socket outlive both completions, which are awaited next.
            unsafe { ring.submission().push(&send) }.expect("room");
            let mut returned = false;
            while !returned {
                ring.submit_and_wait(1).expect("submitted");
                for completion in ring.completion() {
                    if cqueue::notif(completion.flags()) {
                        returned = true;
                    } else {
                        assert_eq!(completion.result(), PIECE as i32);
                        assert!(cqueue::more(completion.flags()), "a notification follows");
                    }
                }
            }
        }
    }
}
