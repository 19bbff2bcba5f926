//! What a device leaves in memory: its specification, and a file in which its queues' engines work.
//!
//! `/run/handoff/blk/<number>/spec.json` is the [record](Record). `state` in the same directory begins with
//! the map; then it has for each queue counters and the records of requests (`struct blk_region` in
//! `bpf/blk_request.h`, in pieces). All engines map it, also the one in the kernel. So readers of the file
//! see them at work, and it keeps what must survive a server: which legs of a mirror are out. Behind the queues' parts
//! are the chunks of a mirror with a record, which all queues share. The last number in the map's page is the layout's,
//! as in the record: 2 has chunks. `/run/handoff/blk/<number>.state` is the same file, in case
//! somebody removes the directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::counters::RECOVER;
pub use crate::counters::{Bucket, Counters, LegFailure, Operation, QueueCounters};
use crate::error::Error;
use crate::members;
use crate::pins;
use crate::private::make_private;
pub use crate::record::{Part, Record, RecordedMirror};
use crate::record::{VERSION, check_version};
use crate::request::{
    self, Chunk, FILES, Failure, MAP_SPACE, Map, QUEUE_SPACE, QueueState, Request, WAITS_OVER,
};
use crate::spec::Spec;

/// Where the states of all devices are, and the logs of their servers.
pub const DIRECTORY: &str = "/run/handoff/blk";
/// The copy of a policy's object, in a device's directory.
pub(crate) const POLICY: &str = "policy.bpf.o";
const PAGE: usize = 4096;

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
        self.write_text(&serde_json::to_vec_pretty(record)?)?;
        self.mark_disks(record)
    }

    fn mark_disks(&self, record: &Record) -> io::Result<()> {
        // A file has an inode; a leg that was out from the start is nothing.
        let disks = record.parts.iter().filter(|part| part.inode == 0 && !part.is_nothing());
        members::mark(&self.path, disks.map(|part| part.device))
    }

    fn write_text(&self, text: &[u8]) -> io::Result<()> {
        if fs::read(self.record_path()).is_ok_and(|known| known == text) {
            return Ok(());
        }
        let new = self.path.join("spec.json.new");
        write(&new, text)?;
        fs::rename(new, self.record_path())
    }

    /// Whether all is there that a device leaves.
    pub(crate) fn is_whole(&self, has_policy: bool) -> bool {
        let mut paths = vec![self.record_path(), self.state_path()];
        paths.extend(has_policy.then(|| self.policy_path()));
        paths.iter().all(|path| path.exists())
    }

    /// Puts back what is missing, as it was held, or as the device was made.
    pub(crate) fn put_back(&self, record: &Record, state: &File, held: &Held) -> io::Result<()> {
        let [known, _, policy, _] = &held.mappings;
        self.make()?;
        if let Some(policy) = policy.as_ref().filter(|_| !self.policy_path().exists()) {
            self.write_policy(policy.as_slice()).and_then(|()| self.keep_policy())?;
        }
        match known {
            _ if self.record_path().exists() => {}
            Some(text) => self.write_text(text.as_slice())?,
            None => self.write(record)?,
        }
        self.name_state(state)?;
        self.mark_disks(record)
    }

    /// The second name of the state.
    fn state_beside(&self) -> PathBuf {
        self.path.with_extension("state")
    }

    /// Gives the state its names.
    pub(crate) fn name_state(&self, state: &File) -> io::Result<()> {
        for path in [self.state_path(), self.state_beside()] {
            let names = |path: &Path| {
                let metadata = fs::symlink_metadata(path)?;
                Ok::<_, io::Error>((metadata.dev(), metadata.ino()))
            };
            let own = state.metadata()?;
            match names(&path) {
                Ok(named) if named == (own.dev(), own.ino()) => continue,
                Ok(_) => fs::remove_file(&path)?,
                Err(_) => {}
            }
            // By the file itself it takes CAP_DAC_READ_SEARCH.
            let file = format!("/proc/self/fd/{}", state.as_raw_fd());
            rustix::fs::linkat(CWD, file, CWD, &path, AtFlags::SYMLINK_FOLLOW)?;
        }
        Ok(())
    }

    /// Processes that have the state open: the device's supervisor, and servers that wait.
    pub fn processes(&self) -> Vec<u32> {
        let is_open_in = |process: &Path, state: &fs::Metadata| {
            let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            let mut files = files.filter_map(|file| fs::metadata(file.path()).ok());
            files.any(|file| (file.dev(), file.ino()) == (state.dev(), state.ino()))
        };
        let Ok(state) = fs::metadata(self.state_path()) else { return Vec::new() };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbered =
            processes.filter_map(|it| Some((it.file_name().to_str()?.parse().ok()?, it.path())));
        numbered.filter(|(_, path)| is_open_in(path, &state)).map(|(process, _)| process).collect()
    }

    /// The state of an existing device.
    pub(crate) fn open_state(&self) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true);
        options.open(self.state_path()).or_else(|_| options.open(self.state_beside()))
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
                // What was removed can be put back from what is held.
                Err(error) if is_nothing(&error) => {}
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
        Record::parse(&fs::read(self.record_path())?)
    }

    /// The record of a device that must have one.
    pub(crate) fn known(&self) -> Result<Record, Error> {
        self.read().map_err(|error| Error::unknown_device(self.id, error))
    }

    /// Forgets the device. Forgetting an unknown one is no error.
    pub fn remove(&self) {
        pins::remove(self.id);
        let disks = members::marked(&self.path);
        let _ = fs::remove_file(self.state_beside());
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{} stays behind: {error}", self.path.display());
            }
            _ => {}
        }
        disks.iter().for_each(|disk| members::look_again(disk));
    }

    /// What the engines of a device with so many queues of this depth have counted.
    ///
    /// # Errors
    ///
    /// Errors of reading the file.
    pub fn counters(&self, queues: u16, depth: u16) -> io::Result<Counters> {
        let file = File::open(self.state_path())?;
        let map = map_of(&file)?;
        let mut all = Vec::new();
        let mut failures = BTreeMap::new();
        for queue in 0..queues {
            let mut bytes = [0; size_of::<QueueState>()];
            file.read_exact_at(&mut bytes, place_of(queue, depth) as u64)?;
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

/// The map at the beginning of a state, if this program knows its layout.
pub(crate) fn map_of(state: &File) -> io::Result<Map> {
    let mut page = [0; MAP_SPACE];
    state.read_exact_at(&mut page, 0)?;
    let version = page.last_chunk().expect("a number");
    check_version(u32::from_ne_bytes(*version))?;
    // SAFETY: a plain structure of numbers, shorter than what was read.
    Ok(unsafe { ptr::read_unaligned(page.as_ptr().cast()) })
}

fn bytes_of(map: &Map) -> &[u8] {
    // SAFETY: a structure of numbers without padding, its size asserted where it is declared.
    unsafe { std::slice::from_raw_parts(ptr::from_ref(map).cast::<u8>(), size_of::<Map>()) }
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

/// For what a state has room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rooms {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    /// Of a mirror with a record.
    pub(crate) chunks: usize,
}

impl Rooms {
    pub(crate) fn of(spec: &Spec, chunks: usize) -> Self {
        Self { queues: spec.queues, depth: spec.depth, chunks }
    }

    /// Bytes of the whole file.
    pub(crate) fn bytes(self) -> usize {
        // Behind the chunks is what the clerk writes to the legs.
        self.record_at() + if self.chunks > 0 { PAGE } else { 0 }
    }

    fn record_at(self) -> usize {
        self.chunks_at() + self.chunk_bytes()
    }

    fn chunks_at(self) -> usize {
        place_of(self.queues, self.depth)
    }

    fn chunk_bytes(self) -> usize {
        chunk_bytes(self.chunks)
    }
}

/// Bytes of so many chunks, rounded up to a power of two.
fn chunk_bytes(chunks: usize) -> usize {
    match chunks {
        0 => 0,
        _ => (chunks.next_power_of_two() * size_of::<Chunk>()).next_multiple_of(PAGE),
    }
}

/// Bytes of a queue's [`Mapping`], and where the chunks are in it.
pub(crate) fn region_bytes(depth: u16, chunks: usize) -> (usize, usize) {
    let at = MAP_SPACE + queue_bytes(depth);
    (at + chunk_bytes(chunks), at)
}

/// Bytes of one queue's part of the file.
fn queue_bytes(depth: u16) -> usize {
    let requests = usize::from(depth).next_power_of_two() * request::request_bytes();
    (QUEUE_SPACE + requests).next_multiple_of(PAGE)
}

fn place_of(queue: u16, depth: u16) -> usize {
    MAP_SPACE + usize::from(queue) * queue_bytes(depth)
}

/// A file without a name for the state of a new device.
pub(crate) fn anonymous() -> io::Result<File> {
    make_base()?;
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    Ok(rustix::fs::open(DIRECTORY, flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Says by which layout a state is written.
fn number(state: &File) -> io::Result<()> {
    state.write_all_at(&VERSION.to_ne_bytes(), (MAP_SPACE - size_of::<u32>()) as u64)
}

/// Takes legs of a mirror out, each with its error number, while nobody serves it.
pub(crate) fn take_out(state: &File, rooms: Rooms, legs: &[(usize, i32)]) -> io::Result<()> {
    let Rooms { queues, depth, .. } = rooms;
    if queues == 0 || state.metadata()?.len() != rooms.bytes() as u64 {
        return Err(io::Error::other("it has another length"));
    }
    let mut failed = map_of(state)?.failed;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let when = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1);
    for (leg, error) in legs {
        failed |= 1 << leg;
        let note = Failure { when, op: RECOVER, error: -error, ..Failure::default() };
        // SAFETY: a structure of numbers without padding, its size asserted where it is declared.
        let note = unsafe {
            std::slice::from_raw_parts(ptr::from_ref(&note).cast::<u8>(), size_of::<Failure>())
        };
        let place = place_of(0, depth) + offset_of!(QueueState, failures) + leg * note.len();
        state.write_all_at(note, place as u64)?;
    }
    state.write_all_at(&failed.to_ne_bytes(), offset_of!(Map, failed) as u64)
}

/// The open file of a device's state.
#[derive(Debug)]
pub(crate) struct State {
    file: File,
    rooms: Rooms,
}

impl From<State> for File {
    fn from(state: State) -> Self {
        state.file
    }
}

impl State {
    /// Makes an empty file the state of a device.
    pub(crate) fn begin(file: File, map: &Map, rooms: Rooms) -> io::Result<Self> {
        file.set_len(rooms.bytes() as u64)?;
        file.write_all_at(bytes_of(map), 0)?;
        number(&file)?;
        Ok(Self { file, rooms })
    }

    /// Takes over the state of a device whose server is gone: all stays except the end of its engines, and what an
    /// older layout had otherwise of the map.
    pub(crate) fn take_over(file: File, map: &Map, rooms: Rooms) -> io::Result<Self> {
        let Rooms { queues, depth, .. } = rooms;
        let (len, wanted) = (file.metadata()?.len(), rooms.bytes() as u64);
        // Access to a mapping behind the end of its file kills the process.
        if len != wanted {
            return Err(io::Error::other(format!("it has {len} bytes, not {wanted}")));
        }
        // Legs that are out are known there, and of which the records know.
        let (before, behind) = (offset_of!(Map, failed), offset_of!(Map, size));
        file.write_all_at(&bytes_of(map)[..before], 0)?;
        file.write_all_at(&bytes_of(map)[behind..offset_of!(Map, recorded)], behind as u64)?;
        number(&file)?;
        for queue in 0..queues {
            file.write_all_at(&[0; 16], place_of(queue, depth) as u64)?;
        }
        Ok(Self { file, rooms })
    }

    /// Its file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Maps what one queue's engine works in.
    pub(crate) fn map(&self, queue: u16) -> io::Result<Mapping> {
        let Rooms { depth, chunks, .. } = self.rooms;
        let (len, chunks_at) = region_bytes(depth, chunks);
        self.map_parts(
            len,
            [
                (0, MAP_SPACE, 0),
                (MAP_SPACE, queue_bytes(depth), place_of(queue, depth)),
                (chunks_at, self.rooms.chunk_bytes(), self.rooms.chunks_at()),
            ],
        )
    }

    /// Maps all of it, for the clerk.
    pub(crate) fn map_whole(&self) -> io::Result<Shared> {
        let len = self.rooms.bytes();
        let mapping = self.map_parts(len, [(0, len, 0)])?;
        Ok(Shared { mapping, rooms: self.rooms })
    }

    /// Maps parts of the file: where in the mapping, how many bytes, and where in the file.
    fn map_parts<const PARTS: usize>(
        &self,
        len: usize,
        parts: [(usize, usize, usize); PARTS],
    ) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let mapping = Mapping { address: NonNull::new(address.cast()).expect("not null"), len };
        for (at, len, offset) in parts.into_iter().filter(|(_, len, _)| *len > 0) {
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

    /// The bytes of a file that is replaced, and not changed.
    fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping has so many bytes, and lives as long as this.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
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

/// A whole state in memory, as the clerk sees it while the engines are at work.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Mapping,
    rooms: Rooms,
}

impl Shared {
    fn map(&self) -> *mut Map {
        self.mapping.as_ptr().cast()
    }

    /// Legs that are out, by bit.
    pub(crate) fn failed(&self) -> &AtomicU32 {
        // SAFETY: the map is at the beginning; all write the word as a whole.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.map()).failed) }
    }

    /// Legs that are out by the others' records, by bit.
    pub(crate) fn recorded(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.map()).recorded) }
    }

    /// Takes a leg out; `false` if it is the last one.
    pub(crate) fn take_out(&self, leg: usize, noted: &Failure) -> bool {
        // SAFETY: there is a queue, whose state is behind the map's space; the mapping stays while this lives.
        unsafe {
            let queue = self.mapping.as_ptr().add(MAP_SPACE).cast::<QueueState>();
            request::take_out(self.map(), queue, 1 << leg, noted)
        }
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        // SAFETY: the chunks are in the mapping, page by page, and everybody's accesses to them are atomic.
        unsafe {
            let at = self.mapping.as_ptr().add(self.rooms.chunks_at());
            std::slice::from_raw_parts(at.cast(), self.rooms.chunks)
        }
    }

    fn record_page(&self) -> *mut [u8; PAGE] {
        // SAFETY: the last page of the mapping.
        unsafe { self.mapping.as_ptr().add(self.rooms.record_at()).cast() }
    }

    /// What a clerk was about to write to the legs.
    pub(crate) fn record(&self) -> [u8; PAGE] {
        // SAFETY: only the clerk uses the page, and there is one.
        unsafe { self.record_page().read() }
    }

    /// Keeps what the clerk is about to write for the next one.
    pub(crate) fn keep_record(&mut self, page: &[u8; PAGE]) {
        // SAFETY: as above.
        unsafe { self.record_page().write(*page) };
    }

    /// A queue's request of a tag, which [`Waiting`] guards.
    fn request(&self, queue: u16, tag: u16) -> Option<*mut Request> {
        let Rooms { queues, depth, .. } = self.rooms;
        let at = place_of(queue, depth) + QUEUE_SPACE + usize::from(tag) * request::request_bytes();
        // SAFETY: inside of the mapping, by the check.
        (queue < queues && tag < depth).then(|| unsafe { self.mapping.as_ptr().add(at).cast() })
    }

    /// The request of a queue and a tag, if it waits for the clerk.
    pub(crate) fn waiting(&self, queue: u16, tag: u16) -> Option<Waiting<'_>> {
        let request = self.request(queue, tag)?;
        // SAFETY: inside of the mapping, and aligned; engines write the number as a whole.
        let waits = unsafe { AtomicU16::from_ptr(&raw mut (*request).waits) };
        let what = waits.load(Ordering::Acquire);
        if what == 0 || what & WAITS_OVER != 0 {
            return None;
        }
        // SAFETY: the engine leaves a request alone while it waits.
        let (position, length) = unsafe { ((*request).position, (*request).length) };
        // SAFETY: as above; the clerk has the error alone.
        let error = unsafe { AtomicI32::from_ptr(&raw mut (*request).error) };
        Some(Waiting { waits, error, what, bytes: position..position + u64::from(length) })
    }
}

/// A request that waits for the clerk.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    waits: &'a AtomicU16,
    error: &'a AtomicI32,
    /// [`WAITS_BIT`](request::WAITS_BIT), or for the record.
    pub(crate) what: u16,
    /// The bytes of the device that it changes.
    pub(crate) bytes: Range<u64>,
}

impl Waiting<'_> {
    /// Lets the engine have it again: it goes on, or fails with this error number.
    pub(crate) fn answer(self, refused: Option<i32>) {
        if let Some(number) = refused {
            self.error.store(-number, Ordering::Relaxed);
        }
        self.waits.store(self.what | WAITS_OVER, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::existing::existing;
    use crate::{Engine, Kind, Limits, target};

    const ROOMS: Rooms = Rooms { queues: 2, depth: 4, chunks: 0 };

    /// The directory of a device of two files that nobody serves.
    fn directory(path: &Path) -> (Directory, Record, Map) {
        let directory = Directory { id: 7, path: path.to_owned() };
        let files = vec!["/a".into(), "/b".into()];
        let spec = Spec { target: Kind::Stripe, files, chunk: 8192, ..Spec::default() };
        let part = |inode| Part { device: 5, inode, size: 1 << 20, ..Part::default() };
        let parts = vec![part(11), part(12)];
        let (mut map, size) = target::lay_out(&spec, &[1 << 20; 2]).expect("a stripe");
        map.one_store = Part::have_one_store(&parts).into();
        let (engine, passed_over) = (Engine::UserAuto, Vec::new());
        let limits = Limits { memory_alignment: 512, ..Limits::NONE };
        let memory = 1 << 20;
        let (version, by_command) = (VERSION, 0);
        let record = Record {
            version,
            spec,
            made: 3,
            engine,
            passed_over,
            size,
            memory,
            limits,
            by_command,
            parts,
            mirror: None,
        };
        directory.write(&record).expect("written");
        let mut options = File::options();
        let state = options.read(true).write(true).create(true).open(directory.state_path());
        State::begin(state.expect("a file"), &map, ROOMS).expect("made");
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
        let found = || -> io::Result<_> {
            let (record, state) = (directory.read()?, directory.open_state()?);
            existing(record, &state, 7).map_err(io::Error::other)
        };
        found().expect("as it was made");
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
            let taken =
                directory.open_state().and_then(|state| State::take_over(state, &map, ROOMS));
            let (whole_state, found) = (taken.is_ok(), found());
            match found {
                Ok(found) => {
                    // What decides where bytes lie is unchanged.
                    let Map { failed, recorded, .. } = map;
                    assert_eq!(Map { failed, recorded, ..found.map }, map, "{number}");
                    assert_eq!(found.map.recorded & !found.map.failed, 0, "{number}");
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
        found().expect("as it was made");
    }
}
