//! The device and a ring with it, as a program would use them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

use handoff_sys::getbuf;
pub(crate) use handoff_sys::getbuf::{NULL, Query, SOURCE};
use handoff_testbed::helpers::eventually;
use handoff_testbed::load;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// What `kmod/getbuf/getbuf.h` has beside what the library uses.
pub(crate) const TARGET: u32 = 2;
pub(crate) const NOWAIT: u16 = 1;
pub(crate) const MORE: u16 = 2;
pub(crate) const REPLACE: u16 = 4;
pub(crate) const CANCEL_ALL: u32 = 1;

/// Into so many more slots.
pub(crate) const fn further(slots: u8) -> u16 {
    (slots as u16) << 8
}

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | 0xe7 << 8 | number
}

const BIND: u64 = request(3, 0, size_of::<Bind>());
pub(crate) const GET: u32 = request(2, 0x10, 16) as u32;
pub(crate) const FRESH: u32 = request(2, 0x11, 16) as u32;
pub(crate) const PUT: u32 = request(2, 0x12, 16) as u32;
pub(crate) const CANCEL: u32 = request(2, 0x13, 16) as u32;
pub(crate) const SEND: u32 = request(2, 0x14, 16) as u32;

/// Longer than anything here takes, even under emulation.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

#[repr(C)]
#[derive(Default)]
pub(crate) struct Bind {
    pub(crate) fd: i32,
    pub(crate) purpose: u32,
    pub(crate) flags: u32,
    pub(crate) id: u32,
    pub(crate) reserved: [u64; 2],
}

/// `/dev/getbuf`, open.
pub(crate) struct Device(pub(crate) File);

impl Device {
    pub(crate) fn open() -> Self {
        load("getbuf", &[]).expect("the lab's kernel has it");
        let open = || OpenOptions::new().read(true).write(true).open(getbuf::PATH);
        Self(eventually("the device is there", || open().ok()))
    }

    /// Once nothing is lent: the kernel takes the ring of an earlier test apart in its own time.
    pub(crate) fn alone() -> Self {
        let device = Self::open();
        eventually("earlier lends are back", || (device.query().module_lends == 0).then_some(()));
        device
    }

    pub(crate) fn bind_raw(&self, bind: &mut Bind) -> io::Result<()> {
        // SAFETY: the request reads and writes the structure that its number has the size of.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), BIND as _, bind) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn bind(&self, file: &impl AsRawFd, purpose: u32) -> io::Result<u16> {
        let mut bind = Bind { fd: file.as_raw_fd(), purpose, ..Bind::default() };
        self.bind_raw(&mut bind)?;
        Ok(bind.id as u16)
    }

    pub(crate) fn unbind(&self, id: u16) -> io::Result<()> {
        getbuf::unbind(&self.0, id)
    }

    pub(crate) fn query(&self) -> Query {
        getbuf::query(&self.0).expect("can be asked")
    }
}

/// A parameter of the module, restored afterwards.
pub(crate) struct Parameter {
    path: String,
    before: String,
}

impl Parameter {
    pub(crate) fn set(name: &str, value: u64) -> Self {
        let path = format!("/sys/module/getbuf/parameters/{name}");
        let before = fs::read_to_string(&path).expect("reads");
        fs::write(&path, value.to_string()).expect("writes");
        Self { path, before }
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        // A forgotten setting would show in later tests.
        let _ = fs::write(&self.path, &self.before);
    }
}

/// The queues of a ring.
pub(crate) trait Queues {
    /// Makes a table of registered buffers with so many empty slots.
    fn make_table(&self, slots: u32);

    /// Submits without waiting.
    fn submit(&mut self, entries: &[squeue::Entry]);

    /// The next completions, so many.
    fn wait(&mut self, count: usize) -> Vec<cqueue::Entry>;

    /// Exchanges them for others, where that is possible.
    fn resize(&mut self, entries: u32);
}

impl Queues for IoUring {
    fn make_table(&self, slots: u32) {
        self.submitter().register_buffers_sparse(slots).expect("a table");
    }

    fn submit(&mut self, entries: &[squeue::Entry]) {
        for entry in entries {
            // SAFETY: the tests keep what the requests refer to until they have completed.
            unsafe { self.submission().push(entry) }.expect("room");
        }
        self.submitter().submit().expect("submits");
    }

    fn wait(&mut self, count: usize) -> Vec<cqueue::Entry> {
        let timeout = Timespec::new().sec(TIMEOUT.as_secs());
        let arguments = SubmitArgs::new().timespec(&timeout);
        let begin = Instant::now();
        let mut completed = Vec::new();
        while completed.len() < count {
            // A ring that polls returns early.
            let missing = count - completed.len();
            let result = self.submitter().submit_with_args(missing, &arguments);
            completed.extend(self.completion().take(missing));
            let done = completed.len() == count || begin.elapsed() < TIMEOUT;
            assert!(done, "{count} wanted: {result:?}, {completed:?}");
        }
        completed
    }

    fn resize(&mut self, _entries: u32) {}
}

impl Queues for Box<dyn Queues> {
    fn make_table(&self, slots: u32) {
        (**self).make_table(slots);
    }

    fn submit(&mut self, entries: &[squeue::Entry]) {
        (**self).submit(entries);
    }

    fn wait(&mut self, count: usize) -> Vec<cqueue::Entry> {
        (**self).wait(count)
    }

    fn resize(&mut self, entries: u32) {
        (**self).resize(entries);
    }
}

/// A device and a ring with an empty table of registered buffers.
pub(crate) struct Lending<Q = IoUring> {
    pub(crate) ring: Q,
    pub(crate) device: Device,
}

impl Lending {
    pub(crate) fn new() -> Self {
        Self::with(Device::open())
    }

    pub(crate) fn with(device: Device) -> Self {
        Self::on(IoUring::new(128).expect("a ring"), device)
    }
}

impl<Q: Queues> Lending<Q> {
    pub(crate) fn on(ring: Q, device: Device) -> Self {
        ring.make_table(128);
        Self { ring, device }
    }

    pub(crate) fn command(&self, operation: u32, slot: u16, words: [u64; 2]) -> squeue::Entry {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
        opcode::UringCmd16::new(Fd(self.device.0.as_raw_fd()), operation)
            .buf_index(Some(slot))
            .cmd(bytes)
            .build()
    }

    pub(crate) fn get(&self, slot: u16, source: u16, offset: u64, bytes: u32) -> squeue::Entry {
        self.get_with(slot, source, offset, bytes, 0)
    }

    pub(crate) fn get_with(
        &self,
        slot: u16,
        source: u16,
        offset: u64,
        bytes: u32,
        flags: u16,
    ) -> squeue::Entry {
        let rest = u64::from(bytes) | u64::from(source) << 32 | u64::from(flags) << 48;
        self.command(GET, slot, [offset, rest])
    }

    pub(crate) fn fresh(&self, slot: u16, send_slot: u16, bytes: u32) -> squeue::Entry {
        self.command(FRESH, slot, [u64::from(bytes) | u64::from(send_slot) << 32, 0])
    }

    pub(crate) fn put(&self, slot: u16) -> squeue::Entry {
        self.command(PUT, slot, [0, 0])
    }

    pub(crate) fn send(
        &self,
        slot: u16,
        target: u16,
        offset: u64,
        bytes: u32,
        flags: u16,
    ) -> squeue::Entry {
        let rest = u64::from(bytes) | u64::from(target) << 32 | u64::from(flags) << 48;
        self.command(SEND, slot, [offset, rest])
    }

    pub(crate) fn cancel(&self, user_data: u64, flags: u32) -> squeue::Entry {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&user_data.to_ne_bytes());
        bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
        opcode::UringCmd16::new(Fd(self.device.0.as_raw_fd()), CANCEL).cmd(bytes).build()
    }

    /// Submits without waiting.
    pub(crate) fn submit(&mut self, entries: &[squeue::Entry]) {
        self.ring.submit(entries);
    }

    /// The next completions, so many.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<cqueue::Entry> {
        self.ring.wait(count)
    }

    /// Runs one request to its completion.
    pub(crate) fn run(&mut self, entry: squeue::Entry) -> i32 {
        self.submit(&[entry]);
        self.wait(1)[0].result()
    }

    /// Runs the requests, each when the one before has succeeded; returns their results in order.
    pub(crate) fn chain(&mut self, entries: &[squeue::Entry]) -> Vec<i32> {
        let last = entries.len() - 1;
        let entries: Vec<_> = entries
            .iter()
            .enumerate()
            .map(|(index, entry)| {
                let link =
                    if index < last { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
                entry.clone().flags(link).user_data(index as u64)
            })
            .collect();
        self.submit(&entries);
        let mut results = vec![0; entries.len()];
        for completed in self.wait(entries.len()) {
            results[completed.user_data() as usize] = completed.result();
        }
        results
    }

    /// Writes what is in a slot to the beginning of a file, as much as it takes.
    pub(crate) fn write(&mut self, slot: u16, file: &impl AsRawFd, bytes: u32) -> i32 {
        self.run(write(slot, file, 0, bytes, 0))
    }

    /// Waits until no lend of this device is out.
    pub(crate) fn until_all_are_back(&self) -> Query {
        eventually("all lends are back", || {
            let query = self.device.query();
            (query.lends == 0 && query.lent == query.returned).then_some(query)
        })
    }
}

/// Writes bytes of a slot, from this position of the buffer on, to a position of a file.
pub(crate) fn write(
    slot: u16,
    file: &impl AsRawFd,
    from: usize,
    bytes: u32,
    to: u64,
) -> squeue::Entry {
    let fd = Fd(file.as_raw_fd());
    opcode::WriteFixed::new(fd, from as *const u8, bytes, slot).offset(to).build()
}

/// Whether tests are to take their long forms.
pub(crate) fn long_form() -> bool {
    std::env::var_os("HANDOFF_SOAK").is_some()
}

/// How long a test runs that finds more the longer it runs.
pub(crate) fn going_on(seconds: u64, minutes_of_long_form: u64) -> Duration {
    Duration::from_secs(if long_form() { 60 * minutes_of_long_form } else { seconds })
}

/// Bytes of memory that nobody has, once caches are dropped.
pub(crate) fn free_memory() -> u64 {
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root");
    let told = fs::read_to_string("/proc/meminfo").expect("reads");
    let free = told.lines().find_map(|line| line.strip_prefix("MemFree:")).expect("told");
    1_024 * free.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// A new file without a name, on a disk.
pub(crate) fn on_disk() -> File {
    tempfile::tempfile_in("/var/tmp").expect("a file")
}

/// A new file without a name and such bytes, on a disk, open for reading past the page cache.
pub(crate) fn direct(bytes: &[u8]) -> File {
    let path = format!("/var/tmp/direct-{}", std::process::id());
    fs::write(&path, bytes).expect("writes");
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
    fs::remove_file(&path).expect("removes");
    file.expect("opens")
}

/// An empty file in memory.
pub(crate) fn in_memory() -> File {
    let name = c"target";
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    File::from(fd)
}

/// Two ends of a connection over loopback.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let left = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
    (left, listener.accept().expect("accepts").0)
}
