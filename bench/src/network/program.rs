//! Another program that serves at the measured end, and takes turns with our rows.
//!
//! Contracts:
//!
//! 1. The shell runs the program on the bench's processor, in the namespace of its end, as long as this value
//!    lives.
//! 2. The bench tries to connect until the program listens: only the measured connection ever reaches the program.
//! 3. The program is done when all its threads sleep at two looks, between which none has run: a thread may
//!    have woken another that was looked at before. A slot fails if the program then has left anything unread.
//!    That is checked when the clock stands, since the kernel goes through all its connections for it.
//!
//! Kernel interface: `stat`, `schedstat` and `children` of the program's threads (CONFIG_PROC_CHILDREN).

use std::{
    env, io,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use handoff_testbed::Namespace;

use super::TIMEOUT;
use crate::{
    measure::Slot,
    peer::{Affinity, Output, Placeholders, Running},
    tasks,
    tcp_table::unread,
};

/// The time between two looks at a starting program.
const BETWEEN_TRIES: Duration = Duration::from_millis(10);
/// The time between two looks for the end of the program's work, within the measured time.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);
/// The time between two looks at a working program, which shares its processor with us.
const BETWEEN_LOOKS_AT_WORK: Duration = Duration::from_millis(20);

/// The path of a Debian package's program.
///
/// # Errors
///
/// One line that names the package of the missing program.
pub(crate) fn installed(name: &str) -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    let mut programs = directories.map(|directory| directory.join(name));
    let found = programs.find(|program| program.is_file());
    found.ok_or_else(|| format!("{name} is not installed: install the Debian package {name}"))
}

/// A program that was started.
pub(crate) struct Program<'a> {
    running: Running,
    output: Output,
    stop: &'a AtomicBool,
}

impl<'a> Program<'a> {
    /// Starts the command in the namespace; for `None`, in ours.
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

    /// The process that the program began as.
    pub(crate) fn id(&self) -> u32 {
        self.running.id()
    }

    /// Connects to the program as soon as it listens. Until then `reach` returns `None`.
    ///
    /// # Errors
    ///
    /// If the program does not listen, in one line.
    pub(crate) fn connect<T>(
        &mut self,
        reach: impl FnMut() -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        self.every(BETWEEN_TRIES, "does not listen", reach)
    }

    /// Accepts the connection that the program makes in its turn.
    ///
    /// # Errors
    ///
    /// If the program makes none, in one line.
    pub(crate) fn accept(&mut self, listener: &TcpListener) -> Result<TcpStream, String> {
        let line = |error: io::Error| format!("no connection from it: {error}");
        listener.set_nonblocking(true).map_err(line)?;
        self.every(BETWEEN_TRIES, "does not connect onward", || match listener.accept() {
            Ok((connected, _)) => Ok(Some(connected)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(line(error)),
        })
    }

    /// Lets the program work until the slot is over.
    ///
    /// # Errors
    ///
    /// If the program ends before, in one line.
    pub(crate) fn work(&mut self, slot: &Slot<'_>) -> Result<(), String> {
        while !slot.is_over() {
            thread::sleep(slot.left().min(BETWEEN_LOOKS_AT_WORK));
            self.must_run()?;
        }
        Ok(())
    }

    /// Returns when the program sleeps.
    ///
    /// # Errors
    ///
    /// If the program does not sleep for too long, in one line.
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

    /// Waits until the program has taken `total` bytes, however slowly: the meter may make it slow. `taken`
    /// returns the bytes that it has taken.
    ///
    /// # Errors
    ///
    /// If the program takes none for too long, in one line.
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

    /// Checks that a resting program has read everything that came to this port.
    ///
    /// # Errors
    ///
    /// If the program has not, in one line.
    pub(crate) fn must_have_read(&self, port: u16) -> Result<(), String> {
        match unread(self.id(), port)? {
            0 => Ok(()),
            bytes => Err(format!("it sleeps and leaves {bytes} bytes unread")),
        }
    }

    /// Calls `look` again and again until it returns something, as long as the program runs.
    ///
    /// # Errors
    ///
    /// If the program ends or takes too long, or the bench must end, in one line.
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
            if begin.elapsed() > TIMEOUT {
                let said = self.output.last_line();
                let otherwise = format!("it {otherwise} for {TIMEOUT:?}");
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

#[cfg(test)]
mod tests {
    use handoff_testbed::topology_or_skip;

    use super::*;

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

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let why = installed("no-such-program").unwrap_err();
        assert!(why.contains("the Debian package no-such-program"), "{why}");
    }
}
