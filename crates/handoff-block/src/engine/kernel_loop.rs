//! The loop in the kernel: `bpf/blk_loop.bpf.c`, one program for each queue.
//!
//! Minimum kernel: one with `CONFIG_IO_URING_BPF_OPS` (`struct io_uring_bpf_ops`) and BTF; tried on 7.2.
//! Capability: CAP_SYS_ADMIN, or CAP_BPF and CAP_PERFMON. Return signal: as in
//! [`user_loop`](super::user_loop); user space hears only of the end.
//!
//! The thread enters the ring once and stays there for the device's life. After a signal it returns, with
//! nothing lost, and enters again. It does the same when another program takes the loop's place
//! ([`exchange`](crate::exchange)).
//!
//! Requests that the kernel hands to a worker thread (fsync, fallocate, buffered writes of most file
//! systems) run one after the other. On this kernel, a worker started from inside the loop would inherit a
//! scheduler state that it must not have. So one worker is started before and remains, and no others may
//! be started.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use handoff_sys::region;
use io_uring::IoUring;
use libbpf_rs::{
    Link, MapCore as _, MapHandle, Object, ObjectBuilder, OpenMap, OpenMapMut, OpenObject,
};

use crate::error::{is_lack, worded};
use crate::libbpf_log::{explained, listen};
use crate::queue::{PreparedQueue, Queue};
use crate::request::Config;

/// An ELF file is read in place, as structures.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> =
    &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/blk_loop.bpf.o")));

/// The name of the loop's map.
const LOOP: &str = "loop";
/// As `struct io_uring_bpf_ops` in `bpf/kernel.h`: the descriptor follows one pointer.
const RING_FD: std::ops::Range<usize> = 8..12;

/// The object that queues load.
#[derive(Debug, Default)]
pub(crate) struct Program {
    /// The loop joined with a policy.
    pub(crate) joined: Option<Vec<u8>>,
    /// Where the policy's maps are kept, once it has a device.
    pub(crate) pins: OnceLock<PathBuf>,
    /// The loops of queues that are being served.
    loops: Mutex<BTreeMap<u32, Seat>>,
}

impl Program {
    pub(crate) fn is_policy(&self) -> bool {
        self.joined.is_some()
    }

    pub(crate) fn of_policy(joined: Vec<u8>) -> Self {
        Self { joined: Some(joined), ..Self::default() }
    }

    /// Puts another program in the place of all loops, or leaves them unchanged. Returns the names of its
    /// maps.
    pub(crate) fn exchange(&self, next: &Self) -> io::Result<Vec<OsString>> {
        let mut loops = self.loops();
        let mut objects = Vec::new();
        for seat in loops.values() {
            objects.push(load(seat.ring, &seat.config, next)?);
        }
        let maps = objects.first().map(maps_of).unwrap_or_default();
        let mut pairs: Vec<_> = loops.values_mut().zip(&mut objects).collect();
        for done in 0..pairs.len() {
            let (seat, object) = &mut pairs[done];
            if let Err(cause) = seat.exchange(object) {
                for (seat, object) in &mut pairs[..=done] {
                    // A queue without a loop then ends its device.
                    let _ = seat.exchange(object);
                }
                return Err(cause);
            }
        }
        Ok(maps)
    }

    fn object(&self) -> &[u8] {
        self.joined.as_deref().unwrap_or(&OBJECT.0)
    }

    fn loops(&self) -> MutexGuard<'_, BTreeMap<u32, Seat>> {
        self.loops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loop without a policy.
pub(crate) fn loop_object() -> &'static [u8] {
    &OBJECT.0
}

/// A program that the kernel has verified, and makes the loop of its ring with little memory.
pub(crate) struct Loaded {
    of: Arc<Program>,
    object: Object,
}

impl Loaded {
    /// `None` if the policy has maps that are not kept yet.
    pub(crate) fn before(
        prepared: &PreparedQueue,
        program: &Arc<Program>,
    ) -> io::Result<Option<Self>> {
        let mut open = of_ring(prepared.ring.as_raw_fd(), &prepared.config, program)?;
        for mut map in open.maps_mut().filter(|map| is_policys(map.name())) {
            // It makes none: its device may be removed, or get a policy without that map.
            let pins = program.pins.get();
            if !pins.map_or(Ok(false), |pins| take_kept(&mut map, pins))? {
                return Ok(None);
            }
        }
        let mut object = open.load().map_err(|error| explained(&error))?;
        // The first time makes the code by which the kernel calls the program, and the object keeps that.
        drop(attach(&mut object)?);
        Ok(Some(Self { of: Arc::clone(program), object }))
    }
}

/// The program that is the loop of a ring. The ring is open as long as this is in [`Program::loops`].
#[derive(Debug)]
struct Seat {
    ring: RawFd,
    config: Config,
    /// `None` only if neither of two programs could be attached.
    link: Option<Link>,
    object: Object,
    exchanges: u64,
}

impl Seat {
    fn take(ring: &IoUring, config: &Config, mut object: Object) -> io::Result<Self> {
        let link = Some(attach(&mut object)?);
        Ok(Self { ring: ring.as_raw_fd(), config: *config, link, object, exchanges: 0 })
    }

    /// Detaches the loop, and attaches another, with which it changes places.
    fn exchange(&mut self, object: &mut Object) -> io::Result<()> {
        self.exchanges += 1;
        self.link = None;
        mem::swap(&mut self.object, object);
        self.link = Some(attach(&mut self.object)?);
        Ok(())
    }
}

/// A queue whose loop is in [`Program::loops`], until this is dropped.
struct Seated<'a> {
    program: &'a Program,
    queue: u32,
}

impl<'a> Seated<'a> {
    fn new(queue: &Queue, program: &'a Arc<Program>, loaded: Option<Loaded>) -> io::Result<Self> {
        let object = match loaded {
            Some(Loaded { of, object }) if Arc::ptr_eq(&of, program) => object,
            other => {
                drop(other);
                load(queue.ring.as_raw_fd(), &queue.config, program)?
            }
        };
        let seat = Seat::take(&queue.ring, &queue.config, object)?;
        program.loops().insert(queue.config.queue, seat);
        Ok(Self { program, queue: queue.config.queue })
    }

    /// How many loops have followed the first. Waits until an exchange that is under way is over.
    fn exchanges(&self) -> io::Result<u64> {
        let loops = self.program.loops();
        let seat = &loops[&self.queue];
        match seat.link {
            Some(_) => Ok(seat.exchanges),
            None => Err(io::Error::other("the ring is without a loop")),
        }
    }
}

impl Drop for Seated<'_> {
    fn drop(&mut self) {
        self.program.loops().remove(&self.queue);
    }
}

pub(super) fn run(
    queue: &mut Queue,
    program: &Arc<Program>,
    loaded: Option<Loaded>,
    started: impl FnOnce(),
) -> io::Result<()> {
    // SAFETY: the mapping goes after the ring, and only the program and `ending` look at it.
    unsafe {
        region::register(queue.ring.as_raw_fd(), queue.region.as_ptr(), queue.region.len())?;
    }
    queue.fetch_all()?;
    let seated = Seated::new(queue, program, loaded)?;
    started();
    let mut exchanges = 0;
    loop {
        let entered = queue.enter();
        match queue.region.ending() {
            (_, refused @ ..0) => return Err(io::Error::from_raw_os_error(-refused)),
            (true, _) => break,
            // A signal, or an exchange.
            (false, _) => {}
        }
        let before = mem::replace(&mut exchanges, seated.exchanges()?);
        match entered {
            // The loop was taken away while it waited.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && exchanges > before => {}
            entered => entered?,
        }
    }
    drop(seated);
    queue.set_all_gone();
    Ok(())
}

/// Whether the kernel can run the loop, tried on a ring that carries nothing.
pub(crate) fn try_out(program: &Program) -> io::Result<()> {
    let ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_no_sqarray()
        .build(4)
        .map_err(|error| worded(format!("a ring is refused: {error}"), is_lack(&error)))?;
    let config = Config {
        depth: 1,
        sq_mask: 3,
        cq_mask: 7,
        rings_size: 4096,
        entries_size: 256,
        region_size: 16384,
        ..Config::default()
    };
    let take =
        |program: &Program| Seat::take(&ring, &config, load(ring.as_raw_fd(), &config, program)?);
    let Err(error) = take(program) else { return Ok(()) };
    if is_lack(&error) {
        return Err(error);
    }
    if program.is_policy() && take(&Program::default()).is_ok() {
        let cause = format!("the kernel's verifier refuses the policy: {error}");
        return Err(io::Error::other(cause));
    }
    Err(io::Error::other(format!(
        "the kernel does not take the program: {error}; it takes root and a kernel with \
         CONFIG_IO_URING_BPF_OPS, such as Linux 7.2"
    )))
}

/// Reads a program's object.
pub(crate) fn open(program: &Program) -> io::Result<OpenObject> {
    listen();
    ObjectBuilder::default().open_memory(program.object()).map_err(|error| explained(&error))
}

/// Loads a program for a ring. The first queue makes the policy's maps, and all use them.
fn load(ring: RawFd, config: &Config, program: &Program) -> io::Result<Object> {
    let mut open = of_ring(ring, config, program)?;
    if let Some(pins) = program.pins.get() {
        for mut map in open.maps_mut().filter(|map| is_policys(map.name())) {
            if !take_kept(&mut map, pins)? {
                let path = pins.join(map.name());
                map.set_pin_path(path).map_err(|error| explained(&error))?;
            }
        }
    }
    open.load().map_err(|error| explained(&error))
}

/// A program with the constants of a ring.
fn of_ring(ring: RawFd, config: &Config, program: &Program) -> io::Result<OpenObject> {
    let mut open = open(program)?;
    for mut map in open.maps_mut() {
        // SAFETY: plain numbers without padding, asserted at the declaration.
        let constants = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(config).cast::<u8>(), size_of::<Config>())
        };
        let (at, bytes) = match map.name().to_str() {
            Some(".rodata.config") => (0..constants.len(), constants),
            Some(LOOP) => (RING_FD, &ring.to_ne_bytes()[..]),
            _ => continue,
        };
        let place = map
            .initial_value_mut()
            .ok_or_else(|| io::Error::other("it has a map of the loop's name"))?;
        place[at].copy_from_slice(bytes);
    }
    Ok(open)
}

/// Uses the map that is kept; `false` if there is none.
fn take_kept(map: &mut OpenMapMut<'_>, pins: &Path) -> io::Result<bool> {
    let path = pins.join(map.name());
    if !path.exists() {
        return Ok(false);
    }
    if !goes_with(map, &path).map_err(|error| explained(&error))? {
        return Err(io::Error::other(format!(
            "its map {} is of another type or size than that of the device: give it another name",
            map.name().display()
        )));
    }
    map.reuse_pinned_map(path).map_err(|error| explained(&error))?;
    Ok(true)
}

/// Makes a loaded program the loop of its ring, until the link is dropped.
fn attach(object: &mut Object) -> io::Result<Link> {
    listen();
    let mut map = object.maps_mut().find(|map| map.name() == LOOP).expect("the object has it");
    map.attach_struct_ops().map_err(|error| explained(&error))
}

/// Whether a map can be the pinned one.
fn goes_with(map: &OpenMap<'_>, pin: &Path) -> libbpf_rs::Result<bool> {
    let info = MapHandle::from_pinned_path(pin)?;
    Ok(map.map_type() == info.map_type()
        && map.key_size() == info.key_size()
        && map.value_size() == info.value_size()
        && map.max_entries() == info.max_entries())
}

/// Whether a map belongs neither to the loop nor to variables.
fn is_policys(map: &OsStr) -> bool {
    map != LOOP && !map.as_encoded_bytes().contains(&b'.')
}

fn maps_of(object: &Object) -> Vec<OsString> {
    object.maps().map(|map| map.name().to_owned()).filter(|map| is_policys(map)).collect()
}

#[cfg(test)]
mod tests {
    mod guest {
        use super::super::*;
        use crate::state::region_bytes;

        #[test]
        fn the_verifier_takes_the_loop_of_mirrors_with_records() {
            if let Err(reason) = try_out(&Program::default()) {
                handoff_testbed::skip!("{reason}");
            }
            for (depth, chunks, chunk_shift) in
                [(1_u32, 1_u32, 20), (3, 8, 20), (4096, 1 << 20, 26)]
            {
                let ring: IoUring = IoUring::builder()
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_no_sqarray()
                    .build(4)
                    .expect("a ring");
                let tags = depth.next_power_of_two();
                let (region_size, chunks_at) = region_bytes(depth as u16, chunks as usize);
                let config = Config {
                    depth,
                    tag_mask: tags - 1,
                    sq_mask: 3,
                    cq_mask: 7,
                    rings_size: 4096,
                    entries_size: 256,
                    region_size: region_size as u32,
                    chunks_at: chunks_at as u32,
                    chunk_shift,
                    chunk_mask: chunks - 1,
                    ..Config::default()
                };
                let object = load(ring.as_raw_fd(), &config, &Program::default());
                let object = object.unwrap_or_else(|it| panic!("{depth}, {chunks}: {it}"));
                drop(Seat::take(&ring, &config, object).expect("a loop"));
            }
        }
    }
}
