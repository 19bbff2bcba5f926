//! Writes: payload is received into registered memory, and written from there.
//!
//! Contracts:
//! - a payload is received piece by piece, and a piece is written while the next one comes;
//! - a client that does not send what it promised ends its connection, and keeps one piece of memory until then;
//! - a write is answered when all its pieces are written, or one has failed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use handoff::{Buffer, Error};
use handoff_nbd::request::Request;
use handoff_nbd::server::{Answer, Requests};

use crate::connection::{Connection, Held};
use crate::disk::Disk;
use crate::input::Input;
use crate::memory::LARGE;
use crate::other;
use crate::pieces::Piece;

pub(crate) struct Write {
    pub(crate) request: Request,
    pub(crate) answer: Answer,
    pub(crate) held: Held,
}

/// A write, whose pieces share it.
struct Writing {
    answer: RefCell<Option<Answer>>,
    /// Bytes that were not written.
    left: Cell<u64>,
    error: RefCell<Option<Error>>,
    _held: Held,
}

/// Receives the payload of a write, and has it written.
///
/// # Errors
///
/// Why the connection is over, in words.
pub(crate) async fn receive(
    connection: &Rc<Connection>,
    disk: &Rc<Disk>,
    write: Write,
    requests: &mut Requests,
    input: &mut Input,
) -> Result<(), String> {
    let Write { request, answer, held } = write;
    let writing = Rc::new(Writing {
        answer: RefCell::new(Some(answer)),
        left: Cell::new(request.length),
        error: RefCell::default(),
        _held: held,
    });
    let layout = disk.export.layout;
    let memory = &connection.thread.memory;
    let mut rest = request.offset..request.offset + request.length;
    while rest.start < rest.end {
        let wish = layout.piece(&rest, LARGE).whole_len();
        let room = connection.room(0, wish).await;
        let buffer = memory.take(wish, &connection.own).await.map_err(|error| error.to_string())?;
        let piece = layout.piece(&rest, buffer.capacity());
        let buffer = fill(connection, &piece, buffer, requests, input).await?;
        rest.start = piece.wanted.end;
        let (connection, disk) = (Rc::clone(connection), Rc::clone(disk));
        let writing = Rc::clone(&writing);
        connection.clone().carry_out(async move {
            let len = piece.len() as u64;
            if writing.error.borrow().is_none()
                && let Err(error) = disk.write(&piece, buffer, request.fua).await
            {
                *writing.error.borrow_mut() = Some(error);
            }
            drop(room);
            writing.left.update(|left| left - len);
            if writing.left.get() == 0 {
                answer_it(&connection, &disk, &writing, &request).await;
            }
        });
    }
    Ok(())
}

/// Receives a piece into its place in the buffer.
async fn fill(
    connection: &Connection,
    piece: &Piece,
    mut buffer: Buffer,
    requests: &mut Requests,
    input: &mut Input,
) -> Result<Buffer, String> {
    let thread = &connection.thread;
    let (before, len) = (piece.before(), piece.len());
    let here = input.bytes().len().min(len);
    buffer[before..before + here].copy_from_slice(&input.bytes()[..here]);
    input.take(here);
    requests.received(here as u64);
    thread.counters.write(|served| served.gathered += here as u64);
    if here == len {
        return Ok(buffer);
    }
    let mut first = buffer.split_to(before + here);
    buffer.set_len(len - here);
    let receiving = connection.socket.receive_exact(buffer).map_err(|refused| refused.error);
    let receiving = receiving.map_err(|error| error.to_string())?;
    let received = match thread.driver.timeout(thread.limits.stall, receiving).await {
        Ok(received) => received.map_err(|error| error.to_string())?,
        Err(Error::TimedOut { .. }) => {
            return Err("the client did not send the payload of a write in time".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    match received.result {
        Ok(_) => {}
        Err(Error::StreamEnded { .. }) => {
            return Err("the client left within the payload of a write".to_owned());
        }
        Err(error) => return Err(format!("receiving: {error}")),
    }
    requests.received((len - here) as u64);
    let mut rest = received.buffer;
    rest.set_len(rest.capacity());
    if first.is_empty() {
        return Ok(rest);
    }
    match first.join(rest) {
        Ok(()) => Ok(first),
        Err(_) => Err("parts of a buffer do not join".to_owned()),
    }
}

async fn answer_it(connection: &Connection, disk: &Disk, writing: &Writing, request: &Request) {
    let Some(answer) = writing.answer.take() else { return };
    let mut error = writing.error.take();
    if error.is_none() && request.fua {
        error = disk.finish_fua().await.err();
    }
    if let Some(error) = error {
        return other::fail(connection, disk, answer, "writing", &error).await;
    }
    connection.thread.counters.write(|served| served.bytes_written += request.length);
    other::done(connection, answer).await;
}
