//! Another program that serves at the measured end, in turns with our rows.
//!
//! Contracts:
//!
//! 1. The shell runs it on the bench's processor, in the namespace of its end, as long as this lives.
//! 2. It listens by the time of the first connection to it, which is tried until then: only the measured
//!    connection ever reaches it.
//! 3. It is done when all its threads sleep, at two looks between which none has run: a thread may have
//!    woken another that was looked at before. A slot in which it then has left anything unread has failed.
//!    That is checked when the clock stands, since the kernel goes through all its connections for it.
//!
//! Kernel interface: `/proc/PID/net/tcp` and `tcp6`, and `stat`, `schedstat` and `children` of its
//! threads (CONFIG_PROC_CHILDREN).

use std::{
    fs, io,
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use handoff_lab::topology::Namespace;

use super::PATIENCE;
use crate::{
    measure::Slot,
    peer::{Affinity, Output, Placeholders, Running},
    tasks,
};

/// How often to look at a starting program.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// How often to look for the end of its work, within the measured time.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
/// How often to look at a working program: it shares its processor with us.
const BETWEEN_LOOKS_AT_WORK: Duration = Duration::from_millis(20);

/// A program that was started.
pub(crate) struct Program<'a> {
    running: Running,
    output: Output,
    stop: &'a AtomicBool,
}

impl<'a> Program<'a> {
    /// Starts it there, or where we are.
    ///
    /// # Errors
    ///
    /// If there is no shell, in one line.
    pub(crate) fn start(
        command: &str,
        placeholders: &Placeholders,
        namespace: Option<&Namespace>,
        stop: &'a AtomicBool,
    ) -> Result<Self, String> {
        let output = Output::new()?;
        let command = placeholders.fill(command);
        let sink = || output.sink();
        let running = Running::start(&command, namespace, sink, Affinity::Inherited)?;
        Ok(Self { running, output, stop })
    }

    /// The process that it began as.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }

    /// Makes the connection to it, as soon as it listens; until then `reach` returns none.
    ///
    /// # Errors
    ///
    /// If it does not, in one line.
    pub(crate) fn connect<T>(
        &mut self,
        reach: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        self.every(BETWEEN_TRIES, "does not listen", reach)
    }

    /// Accepts the connection that it makes in its turn.
    ///
    /// # Errors
    ///
    /// If it makes none, in one line.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> Result<TcpStream, String> {
        let line = |error: io::Error| format!("no connection from it: {error}");
        listener.set_nonblocking(true).map_err(line)?;
        self.every(BETWEEN_TRIES, "does not connect onward", || match listener.accept() {
            Ok((connected, _)) => Ok(Some(connected)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(line(error)),
        })
    }

    /// Lets it work until the slot is over.
    ///
    /// # Errors
    ///
    /// If it ends before, in one line.
    pub(crate) fn work(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        while !slot.is_over() {
            thread::sleep(slot.left().min(BETWEEN_LOOKS_AT_WORK));
            self.must_run()?;
        }
        Ok(())
    }

    /// Returns when it sleeps.
    ///
    /// # Errors
    ///
    /// If it does not, in one line.
    pub(crate) fn rest(&mut self) -> Result<(), String> {
        let process = self.id();
        let mut before = None;
        self.until("does not come to rest", || {
            let threads = tasks::of_tree(process);
            let sleeps = threads.iter().all(|thread| tasks::sleeps(thread));
            let now = sleeps.then(|| tasks::spent(&threads));
            let settled = now.is_some() && now == before;
            before = now;
            Ok(settled.then_some(()))
        })
    }

    /// Waits until it has taken `total` bytes, however slowly: the meter may make it slow. `taken` tells how many it has.
    ///
    /// # Errors
    ///
    /// If it takes none for too long, in one line.
    pub(crate) fn takes(
        &mut self,
        otherwise: &str,
        total: u64,
        taken: impl Fn() -> Result<u64, String>,
    ) -> Result<(), String> {
        let mut before = taken()?;
        while before < total {
            before = self.until(otherwise, || {
                let now = taken()?;
                Ok((now > before).then_some(now))
            })?;
        }
        Ok(())
    }

    /// For a resting program: checks that it has read everything that came to this port.
    ///
    /// # Errors
    ///
    /// If it has not, in one line.
    pub(crate) fn must_have_read(&self, port: u16) -> Result<(), String> {
        match unread(self.id(), port)? {
            0 => Ok(()),
            bytes => Err(format!("it sleeps and leaves {bytes} bytes unread")),
        }
    }

    /// Looks again and again until `look` returns something, as long as the program runs.
    ///
    /// # Errors
    ///
    /// If it ends or takes too long, or the bench must end, in one line.
    pub(crate) fn until<T>(
        &mut self,
        otherwise: &str,
        look: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        self.every(BETWEEN_LOOKS, otherwise, look)
    }

    fn every<T>(
        &mut self,
        pause: Duration,
        otherwise: &str,
        mut look: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let begin = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            self.must_run()?;
            if begin.elapsed() > PATIENCE {
                let said = self.output.last_line();
                let otherwise = format!("it {otherwise} for {PATIENCE:?}");
                return Err(match said.is_empty() {
                    true => otherwise,
                    false => format!("{otherwise}: {said}"),
                });
            }
            thread::sleep(pause);
        }
    }

    fn must_run(&mut self) -> Result<(), String> {
        if self.stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        match self.running.ended()? {
            Some(status) => Err(format!("it ended: {}", self.output.failure(status))),
            None => Ok(()),
        }
    }
}

/// Whether somebody listens at a port of a namespace.
///
/// # Errors
///
/// If the thread cannot go there, in one line.
pub(crate) fn listens(namespace: &Namespace, port: u16) -> Result<bool, String> {
    // A kernel without IPv6 lacks its table.
    let text = |table: &str| fs::read_to_string(table).unwrap_or_default();
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let texts = namespace.run(|| tables.map(text)).map_err(|error| error.to_string())?;
    let mut sockets = texts.iter().flat_map(|text| sockets(text));
    Ok(sockets.any(|socket| socket.listens && socket.port == port))
}

/// Bytes that have arrived at a port of a process's network and are unread.
fn unread(process: u32, port: u16) -> Result<u64, String> {
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{process}/net/{table}"));
    let read = |table: &String| {
        let text = fs::read_to_string(table).map_err(|error| format!("{table}: {error}"))?;
        let connections = sockets(&text).filter(|it| it.port == port && !it.listens);
        Ok::<_, String>(connections.map(|connection| connection.queued).sum::<u64>())
    };
    tables.iter().map(read).sum()
}

/// The sockets in such a table.
fn sockets(table: &str) -> impl Iterator<Item = Socket> {
    table.lines().filter_map(Socket::of)
}

/// A socket of TCP.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    port: u16,
    listens: bool,
    /// Unread bytes, or waiting connections if it listens.
    queued: u64,
}

impl Socket {
    /// From one line of such a table, but the titles.
    fn of(line: &str) -> Option<Self> {
        const LISTENS: &str = "0A";
        let mut fields = line.split_whitespace().skip(1);
        let (address, _peer, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (_, port) = address.split_once(':')?;
        let (_unsent, queued) = fields.next()?.split_once(':')?;
        Some(Self {
            port: u16::from_str_radix(port, 16).ok()?,
            listens: state == LISTENS,
            queued: u64::from_str_radix(queued, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, process};

    use handoff_lab::topology_or_skip;

    use super::*;

    #[test]
    fn what_nobody_has_read_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // A connection that waits to be accepted is no byte.
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(unread(process::id(), port), Ok(0));
        far.write_all(&[7; 300]).unwrap();
        assert_eq!(unread(process::id(), port), Ok(300));
        let (mut near, _) = listener.accept().unwrap();
        io::Read::read_exact(&mut near, &mut [0; 100]).unwrap();
        assert_eq!(unread(process::id(), port), Ok(200));
        assert_eq!(unread(process::id(), far.local_addr().unwrap().port()), Ok(0));
    }

    #[test]
    fn the_tables_of_both_families_are_understood() {
        let four = "   1: 0200004E:0FA2 0100004E:C350 01 00000010:000001FF 00:00000000 00000000 0";
        let six = "   0: 0000000000000000FFFF00000200004E:0FA2 0000000000000000FFFF00000100004E:C350 \
                   08 00000000:0000000A 00:00000000 00000000 0";
        let connection = |queued| Some(Socket { port: 0xfa2, listens: false, queued });
        assert_eq!((Socket::of(four), Socket::of(six)), (connection(0x1ff), connection(10)));
        let listens = Socket::of(&four.replace(" 01 ", " 0A ")).map(|socket| socket.listens);
        assert_eq!(listens, Some(true));
        let titles = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        assert_eq!(Socket::of(titles), None);
    }

    fn start<'a>(namespace: &Namespace, command: &str, stop: &'a AtomicBool) -> Program<'a> {
        Program::start(command, &Placeholders::default(), Some(namespace), stop).unwrap()
    }

    #[test]
    fn needs_root_a_program_rests_once_it_sleeps_and_its_end_is_told() {
        let namespace = topology_or_skip!(Namespace::new());
        let stop = AtomicBool::new(false);
        let mut sleeping = start(&namespace, "sleep 60; echo", &stop);
        sleeping.rest().unwrap();
        assert_eq!(sleeping.must_have_read(9), Ok(()));
        let mut busy = start(&namespace, "while :; do :; done", &stop);
        let error = busy.rest().unwrap_err();
        assert!(error.starts_with("it does not come to rest for 5s"), "{error}");
        let mut ended = start(&namespace, "echo one; echo two; exit 3", &stop);
        let error = ended.until("is there", || Ok(None::<()>)).unwrap_err();
        assert!(error.contains('3') && error.ends_with("two"), "{error}");
        stop.store(true, Ordering::Relaxed);
        assert_eq!(sleeping.until("is there", || Ok(None::<()>)), Err("stopped".to_owned()));
    }

    #[test]
    fn needs_root_who_takes_slowly_is_waited_for() {
        let namespace = topology_or_skip!(Namespace::new());
        let stop = AtomicBool::new(false);
        let mut program = start(&namespace, "sleep 60; echo", &stop);
        let begin = Instant::now();
        let one_in_two_seconds = || Ok(begin.elapsed().as_secs() / 2);
        program.takes("takes nothing", 4, one_in_two_seconds).unwrap();
        let error = program.takes("takes nothing", 5, || Ok(4)).unwrap_err();
        assert!(error.starts_with("it takes nothing for 5s"), "{error}");
    }
}
