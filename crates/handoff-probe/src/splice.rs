//! Probes of moving pages of the page cache and pipes without user memory.
//!
//! Kernel interface: `sendfile(2)`, `IORING_OP_SPLICE`, and get-buf, the device of this project's
//! module.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use handoff_sys::getbuf;
use io_uring::{opcode, types};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open, sendfile as send_file};

use super::answer::{Answer, Finding};
use super::{ring, send};

const PAYLOAD: &[u8] = b"handoff";

pub(super) fn sendfile() -> Finding {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Answer::unknown(format!("{what} fails: {error}"))
    };
    let (sender, _receiver) = send::tcp_pair()?;
    let memory = memfd_create("handoff-probe", MemfdFlags::CLOEXEC)
        .map_err(|error| failed("memfd_create", &error))?;
    rustix::io::write(&memory, PAYLOAD).map_err(|error| failed("writing to a memfd", &error))?;
    match send_file(&sender, &memory, Some(&mut 0), PAYLOAD.len()) {
        Ok(bytes) if bytes == PAYLOAD.len() => {
            Ok(Answer::yes().detail("gives no signal when the pages are free again"))
        }
        Ok(bytes) => Err(Answer::unknown(format!("{bytes} of {} bytes moved", PAYLOAD.len()))),
        Err(error) => Err(failed("sendfile", &error)),
    }
}

pub(super) fn on_ring() -> Finding {
    let failed = |error: io::Error| Answer::unknown(format!("a pipe fails: {error}"));
    let mut ring = ring::ring()?;
    ring::knows(&ring, opcode::Splice::CODE, "SPLICE")?;
    let (source, mut fill) = io::pipe().map_err(failed)?;
    let (mut drain, sink) = io::pipe().map_err(failed)?;
    fill.write_all(PAYLOAD).map_err(failed)?;
    let entry = opcode::Splice::new(
        types::Fd(source.as_raw_fd()),
        -1,
        types::Fd(sink.as_raw_fd()),
        -1,
        PAYLOAD.len() as u32,
    )
    .build();
    // SAFETY: the entry points to no memory.
    unsafe { ring::push(&mut ring, &entry) };
    let done = ring::next(&mut ring)
        .map_err(|error| Answer::unknown(format!("the request did not complete: {error}")))?;
    if done.result() != PAYLOAD.len() as i32 {
        let error = io::Error::from_raw_os_error(-done.result());
        return Err(Answer::no(format!("the kernel refuses the request: {error}")));
    }
    let mut arrived = [0; PAYLOAD.len()];
    drain.read_exact(&mut arrived).map_err(failed)?;
    if arrived == PAYLOAD {
        Ok(Answer::yes().detail("runs on a worker thread, which costs more than splice(2)"))
    } else {
        Err(Answer::unknown("other bytes came out than went in"))
    }
}

pub(super) fn get_buf() -> Finding {
    match open(getbuf::PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(Answer::yes()),
        Err(error) => Err(no_get_buf(&error.into())),
    }
}

/// In one line, why the get-buf device could not be opened, and what would help.
pub fn why_no_get_buf(error: &io::Error) -> String {
    no_get_buf(error).in_one_line()
}

fn no_get_buf(error: &io::Error) -> Answer {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            Answer::no(format!("there is no {}: the module getbuf is not loaded", getbuf::PATH))
                .remedy("build and load the module: kmod/getbuf/README.md says how")
        }
        Some(libc::EACCES | libc::EPERM) => {
            Answer::no(format!("{} may not be opened: {error}", getbuf::PATH))
                .remedy("run as root, or let a udev rule give this user the device")
        }
        _ => Answer::unknown(format!("{} cannot be opened: {error}", getbuf::PATH)),
    }
}
