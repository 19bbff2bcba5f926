//! The ring of a queue.
//!
//! Contracts:
//! - a ring belongs to the thread that makes it;
//! - a new ring is filled once, and the kernel keeps the memory that this took. After that, requests take no
//!   memory that the kernel would wait for, except those that [`takes_memory`] reports: memory may be short
//!   until this very queue has written.
//!
//! Kernel interface: `io_uring/alloc_cache.h` and `io_uring/rsrc.c`; tried on Linux 7.2.
//! Capability: CAP_IPC_LOCK, or a limit on locked memory of a page for each request.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::ptr;

use handoff_sys::workers;
use io_uring::{IoUring, opcode, squeue, types};

use crate::limits::{Limits, queue_limit};
use crate::request::{FILES, PIECES, Recorded};
use crate::spec::{Engine, Kind, SEGMENTS_KEPT, Spec};

/// How many objects of a kind the kernel keeps for a ring (`IO_ALLOC_CACHE_MAX`).
const KEPT: u32 = 128;
/// A device's char device, and its backings.
const ALL_FILES: usize = 1 + FILES;
/// The place of the clerk's bell, behind all files.
pub(crate) const BELL: u32 = ALL_FILES as u32;

/// What a ring is made for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) engine: Engine,
    /// Requests under way.
    pub(crate) depth: u16,
    /// Bytes of the largest request.
    pub(crate) max_request: u32,
    /// The most pieces of a request under way at once.
    pieces: u32,
    /// Whether the ring has one worker thread, from the beginning. No other starts when memory is short.
    one_worker: bool,
    /// Of a mirror with a record.
    pub(crate) recorded: Option<Recorded>,
    /// The descriptor of its clerk's ring.
    pub(crate) clerk: RawFd,
}

impl Shape {
    /// `of_disks` says whether all backings are whole disks or partitions.
    pub(crate) fn of(engine: Engine, spec: &Spec, of_disks: bool) -> Self {
        // A request begins at any block of a chunk.
        let beyond = spec.max_request.saturating_sub(spec.block_size);
        let chunks = u64::from(beyond).checked_div(spec.chunk).unwrap_or(0) as usize + 2;
        let pieces = match spec.target {
            Kind::Null | Kind::Loop => 1,
            // At the end of a file.
            Kind::Linear => 2,
            Kind::Mirror => spec.files.len().max(chunks),
            Kind::Stripe => chunks,
            Kind::Policy => PIECES,
        };
        Self {
            engine,
            depth: spec.depth,
            max_request: spec.max_request,
            pieces: pieces.clamp(1, PIECES) as u32,
            one_worker: engine == Engine::Bpf || (of_disks && spec.direct),
            recorded: None,
            clerk: -1,
        }
    }

    pub(crate) fn recorded(self, recorded: Option<Recorded>) -> Self {
        Self { recorded, ..self }
    }

    /// Chunks of the write-intent bitmap.
    pub(crate) fn chunks(&self) -> usize {
        self.recorded.map_or(0, |recorded| recorded.chunks())
    }
}

/// Why serving disks takes memory for which the kernel would wait, if it does, and what to change.
pub(crate) fn takes_memory(engine: Engine, spec: &Spec, limits: &Limits) -> Option<String> {
    let Shape { depth, pieces, .. } = Shape::of(engine, spec, true);
    let depth = u32::from(depth);
    if engine.lends() && limits.max_segments > SEGMENTS_KEPT {
        let most = limits.max_segments;
        return Some(format!(
            "requests have up to {most} segments: --max-segments {SEGMENTS_KEPT}"
        ));
    }
    let kept = (KEPT / pieces).min(KEPT - ALL_FILES as u32);
    if depth > kept {
        return Some(format!("more requests are under way than the kernel keeps: --depth {kept}"));
    }
    let requests = u64::from(spec.queues) * u64::from(depth);
    spec.files.iter().find_map(|file| {
        let disk = std::fs::metadata(file).ok()?.rdev();
        let (file, most) = (file.display(), queue_limit(disk, "max_sectors_kb")? << 10);
        if most < spec.max_request.into() {
            let whole = most & !4095;
            return Some(format!("{file} cuts requests: --max-request {whole}"));
        }
        let room = queue_limit(disk, "nr_requests").filter(|room| *room < requests)?;
        Some(format!("{file} has room for {room} requests, of which {requests} may be under way"))
    })
}

/// The ring of a queue, with tables for the files and buffers of its device, and room for commands beside
/// its requests.
pub(crate) fn make(shape: Shape, commands_beside: u32) -> io::Result<IoUring> {
    let Shape { engine, depth, pieces, one_worker, .. } = shape;
    workers::keep()?;
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_no_sqarray()
        .setup_submit_all()
        .build(entries(depth, commands_beside))?;
    ring.submitter().register_files_sparse(BELL + u32::from(shape.recorded.is_some()))?;
    if engine.lends() {
        ring.submitter().register_buffers_sparse(tags(depth))?;
    }
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let file = types::Fd(null.as_raw_fd());
    let requests =
        (u32::from(depth) * (1 + pieces) + commands_beside + 1).min(ring.params().sq_entries());
    for entry in [
        opcode::Read::new(file, ptr::null_mut(), 0).build(),
        opcode::UringCmd16::new(file, 0).build(),
    ] {
        // SAFETY: both read nothing, and the file is open until all have completed.
        unsafe { run_times(&mut ring, &entry, requests)? };
    }
    let buffers = if engine.lends() { tags(depth).min(KEPT) } else { 0 };
    fill_tables(&ring, &null, buffers as usize)?;
    if one_worker {
        ring.submitter().register_iowq_max_workers(&mut [1, 1])?;
        let nop = opcode::Nop::new().build().flags(squeue::Flags::ASYNC);
        // SAFETY: it refers to nothing.
        unsafe { run_times(&mut ring, &nop, 1)? };
    }
    Ok(ring)
}

/// Runs something so many times. When linked, all its requests exist before the first is done.
///
/// # Safety
///
/// Everything that the entry refers to must stay until this returns.
unsafe fn run_times(ring: &mut IoUring, entry: &squeue::Entry, times: u32) -> io::Result<()> {
    for left in (0..times).rev() {
        let entry = entry.clone();
        let entry = if left > 0 { entry.flags(squeue::Flags::IO_LINK) } else { entry };
        // SAFETY: the caller's duty.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    }
    let (mut done, mut failed) = (0, None);
    while done < times as usize {
        match ring.submit_and_wait(times as usize - done) {
            Err(error) if error.raw_os_error() != Some(libc::EINTR) => return Err(error),
            _ => {}
        }
        for completion in ring.completion() {
            done += 1;
            failed = failed.or_else(|| (completion.result() < 0).then_some(completion.result()));
        }
    }
    if let Some(error) = failed {
        let error = io::Error::from_raw_os_error(-error);
        tracing::debug!(%error, "the kernel keeps less for a ring");
    }
    Ok(())
}

/// Fills the tables, and empties them.
fn fill_tables(ring: &IoUring, null: &File, buffers: usize) -> io::Result<()> {
    let mut bytes = [0_u8; 64];
    let full = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    for (file, buffer) in [(null.as_raw_fd(), full), (-1, empty)] {
        ring.submitter().register_files_update(0, &[file; ALL_FILES])?;
        let buffers = vec![buffer; buffers];
        if buffers.is_empty() {
            continue;
        }
        // SAFETY: no request uses them before they are gone, or the ring is.
        let filled = unsafe { ring.submitter().register_buffers_update(0, &buffers, None) };
        if let Err(error) = filled {
            tracing::debug!(%error, "the kernel keeps less for a ring");
        }
    }
    Ok(())
}

/// Numbers of requests, for which there are places.
pub(crate) fn tags(depth: u16) -> u32 {
    u32::from(depth).next_power_of_two()
}

/// Entries of the ring of a queue.
pub(crate) fn entries(depth: u16, commands_beside: u32) -> u32 {
    let pieces = tags(depth) * PIECES as u32;
    (pieces + commands_beside).next_power_of_two()
}
