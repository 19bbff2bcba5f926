//! The threads that carry data between a guest and us: its console, QEMU's own messages, the messages of
//! the control channel, and our standard input.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use handoff_sys::hangup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::console::Console;
use crate::terminal;
use crate::wire;

/// Sends one message to the guest.
pub(crate) fn send(control: &Mutex<UnixStream>, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut control = control.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    wire::send(&mut *control, kind, body)
}

pub(crate) fn read_console(
    mut output: impl Read + Send + 'static,
    console: Arc<Console>,
    show: bool,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = output.read(&mut bytes) {
            for line in console.feed(&bytes[..count]) {
                if show {
                    hangup::say(line);
                }
            }
        }
        console.close();
    })
}

/// Keeps the last lines that QEMU itself prints.
pub(crate) fn read_complaints(
    errors: impl Read + Send + 'static,
    complaints: Arc<Mutex<VecDeque<String>>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in io::BufRead::lines(io::BufReader::new(errors)).map_while(io::Result::ok) {
            tracing::debug!("{line}");
            let mut kept = complaints.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if kept.len() == 4 {
                kept.pop_front();
            }
            kept.push_back(line);
        }
    })
}

pub(crate) fn read_messages(mut control: UnixStream) -> (JoinHandle<()>, Receiver<(u8, Vec<u8>)>) {
    // Bounded: a command that writes faster than we pass on slows down, and nothing piles up.
    let (sender, messages) = mpsc::sync_channel(64);
    let reader = thread::spawn(move || {
        while let Ok(Some(message)) = wire::receive(&mut control) {
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    (reader, messages)
}

/// Sends our standard input to the command until `feeding` is cleared.
pub(crate) fn feed(
    control: &Arc<Mutex<UnixStream>>,
    feeding: &Arc<AtomicBool>,
    terminal: bool,
) -> JoinHandle<()> {
    let (control, feeding) = (Arc::clone(control), Arc::clone(feeding));
    thread::spawn(move || {
        let input = io::stdin();
        let mut bytes = vec![0; 32 << 10];
        let mut size = terminal.then(terminal::size);
        let tick = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        while feeding.load(Ordering::Acquire) {
            let mut ready = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
            let readable = poll(&mut ready, Some(&tick)).unwrap_or(0) > 0;
            if size.is_some_and(|size| size != terminal::size()) {
                let (rows, columns) = terminal::size();
                size = Some((rows, columns));
                let body = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
                if send(&control, wire::RESIZE, &body).is_err() {
                    return;
                }
            }
            if !readable {
                continue;
            }
            let Ok(count) = rustix::io::read(input.as_fd(), &mut bytes) else { return };
            // An empty message is the end of the input, for us as for the guest.
            if send(&control, wire::STDIN, &bytes[..count]).is_err() || count == 0 {
                return;
            }
        }
    })
}
