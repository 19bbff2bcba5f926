//! Files are opened as the options say, and what is opened for nobody is closed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use handoff::{Buffer, Directory, Driver, Error, FileCall, OpenOptions, Wait};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::LONG;
use crate::refusals::refuse_calls;
use crate::traffic::{self, with_each_driver, within, without_ring};

/// Options by what they say.
pub(super) fn options(say: impl FnOnce(&mut OpenOptions) -> &mut OpenOptions) -> OpenOptions {
    let mut options = OpenOptions::new();
    say(&mut options);
    options
}

/// A directory of the test's own.
pub(super) fn directory(driver: &Driver) -> (TempDir, Directory) {
    let own = tempfile::tempdir().unwrap();
    let directory = driver.directory(File::open(own.path()).unwrap()).unwrap();
    (own, directory)
}

pub(super) fn over<T>(driver: &Driver, call: handoff::Result<FileCall<T>>) -> handoff::Result<T> {
    driver.block_on(call?)?
}

/// What a future is at once, since nobody turns its driver any more.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits for a driver that is gone"),
    }
}

fn put(driver: &Driver, file: &handoff::File, bytes: &[u8], offset: u64) {
    let written = file.write_at(Buffer::from(bytes.to_vec()), offset).unwrap();
    assert_eq!(driver.block_on(written).unwrap().unwrap().result.unwrap(), bytes.len());
}

#[test]
fn files_are_opened_as_the_options_say() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let path = own.path().join("file");
        let read = options(|it| it.read(true));
        // An error names the path, and has the kernel's number.
        let error = over(&driver, directory.open("file", &read)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(error.to_string().starts_with("opening file: No such file"), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);

        let new = options(|it| it.read(true).write(true).create_new(true).mode(0o640));
        let file = over(&driver, directory.open("file", &new)).unwrap();
        put(&driver, &file, b"whole", 0);
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777 & !0o640, 0);
        let error = over(&driver, directory.open("file", &new)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        // It closes with execve(2).
        let flags = rustix::io::fcntl_getfd(&file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));

        let append = options(|it| it.append(true));
        let file = over(&driver, directory.open("file", &append)).unwrap();
        put(&driver, &file, b", and more", 0);
        assert_eq!(std::fs::read(&path).unwrap(), b"whole, and more");
        // By the driver, a path begins at the working directory or is absolute.
        let cut = options(|it| it.write(true).create(true).truncate(true));
        over(&driver, driver.open(&path, &cut)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let link = own.path().join("link");
        std::os::unix::fs::symlink("file", &link).unwrap();
        over(&driver, driver.open(&link, &read)).unwrap();
        let itself = options(|it| it.read(true).custom_flags(libc::O_NOFOLLOW));
        let error = over(&driver, driver.open(&link, &itself)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        assert_eq!(driver.in_flight(), 0);
    });
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let refused = |say: &dyn Fn(&mut OpenOptions) -> &mut OpenOptions, reason: &str| {
            let error = directory.open("file", &options(say)).unwrap_err();
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains(reason),
                "{error}"
            );
        };
        refused(&|it| it, "say which");
        refused(&|it| it.create(true), "say which");
        refused(&|it| it.read(true).create(true), "only who writes");
        refused(&|it| it.read(true).truncate(true), "only who writes");
        refused(&|it| it.read(true).temporary(true), "only who writes");
        refused(&|it| it.append(true).truncate(true), "leave out");
        refused(&|it| it.write(true).temporary(true).create_new(true), "without a name");
        refused(&|it| it.read(true).custom_flags(libc::O_RDWR), "not about access");
        refused(&|it| it.write(true).create(true).mode(0o10_000), "0o7777");
        let writes = options(|it| it.read(true).write(true));
        let error = directory.open_dir(".", &writes).unwrap_err();
        assert!(error.to_string().contains("create_dir"), "{error}");
        let error = directory.open("a\0b", &writes).unwrap_err();
        assert!(error.to_string().contains("byte 0"), "{error}");
        assert_eq!(std::fs::read_dir(own.path()).unwrap().count(), 0);
        // A file is no directory, whichever way it comes.
        std::fs::write(own.path().join("file"), "").unwrap();
        let file = File::open(own.path().join("file")).unwrap();
        let error = driver.directory(file).unwrap_err();
        assert!(error.to_string().contains("not of a directory"), "{error}");
        let read = options(|it| it.read(true));
        let error = over(&driver, directory.open_dir("file", &read)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
    });
}

#[test]
fn a_driver_without_room_or_gone_opens_nothing() {
    let driver = Driver::builder().in_flight(0).build().unwrap();
    let read = options(|it| it.read(true));
    assert!(matches!(driver.open("/dev/null", &read), Err(Error::Busy { limit: 0 })));
    for driver in traffic::drivers() {
        let directory = driver.working_directory().unwrap();
        drop(driver);
        assert!(matches!(directory.open("/dev/null", &read), Err(Error::DriverGone)));
    }
}

#[test]
fn a_path_that_stays_beneath_its_directory_leads_nowhere_else() {
    with_each_driver(LONG, |driver| {
        let (own, _) = directory(&driver);
        std::fs::write(own.path().join("outside"), "secret").unwrap();
        let inside = own.path().join("inside");
        std::fs::create_dir_all(inside.join("deep")).unwrap();
        std::fs::write(inside.join("file"), "mine").unwrap();
        for (name, target) in [
            ("near", PathBuf::from("deep/../file")),
            ("up", PathBuf::from("../outside")),
            ("absolute", inside.join("file")),
            ("magic", PathBuf::from("/proc/self/exe")),
        ] {
            std::os::unix::fs::symlink(target, inside.join(name)).unwrap();
        }
        let read = options(|it| it.read(true).beneath(true));
        let directory = driver.working_directory().unwrap();
        let all = options(|it| it.read(true));
        let directory = over(&driver, directory.open_dir(&inside, &all)).unwrap();
        for name in ["file", "./deep/../file", "near"] {
            over(&driver, directory.open(name, &read)).unwrap();
        }
        over(&driver, directory.open_dir("deep", &read)).unwrap();
        let absolute = inside.join("file");
        for name in ["../outside", "deep/../../outside", "up", "absolute"]
            .map(Path::new)
            .into_iter()
            .chain([&*absolute])
        {
            let error = over(&driver, directory.open(name, &read)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{error}");
            let told = error.to_string();
            assert!(told.contains(name.to_str().unwrap()) && told.contains("leads out"), "{told}");
            over(&driver, directory.open(name, &all)).unwrap();
        }
        // Magic links lead to files, not by names.
        let fds = driver.directory(File::open("/proc/self/fd").unwrap()).unwrap();
        let null = File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&null).to_string();
        let error = over(&driver, fds.open(&number, &read)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{error}");
        assert!(error.to_string().contains("magic link"), "{error}");
        over(&driver, fds.open(&number, &all)).unwrap();
    });
}

/// Some filters of containers know open(2), and not openat2(2).
#[test]
fn without_a_ring_only_paths_beneath_need_openat2() {
    within(LONG, || {
        refuse_calls([(libc::SYS_openat2, vec![])], libc::ENOSYS);
        let driver = without_ring();
        over(&driver, driver.open("/dev/null", &options(|it| it.read(true)))).unwrap();
        let beneath = options(|it| it.read(true).beneath(true));
        let error = over(&driver, driver.open("Cargo.toml", &beneath)).unwrap_err();
        assert!(error.to_string().contains("need openat2"), "{error}");
    });
}

#[test]
fn a_file_without_a_name_gets_one_when_it_is_whole() {
    const NAME: &str = "files::opening::a_file_without_a_name_gets_one_when_it_is_whole";
    with_each_driver(LONG, |driver| {
        let (own, directory) = directory(&driver);
        let temporary = options(|it| it.write(true).temporary(true));
        let file = match over(&driver, directory.open(".", &temporary)) {
            Err(error) if error.to_string().contains("no files without names") => {
                return traffic::skip(NAME, &error.to_string());
            }
            file => file.unwrap(),
        };
        put(&driver, &file, b"whole", 0);
        assert_eq!(std::fs::read_dir(own.path()).unwrap().count(), 0);
        assert_eq!(over(&driver, file.metadata()).unwrap().links(), 0);
        over(&driver, file.link(&directory, "file")).unwrap();
        assert_eq!(std::fs::read(own.path().join("file")).unwrap(), b"whole");
        let error = over(&driver, file.link(&directory, "file")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(error.to_string().contains("naming a file file"), "{error}");
        assert_eq!(over(&driver, file.metadata()).unwrap().links(), 1);
    });
}

/// A pipe with a name, and whether somebody has it open for reading.
struct Fifo(PathBuf, #[allow(dead_code, reason = "it goes with the test")] TempDir);

impl Fifo {
    fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        Self(path, own)
    }

    fn writer(&self) -> std::io::Result<File> {
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0)
    }

    fn is_read(&self) -> bool {
        match self.writer() {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
                false
            }
        }
    }
}

fn settle(driver: &Driver) {
    while driver.in_flight() > 0 {
        driver.turn(Wait::Event).unwrap();
    }
}

fn with_ring(test: &str) -> Option<Driver> {
    let driver = Driver::new().unwrap();
    match driver.ring_unavailable() {
        Some(reason) => {
            traffic::skip(test, reason);
            None
        }
        None => Some(driver),
    }
}

/// A ring opens with `O_NONBLOCK` first, if one lets it: then a reader would not wait, and a writer would fail.
#[test]
fn an_open_of_a_fifo_waits_for_its_other_end_and_holds_nobody() {
    within(LONG, || {
        let test = "files::opening::an_open_of_a_fifo_waits_for_its_other_end_and_holds_nobody";
        let Some(driver) = with_ring(test) else { return };
        for writes in [false, true] {
            let fifo = Fifo::new();
            // Names that the kernel has looked up before.
            fifo.0.metadata().unwrap();
            let mut ways = OpenOptions::new();
            ways.read(!writes).write(writes);
            let mut opening = driver.open(&fifo.0, &ways).unwrap();
            for _ in 0..100 {
                driver.turn(Wait::No).unwrap();
                opening = match opening.try_take() {
                    Ok(opened) => panic!("nobody has the other end: {opened:?}"),
                    Err(again) => again,
                };
            }
            let path = fifo.0.clone();
            let other = thread::spawn(move || {
                File::options().read(writes).write(!writes).open(path).unwrap()
            });
            let file = driver.block_on(opening).unwrap().unwrap();
            let mut other = other.join().unwrap();
            if writes {
                let written = file.write(Buffer::from(b"hello".to_vec())).unwrap();
                assert_eq!(driver.block_on(written).unwrap().unwrap().result.unwrap(), 5);
                other.read_exact(&mut [0; 5]).unwrap();
            } else {
                other.write_all(b"hello").unwrap();
                let read = file.read(Buffer::from(vec![0; 10])).unwrap();
                assert_eq!(driver.block_on(read).unwrap().unwrap().result.unwrap(), 5);
            }
        }
    });
}

#[test]
fn a_dropped_open_ends_or_closes_what_comes_late() {
    within(LONG, || {
        let test = "files::opening::a_dropped_open_ends_or_closes_what_comes_late";
        let Some(driver) = with_ring(test) else { return };
        let read = options(|it| it.read(true));
        // Before it is submitted, and when a worker of the kernel waits.
        for turns in [0, 1, 5] {
            let fifo = Fifo::new();
            let opening = driver.open(&fifo.0, &read).unwrap();
            for _ in 0..turns {
                driver.turn(Wait::No).unwrap();
            }
            drop(opening);
            settle(&driver);
            assert!(!fifo.is_read(), "after {turns} turns");
        }
        // The file is open, and the driver has not heard of it.
        let fifo = Fifo::new();
        let opening = driver.open(&fifo.0, &read).unwrap();
        driver.turn(Wait::No).unwrap();
        let path = fifo.0.clone();
        let writer = thread::spawn(move || File::options().write(true).open(path).unwrap());
        let mut writer = writer.join().unwrap();
        writer.write_all(b"somebody reads").unwrap();
        drop(opening);
        settle(&driver);
        let error = writer.write_all(b"nobody reads").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        // Cancelled, it says so.
        let opening = driver.open(&fifo.0, &read).unwrap();
        drop(writer);
        driver.turn(Wait::No).unwrap();
        opening.cancel();
        let error = driver.block_on(opening).unwrap().unwrap_err();
        assert!(matches!(error, Error::Canceled { done: 0 }), "{error}");
        // With its driver, and forgotten.
        for forget in [false, true] {
            let fifo = Fifo::new();
            let driver = Driver::new().unwrap();
            let opening = driver.open(&fifo.0, &read).unwrap();
            driver.turn(Wait::No).unwrap();
            if forget {
                std::mem::forget(opening);
                drop(driver);
            } else {
                drop(driver);
                let polled = at_once(opening).unwrap_err();
                assert!(matches!(polled, Error::Canceled { .. } | Error::DriverGone), "{polled}");
            }
            assert!(!fifo.is_read());
        }
    });
}

#[test]
fn an_open_file_that_nobody_takes_is_closed() {
    with_each_driver(LONG, |driver| {
        let fifo = Fifo::new();
        let read = options(|it| it.read(true).custom_flags(libc::O_NONBLOCK));
        let opening = driver.open(&fifo.0, &read).unwrap();
        // It is open when somebody can write.
        while !fifo.is_read() {
            driver.turn(Wait::No).unwrap();
        }
        drop(opening);
        settle(&driver);
        assert!(!fifo.is_read());
    });
}
