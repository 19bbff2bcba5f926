//! The programs that carry packets between a card and a netkit pair (`bpf/lease.bpf.c`).
//!
//! They are attached without a link, so they stay when the process ends. The one at the card is found by
//! its name; the one at the pair goes with the pair.
//!
//! Kernel interface: BPF_PROG_ATTACH with BPF_TCX_INGRESS, Linux 6.6. Capabilities: CAP_BPF and
//! CAP_NET_ADMIN.

use std::ffi::OsStr;
use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr;

use handoff_sys::netlink::Refusal;
use libbpf_rs::{Object, ObjectBuilder, PrintLevel, Program, ProgramHandle, libbpf_sys};
use rustix::io::Errno;

/// An ELF file is read in place, as structures, so it must be aligned.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/lease.bpf.o")));

/// The program at the card.
const ARRIVE: &str = "handoff_arrive";
/// The program at the near end of the pair.
const LEAVE: &str = "handoff_leave";

/// The most addresses of a lease.
pub(crate) const ADDRESSES: usize = 8;
/// The most programs at an interface that we look at (the kernel allows 64).
const PROGRAMS: usize = 64;

/// As `struct lease` of `bpf/lease.h`.
#[repr(C)]
struct Layout {
    card: u32,
    pair: u32,
    count: u32,
    addresses: [[u8; 16]; ADDRESSES],
}

/// Attaches the program at the near end of the pair, in the pair's network namespace.
pub(crate) fn let_out(card: u32, pair: u32, addresses: &[IpAddr]) -> Result<(), Refusal> {
    attach(LEAVE, pair, &load(card, pair, addresses)?)
}

/// Attaches the program at the card, in the card's network namespace.
pub(crate) fn lead_in(card: u32, pair: u32, addresses: &[IpAddr]) -> Result<(), Refusal> {
    attach(ARRIVE, card, &load(card, pair, addresses)?)
}

fn load(card: u32, pair: u32, addresses: &[IpAddr]) -> Result<Object, Refusal> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, log)));
    let doing = |what: &str| {
        let what = what.to_owned();
        move |error: libbpf_rs::Error| refusal(&what, system(error))
    };
    let mut open = ObjectBuilder::default()
        .open_memory(&OBJECT.0)
        .map_err(doing("reading the programs that redirect packets"))?;
    for mut map in open.maps_mut() {
        if map.name() == OsStr::new(".rodata.lease") {
            let lease = map.initial_value_mut().expect("a section with content");
            configure(lease, card, pair, addresses);
        }
    }
    open.load().map_err(doing("loading the programs that redirect packets"))
}

fn configure(lease: &mut [u8], card: u32, pair: u32, addresses: &[IpAddr]) {
    let count = addresses.len() as u32;
    for (at, number) in [
        (offset_of!(Layout, card), card),
        (offset_of!(Layout, pair), pair),
        (offset_of!(Layout, count), count),
    ] {
        lease[at..][..4].copy_from_slice(&number.to_ne_bytes());
    }
    let places = lease[offset_of!(Layout, addresses)..].chunks_exact_mut(16);
    for (place, address) in places.zip(addresses) {
        let address = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => *address,
        };
        place.copy_from_slice(&address.octets());
    }
}

fn attach(name: &str, interface: u32, object: &Object) -> Result<(), Refusal> {
    let program = object.progs().find(|program| program.name() == name).expect("is there");
    let options = libbpf_sys::bpf_prog_attach_opts {
        sz: size_of::<libbpf_sys::bpf_prog_attach_opts>() as _,
        // Other programs may end the search: for our addresses ours decides.
        flags: libbpf_sys::BPF_F_BEFORE,
        ..Default::default()
    };
    // SAFETY: the options are of the size that they say, and the call only reads them.
    let done = unsafe {
        libbpf_sys::bpf_prog_attach_opts(
            program.as_fd().as_raw_fd(),
            interface as _,
            libbpf_sys::BPF_TCX_INGRESS,
            &options,
        )
    };
    outcome(done).map_err(|error| refusal("attaching a program that redirects packets", error))
}

/// Whether the card has our program. Asked in the card's network namespace.
pub(crate) fn is_attached(card: u32) -> Result<bool, Refusal> {
    Ok(!ours(card)?.is_empty())
}

/// Detaches our program from the card, in the card's network namespace.
pub(crate) fn detach(card: u32) -> Result<(), Refusal> {
    let doing = |error| refusal("detaching a program that redirects packets", error);
    for id in ours(card)? {
        let program = Program::fd_from_id(id).map_err(|error| doing(system(error)))?;
        // SAFETY: without options, the call reads nothing but its numbers.
        let done = unsafe {
            libbpf_sys::bpf_prog_detach_opts(
                program.as_raw_fd(),
                card as _,
                libbpf_sys::BPF_TCX_INGRESS,
                ptr::null(),
            )
        };
        outcome(done).map_err(doing)?;
    }
    Ok(())
}

/// The ids of our programs at the card.
fn ours(card: u32) -> Result<Vec<u32>, Refusal> {
    let mut ids = [0; PROGRAMS];
    let mut options = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        prog_ids: ids.as_mut_ptr(),
        ..Default::default()
    };
    options.__bindgen_anon_1.count = PROGRAMS as u32;
    // SAFETY: the options are of the size that they say, and name an array with room for so many ids.
    let done = unsafe {
        libbpf_sys::bpf_prog_query_opts(card as _, libbpf_sys::BPF_TCX_INGRESS, &mut options)
    };
    outcome(done).map_err(|error| refusal("listing the programs at the interface", error))?;
    // SAFETY: the union's members are the same number by two names.
    let count = unsafe { options.__bindgen_anon_1.count } as usize;
    // A program that is gone meanwhile is not ours.
    let is_ours = |id: &&u32| {
        ProgramHandle::from_prog_id(**id).is_ok_and(|program| program.name() == OsStr::new(ARRIVE))
    };
    Ok(ids[..count.min(PROGRAMS)].iter().filter(is_ours).copied().collect())
}

/// libbpf returns the error as a negative number.
fn outcome(done: i32) -> io::Result<()> {
    if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
}

fn system(error: libbpf_rs::Error) -> io::Error {
    match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Errno::PERM.into(),
        _ => io::Error::other(error.to_string()),
    }
}

fn refusal(what: &str, error: io::Error) -> Refusal {
    Refusal { error, message: Some(what.to_owned()) }
}

fn log(level: PrintLevel, text: String) {
    let text = text.trim_end();
    match level {
        PrintLevel::Warn | PrintLevel::Info => tracing::debug!("libbpf: {text}"),
        PrintLevel::Debug => tracing::trace!("libbpf: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn the_program_has_the_layout_of_its_source() {
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).expect("an object");
        let v6 = Ipv6Addr::LOCALHOST;
        let mut found = false;
        for mut map in open.maps_mut().filter(|map| map.name() == OsStr::new(".rodata.lease")) {
            let lease = map.initial_value_mut().expect("has one");
            assert_eq!(lease.len(), size_of::<Layout>());
            configure(lease, 7, 9, &[Ipv4Addr::new(10, 1, 2, 3).into(), v6.into()]);
            assert_eq!(lease[..12], [7, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(lease[22..28], [0xff, 0xff, 10, 1, 2, 3]);
            assert_eq!(lease[28..44], v6.octets());
            found = true;
        }
        assert!(found);
        let names: Vec<_> = open.progs().map(|program| program.name().to_owned()).collect();
        assert!(names.iter().any(|name| name == ARRIVE) && names.iter().any(|name| name == LEAVE));
    }
}
