//! Receive by mapping: `TCP_ZEROCOPY_RECEIVE` puts received pages into a window of our address space.
//!
//! Minimum kernel and set-up: see [`Window`]. Bytes that do not fill pages are read, in order, into memory
//! beside it. Return signal: none to wait for. Dropping a span frees its place, and the next use of the
//! place unmaps the pages.

use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::rc::Rc;

use handoff_sys::tcp::{ZEROCOPY_RECEIVE, ZerocopyReceive};

use super::multishot;
use crate::error::Error;
use crate::lease::Window;
use crate::mechanism::ReceiveEngine;
use crate::op::{Mapped, ReceiveOp, ReceivesFrom};
use crate::ring::Key;

/// After this many bytes, the engine decides whether too few are mapped.
const ENOUGH: u64 = 1 << 20;

/// After this many tries others have their turn.
const MOST: u32 = 16;

/// The part of the structure that every kernel with the option has.
const KNOWN: usize = offset_of!(ZerocopyReceive, inq);

/// The socket is readable; returns whether to wait for more.
pub(super) fn ready(key: Key, op: &mut ReceiveOp) -> bool {
    for _ in 0..MOST {
        let hint = match map(key, op) {
            Step::Mapped(0) => continue,
            Step::Mapped(rest) | Step::Nothing(rest) => rest,
            Step::Starves => return false,
            Step::Failed => return true,
        };
        let (rest, before) = (Rc::clone(&window(op).rest), op.copied);
        match multishot::read(key, op, &rest, hint) {
            multishot::Read::Some => op.mapped.copied += op.copied - before,
            multishot::Read::Starves => return false,
            multishot::Read::Nothing => return true,
        }
        if give_up(op) {
            return true;
        }
    }
    true
}

fn window(op: &ReceiveOp) -> &Window {
    op.window.as_ref().expect("what maps has a window")
}

enum Step {
    /// Pages, with this many bytes behind them to be read.
    Mapped(usize),
    /// No page; this many bytes have to be read, or their number is unknown.
    Nothing(usize),
    Starves,
    Failed,
}

fn map(key: Key, op: &mut ReceiveOp) -> Step {
    let window = Rc::clone(&window(op).pages);
    let Some((place, start, len)) = window.take_chunk() else {
        window.starve(key);
        return Step::Starves;
    };
    let mut request = ZerocopyReceive {
        address: start.as_ptr().addr() as u64,
        length: u32::try_from(len).unwrap_or(u32::MAX),
        ..ZerocopyReceive::default()
    };
    match receive(op.socket.endpoint.raw(), &mut request) {
        Ok(()) if request.length > 0 => {
            op.mapped.bytes += u64::from(request.length);
            let span = window.filled(place, request.length as usize);
            op.arrivals.push(span);
            Step::Mapped(request.recv_skip_hint as usize)
        }
        result => {
            window.untake_chunk(place);
            match result {
                Ok(()) => Step::Nothing(request.recv_skip_hint as usize),
                // The stream is at its end; a read confirms it.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => Step::Nothing(0),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => Step::Failed,
                Err(error) => {
                    op.end(Err(Error::EngineUnavailable {
                        engine: ReceiveEngine::TcpZerocopyReceive.name(),
                        reason: format!("the socket's pages can't be mapped: {error}"),
                    }));
                    Step::Failed
                }
            }
        }
    }
}

fn receive(socket: RawFd, request: &mut ZerocopyReceive) -> io::Result<()> {
    let mut len = KNOWN as libc::socklen_t;
    // SAFETY: the kernel reads and writes as much of the structure as it is told of; the mapping that
    // the structure names is a free place of a window, which nobody reads.
    let status = unsafe {
        libc::getsockopt(
            socket,
            libc::IPPROTO_TCP,
            ZEROCOPY_RECEIVE,
            std::ptr::from_mut(request).cast(),
            &raw mut len,
        )
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Leaves the window when it maps too little.
fn give_up(op: &mut ReceiveOp) -> bool {
    let Mapped { bytes, copied, left } = &mut op.mapped;
    if op.pool.is_none() || *bytes + *copied < ENOUGH || *bytes * 8 >= *copied {
        return false;
    }
    let reason = format!(
        "{copied} of {} bytes did not come in whole pages: segments of 4096 bytes and header/data \
         split are needed",
        *bytes + *copied
    );
    tracing::info!(reason, "plain receive instead of mapping");
    *left = Some(reason);
    op.from = ReceivesFrom::Pool;
    true
}
