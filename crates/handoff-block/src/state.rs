//! What a device leaves in memory: its specification, and a file in which its queues' engines work.
//!
//! `/run/handoff/blk/<number>/spec.json` is the specification. `state` in the same directory begins with
//! the map; then it has for each queue counters and the records of requests (`struct blk_region` in
//! `bpf/blk_request.h`, in pieces). All engines map it, also the one in the kernel. So readers of the file
//! see them at work, and it keeps what must survive a server: which legs of a mirror are out.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use serde::{Deserialize, Serialize};

use crate::life::{self, FILES, MAP_SPACE, Map, OPS, QUEUE_SPACE, QueueState, Statistics};
use crate::limits::Limits;
use crate::members;
use crate::pins;
use crate::private::make_private;
use crate::ring;
use crate::spec::{Engine, Kind, PassedOver, Spec};

/// Where the states of all devices are, and the logs of their servers.
pub const DIRECTORY: &str = "/run/handoff/blk";
/// The copy of a policy's object, in a device's directory.
pub(crate) const POLICY: &str = "policy.bpf.o";
const PAGE: usize = 4096;

/// The record beside the state, for whoever shows or recovers the device.
///
/// [`Directory::read`] and [`Server::record`](crate::Server::record) return it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// What was asked for.
    pub spec: Spec,
    /// A number that no other device has, also not a later one with this one's number.
    pub made: u64,
    /// The engine in use.
    pub engine: Engine,
    /// Better engines that were not taken, with the reasons.
    pub passed_over: Vec<PassedOver>,
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of memory that the server needs for it beside its code: buffers, rings and state.
    pub memory: u64,
    /// The limits of its requests.
    pub limits: Limits,
    /// Files that are disks which give ranges back by a command, by bit.
    #[serde(default)]
    pub by_command: u32,
    /// Its files when it was made, in order.
    pub parts: Vec<Part>,
}

impl Record {
    /// Why serving takes memory for which the kernel may wait until the server has written; `None` if it takes
    /// none, on disks.
    pub fn takes_memory(&self) -> Option<String> {
        ring::takes_memory(self.engine, &self.spec, &self.limits)
    }

    /// Files longer than the part that the device uses, with the bytes left over.
    pub fn unused(&self) -> impl Iterator<Item = (&Path, u64)> {
        let each = match self.spec.target {
            Kind::Mirror => self.size,
            Kind::Stripe => self.size / self.parts.len().max(1) as u64,
            _ => u64::MAX,
        };
        let files = self.spec.files.iter().map(PathBuf::as_path).zip(&self.parts);
        files
            .filter(move |(_, part)| part.size > each)
            .map(move |(file, part)| (file, part.size - each))
    }
}

/// Identity of a file or disk behind a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The device that a file lies on, or the number of a disk.
    pub device: u64,
    /// Of a file; 0 of a disk.
    pub inode: u64,
    /// Of a disk: the kernel's number for its appearance or last medium; 0 of a file.
    pub sequence: u64,
    /// Usable bytes.
    pub size: u64,
}

impl Part {
    /// Whether both are the same file or disk, of any length.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_on_same(other) && self.sequence == other.sequence
    }

    /// Whether all are files of one file system.
    pub(crate) fn have_one_store(all: &[Self]) -> bool {
        all.iter().all(|part| part.inode != 0 && part.device == all[0].device)
    }

    /// Whether both are the same file, or have the same number of a disk.
    pub(crate) fn is_on_same(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// Makes [`DIRECTORY`], which belongs to root alone.
///
/// # Errors
///
/// Errors of making it, and an unfit file in its place.
pub fn make_base() -> io::Result<()> {
    for path in Path::new(DIRECTORY).ancestors().take(2).collect::<Vec<_>>().iter().rev() {
        make_private(path)?;
    }
    Ok(())
}

/// Writes a file for us alone.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(bytes)
}

/// The directory of one device.
///
/// ```no_run
/// use handoff_block::state::Directory;
///
/// # fn main() -> std::io::Result<()> {
/// let directory = Directory::of(0);
/// let spec = directory.read()?.spec;
/// for queue in directory.counters(spec.queues, spec.depth)?.queues {
///     for operation in queue.operations {
///         println!("{}: {} requests, {} bytes", operation.name, operation.requests, operation.bytes);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Directory {
    id: u32,
    path: PathBuf,
}

impl Directory {
    /// The directory of device `id`, which need not exist.
    pub fn of(id: u32) -> Self {
        Self { id, path: PathBuf::from(DIRECTORY).join(id.to_string()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn record_path(&self) -> PathBuf {
        self.path.join("spec.json")
    }

    /// The copy of a policy's object.
    pub(crate) fn policy_path(&self) -> PathBuf {
        self.path.join(POLICY)
    }

    /// The copy of its successor.
    fn next_policy_path(&self) -> PathBuf {
        self.path.join("policy.bpf.o.new")
    }

    /// The socket for exchanging a policy.
    pub(crate) fn exchange_path(&self) -> PathBuf {
        self.path.join("exchange")
    }

    /// Writes down a policy's object; [`keep_policy`](Self::keep_policy) makes it the device's.
    pub(crate) fn write_policy(&self, object: &[u8]) -> io::Result<()> {
        write(&self.next_policy_path(), object)
    }

    /// From here on the object written down is the device's policy, whole.
    pub(crate) fn keep_policy(&self) -> io::Result<()> {
        fs::rename(self.next_policy_path(), self.policy_path())
    }

    /// Drops the object written down.
    pub(crate) fn drop_policy(&self) {
        let _ = fs::remove_file(self.next_policy_path());
    }

    /// Where engines work.
    fn state_path(&self) -> PathBuf {
        self.path.join("state")
    }

    pub(crate) fn make(&self) -> io::Result<()> {
        make_base()?;
        make_private(&self.path)
    }

    /// Writes the record, whole or not at all. Rewriting an existing one takes no memory.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(record)?;
        if fs::read(self.record_path()).is_ok_and(|known| known == text) {
            return Ok(());
        }
        let new = self.path.join("spec.json.new");
        write(&new, &text)?;
        fs::rename(new, self.record_path())?;
        // A file has an inode; a leg that was out from the start is nothing.
        let disks = record.parts.iter().filter(|part| part.inode == 0 && part.device != 0);
        members::mark(&self.path, disks.map(|part| part.device))
    }

    /// Maps what the device's servers read, and the log page written next, as far as they exist. `/run` can be
    /// swapped out like other memory, perhaps to this very device; mappings of a process that locks its memory
    /// cannot. If a file cannot be mapped, the old mapping stays. Returns whether all are mapped.
    pub fn hold(&self, held: &mut Held) -> bool {
        let whole = u64::MAX;
        let files = [
            (self.record_path(), whole),
            (self.state_path(), whole),
            (self.policy_path(), whole),
            (self.log_path(), 1),
        ];
        let mut all = true;
        for ((path, most), slot) in files.iter().zip(&mut held.mappings) {
            match Mapping::of_end(path, *most) {
                Ok(mapping) => *slot = Some(mapping),
                Err(error) if is_nothing(&error) => *slot = None,
                Err(_) => all = false,
            }
        }
        all
    }

    /// The log of the device's processes.
    pub fn log_path(&self) -> PathBuf {
        Path::new(DIRECTORY).join(format!("{}.log", self.id))
    }

    /// The record of a device.
    ///
    /// # Errors
    ///
    /// A device that this crate did not make has no record.
    pub fn read(&self) -> io::Result<Record> {
        let text = fs::read(self.record_path())?;
        serde_json::from_slice(&text).map_err(io::Error::other)
    }

    /// Forgets the device. Forgetting an unknown one is no error.
    pub fn remove(&self) {
        pins::remove(self.id);
        let disks = members::marked(&self.path);
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} stays behind: {error}", self.path.display());
            }
            _ => {}
        }
        disks.iter().for_each(|disk| members::look_again(disk));
    }

    /// The state's file, and the map at its beginning.
    pub(crate) fn map(&self) -> io::Result<(File, Map)> {
        let file = File::open(self.state_path())?;
        let mut map = [0; size_of::<Map>()];
        file.read_exact_at(&mut map, 0)?;
        // SAFETY: a plain structure of numbers, of the size that was read.
        let map = unsafe { ptr::read_unaligned(map.as_ptr().cast()) };
        Ok((file, map))
    }

    /// What the engines of a device with so many queues of this depth have counted.
    ///
    /// # Errors
    ///
    /// Errors of reading the file.
    pub fn counters(&self, queues: u16, depth: u16) -> io::Result<Counters> {
        let (file, map) = self.map()?;
        let mut all = Vec::new();
        let mut failures = BTreeMap::new();
        for queue in 0..queues {
            let mut bytes = [0; size_of::<QueueState>()];
            file.read_exact_at(&mut bytes, offset_of(queue, depth) as u64)?;
            // SAFETY: a plain structure of numbers, of the size that was read.
            let state: QueueState = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
            all.push(QueueCounters::from(&state.statistics));
            for (leg, failure) in (0..).zip(&state.failures).filter(|(_, noted)| noted.when != 0) {
                // Two queues may have met the same failure at the same time.
                let first = failures.entry(leg).or_insert(*failure);
                if failure.when < first.when {
                    *first = *failure;
                }
            }
        }
        let failed = |leg: &u32| map.is_out(*leg as usize);
        Ok(Counters {
            failed_legs: (0..map.files.min(FILES as u32)).filter(failed).collect(),
            failures: failures.into_iter().map(LegFailure::of).collect(),
            queues: all,
        })
    }
}

/// Files of a device that stay mapped until this is dropped: [`Directory::hold`].
#[derive(Debug, Default)]
pub struct Held {
    /// In the order of [`Directory::hold`].
    mappings: [Option<Mapping>; 4],
}

/// Whether there are no bytes to map.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

/// Counters of a device's engines since it was made.
///
/// [`Directory::counters`] returns them.
#[derive(Clone, Debug, Serialize)]
pub struct Counters {
    /// Legs of a mirror that are out, by their place in the list of files.
    pub failed_legs: Vec<u32>,
    /// The requests that took them out.
    pub failures: Vec<LegFailure>,
    /// By queue.
    pub queues: Vec<QueueCounters>,
}

/// The request that took a leg of a mirror out.
#[derive(Clone, Debug, Serialize)]
pub struct LegFailure {
    /// The leg, by its place in the list of files.
    pub leg: u32,
    /// Its operation: `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub operation: &'static str,
    /// Its first byte on the device.
    pub position: u64,
    /// Its length; 0 for a flush.
    pub length: u32,
    /// The error number from the leg.
    pub error: i32,
}

impl LegFailure {
    fn of((leg, noted): (u32, life::Failure)) -> Self {
        let operation = NAMES.get(noted.op as usize).copied().flatten().unwrap_or("unknown");
        let life::Failure { position, length, error, .. } = noted;
        Self { leg, operation, position, length, error: error.saturating_neg() }
    }
}

impl fmt::Display for LegFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.error);
        write!(f, "{} of {} bytes at {}: {error}", self.operation, self.length, self.position)
    }
}

/// The names of operations.
const NAMES: [Option<&str>; OPS] =
    [Some("read"), Some("write"), Some("flush"), Some("discard"), None, Some("write_zeroes")];

/// The counters of one queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueCounters {
    /// Requests that failed.
    pub errors: u64,
    /// Submissions to the files.
    pub pieces: u64,
    /// Of these, continuations after a short result.
    pub continued: u64,
    /// Turns of the engine's loop.
    pub turns: u64,
    /// By operation.
    pub operations: Vec<Operation>,
}

/// One kind of request.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub name: &'static str,
    /// Answered without an error.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time from arrival to the first result of a file.
    pub first_result: Vec<Bucket>,
    /// Time from arrival to the answer.
    pub answer: Vec<Bucket>,
}

/// Requests that took so long.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bucket {
    /// At least, in nanoseconds; less than twice as long.
    pub from_ns: u64,
    /// How many.
    pub requests: u32,
}

impl From<&Statistics> for QueueCounters {
    fn from(statistics: &Statistics) -> Self {
        let buckets = |counts: &[u32]| {
            let filled = counts.iter().enumerate().filter(|(_, requests)| **requests > 0);
            filled
                .map(|(bucket, requests)| Bucket { from_ns: 1 << bucket, requests: *requests })
                .collect::<Vec<_>>()
        };
        let operations = NAMES.iter().enumerate().filter_map(|(op, name)| {
            let operation = Operation {
                name: (*name)?,
                requests: statistics.requests[op],
                bytes: statistics.bytes[op],
                first_result: buckets(&statistics.latency[0][op]),
                answer: buckets(&statistics.latency[1][op]),
            };
            (!operation.answer.is_empty()).then_some(operation)
        });
        Self {
            errors: statistics.errors,
            pieces: statistics.pieces,
            continued: statistics.continued,
            turns: statistics.turns,
            operations: operations.collect(),
        }
    }
}

/// Bytes of a queue's [`Mapping`].
pub(crate) fn region_bytes(depth: u16) -> usize {
    MAP_SPACE + queue_bytes(depth)
}

/// Bytes of one queue's part of the file.
fn queue_bytes(depth: u16) -> usize {
    let requests = usize::from(depth).next_power_of_two() * life::request_bytes();
    (QUEUE_SPACE + requests).next_multiple_of(PAGE)
}

fn offset_of(queue: u16, depth: u16) -> usize {
    MAP_SPACE + usize::from(queue) * queue_bytes(depth)
}

/// Bytes of the whole file.
pub(crate) fn bytes(queues: u16, depth: u16) -> usize {
    offset_of(queues, depth)
}

/// The open file of a device's state.
#[derive(Debug)]
pub(crate) struct State {
    file: File,
    depth: u16,
}

impl State {
    /// Makes the state of a new device.
    pub(crate) fn make(
        directory: &Directory,
        map: &Map,
        queues: u16,
        depth: u16,
    ) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        Self::begin(options.open(directory.state_path())?, map, queues, depth)
    }

    /// Makes an empty file the state of a device.
    pub(crate) fn begin(file: File, map: &Map, queues: u16, depth: u16) -> io::Result<Self> {
        file.set_len(bytes(queues, depth) as u64)?;
        // SAFETY: a structure of numbers without padding, its size asserted where it is declared.
        let bytes = unsafe {
            std::slice::from_raw_parts(ptr::from_ref(map).cast::<u8>(), size_of::<Map>())
        };
        file.write_all_at(bytes, 0)?;
        Ok(Self { file, depth })
    }

    /// Takes over the state of a device whose server is gone: all stays except the end of its engines.
    pub(crate) fn take_over(directory: &Directory, queues: u16, depth: u16) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(directory.state_path())?;
        let (len, wanted) = (file.metadata()?.len(), bytes(queues, depth) as u64);
        // Access to a mapping behind the end of its file kills the process.
        if len != wanted {
            return Err(io::Error::other(format!("it has {len} bytes, not {wanted}")));
        }
        for queue in 0..queues {
            file.write_all_at(&[0; 16], offset_of(queue, depth) as u64)?;
        }
        Ok(Self { file, depth })
    }

    /// Maps what one queue's engine works in.
    pub(crate) fn map(&self, queue: u16) -> io::Result<Mapping> {
        let len = region_bytes(self.depth);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let mapping = Mapping { address: NonNull::new(address.cast()).expect("not null"), len };
        let parts =
            [(0, MAP_SPACE, 0), (MAP_SPACE, queue_bytes(self.depth), offset_of(queue, self.depth))];
        for (at, len, offset) in parts {
            // SAFETY: inside of the mapping just made, which nobody else knows.
            unsafe {
                mmap(
                    address.cast::<u8>().add(at).cast(),
                    len,
                    protection,
                    MapFlags::SHARED | MapFlags::FIXED,
                    &self.file,
                    offset as u64,
                )?;
            }
        }
        // The first touch of a page when memory is short may wait for memory that waits for this device.
        // SAFETY: the mapping just made, which stays what it is.
        unsafe { madvise(address, len, Advice::LinuxPopulateWrite)? };
        Ok(mapping)
    }
}

/// A `struct blk_region` in memory shared with the kernel's loop and with readers.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// The last pages of a file, so many or all, for reading.
    fn of_end(path: &Path, most: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let end = file.metadata()?.len();
        if end == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let offset = end.saturating_sub(most) / PAGE as u64 * PAGE as u64;
        let len = usize::try_from(end - offset).map_err(io::Error::other)?;
        let flags = MapFlags::SHARED;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, flags, &file, offset)? };
        let mapping = Self { address: NonNull::new(address.cast()).expect("not null"), len };
        // SAFETY: the mapping just made, which stays what it is.
        unsafe { madvise(address, len, Advice::LinuxPopulateRead)? };
        Ok(mapping)
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How the loop in the kernel ended: by itself or not, and what the driver refused.
    pub(crate) fn ending(&self) -> (bool, i32) {
        // SAFETY: inside of the mapping; the loop that writes there has returned.
        let state =
            unsafe { ptr::read_volatile(self.address.as_ptr().add(MAP_SPACE).cast::<[u32; 3]>()) };
        (state[2] != 0, state[1].cast_signed())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and everybody who used it held this.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::existing::existing;
    use crate::target;

    /// The directory of a device of two files that nobody serves.
    fn directory(path: &Path) -> (Directory, Record, Map) {
        let directory = Directory { id: 7, path: path.to_owned() };
        let files = vec!["/a".into(), "/b".into()];
        let spec = Spec { target: Kind::Stripe, files, chunk: 8192, ..Spec::default() };
        let part = |inode| Part { device: 5, inode, sequence: 0, size: 1 << 20 };
        let parts = vec![part(11), part(12)];
        let (mut map, size) = target::lay_out(&spec, &[1 << 20; 2]).expect("a stripe");
        map.one_store = Part::have_one_store(&parts).into();
        let (engine, passed_over) = (Engine::UserAuto, Vec::new());
        let limits = Limits { memory_alignment: 512, ..Limits::NONE };
        let memory = 1 << 20;
        let by_command = 0;
        let record =
            Record { spec, made: 3, engine, passed_over, size, memory, limits, by_command, parts };
        directory.write(&record).expect("written");
        State::make(&directory, &map, 2, 4).expect("made");
        (directory, record, map)
    }

    #[test]
    fn of_a_log_that_grows_the_last_page_is_held() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("log");
        let mut bytes = vec![b'a'; 3 * PAGE];
        bytes.push(b'b');
        for (end, held) in [(1, 1), (PAGE, PAGE), (PAGE + 1, 1), (bytes.len(), 1)] {
            fs::write(&path, &bytes[..end]).expect("written");
            let mapping = Mapping::of_end(&path, 1).expect("mapped");
            assert_eq!(mapping.len(), held, "of {end}");
            // SAFETY: inside of the mapping, and nobody changes the file.
            let last = unsafe { *mapping.as_ptr().add(held - 1) };
            assert_eq!(last, bytes[end - 1], "of {end}");
            assert_eq!(Mapping::of_end(&path, u64::MAX).expect("mapped").len(), end);
        }
        fs::write(&path, []).expect("written");
        let nothing = Mapping::of_end(&path, 1).expect_err("there is nothing to map");
        assert!(is_nothing(&nothing), "{nothing}");
    }

    #[test]
    fn what_cannot_be_mapped_anew_stays_held() {
        let place = tempfile::tempdir().expect("a directory");
        let (directory, ..) = directory(place.path());
        let mut held = Held::default();
        let lens = |held: &Held| held.mappings.each_ref().map(|it| it.as_ref().map(Mapping::len));
        assert!(directory.hold(&mut held), "there is neither a policy nor a log");
        let [Some(record), Some(_), None, None] = lens(&held) else { panic!("{held:?}") };
        let before = lens(&held);
        // A directory can be opened but not mapped, like a file of a process without descriptors.
        fs::remove_file(directory.record_path()).expect("removed");
        fs::create_dir(directory.record_path()).expect("made");
        assert!(!directory.hold(&mut held));
        assert_eq!(lens(&held), before);
        fs::remove_dir(directory.record_path()).expect("removed");
        fs::write(directory.record_path(), vec![b' '; record + 1]).expect("written");
        assert!(directory.hold(&mut held));
        assert_eq!(lens(&held)[0], Some(record + 1));
    }

    #[test]
    fn damaged_states_are_refused_or_harmless() {
        let place = tempfile::tempdir().expect("a directory");
        let (directory, record, map) = directory(place.path());
        existing(&directory, 7).expect("as it was made");
        let honest = [directory.record_path(), directory.state_path()]
            .map(|path| (path.clone(), fs::read(path).expect("a file")));
        let mutants = if std::env::var_os("HANDOFF_SOAK").is_some() { 10_000 } else { 500 };
        let (mut state, mut refused) = (0x9e37_79b9_7f4a_7c15u64, 0);
        let mut below = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 16) as usize % limit
        };
        for number in 0..mutants {
            let (path, whole) = &honest[number % 2];
            let mut bytes = whole.clone();
            // Of the state, mostly the map; of both, sometimes only a part.
            let span = bytes.len().min(if below(4) == 0 { usize::MAX } else { 1024 });
            for _ in 0..1 + below(4) {
                let at = below(span);
                bytes[at] = if below(2) == 0 { below(256) as u8 } else { b'0' + below(10) as u8 };
            }
            if below(8) == 0 {
                bytes.truncate(below(bytes.len()));
            }
            fs::write(path, &bytes).expect("written");
            let _ = directory.counters(2, 4);
            let whole_state = State::take_over(&directory, 2, 4).is_ok();
            match existing(&directory, 7) {
                Ok(found) => {
                    // What decides where bytes lie is unchanged.
                    assert_eq!(Map { failed: map.failed, ..found.map }, map, "{number}");
                    assert_eq!(found.record.size, record.size, "{number}");
                    let sizes = |record: &Record| {
                        record.parts.iter().map(|part| part.size).collect::<Vec<_>>()
                    };
                    assert_eq!(sizes(&found.record), sizes(&record), "{number}");
                    refused += usize::from(!whole_state);
                }
                Err(_) => refused += 1,
            }
            fs::write(path, whole).expect("written");
        }
        assert!(refused > mutants / 4, "only {refused} of {mutants} were refused");
        existing(&directory, 7).expect("as it was made");
    }
}
