//! What a program does with frozen buffers, and what must always be true of them.

use handoff::{Driver, Frozen, OnLoan, Region, Returned, Sent, Socket, Wait};
use proptest::prelude::*;

use crate::traffic::{assert_same, pattern};
use crate::worker::Worker;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Clone(usize),
    Part(usize, usize, usize),
    Drop(usize),
    Send {
        handle: usize,
        socket: usize,
    },
    Turn(usize),
    /// Takes back what has come, of one loan.
    Take(usize),
    DropLoan(usize),
    Cancel(usize),
    Unfreeze(usize),
    /// Gives a clone to a thread, which sends it and lets go of it when it likes.
    Give {
        handle: usize,
        worker: usize,
    },
    Register(usize),
    Unregister(usize),
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        2 => any().prop_map(Step::Clone),
        2 => (any(), any(), any()).prop_map(|(handle, start, len)| Step::Part(handle, start, len)),
        2 => any().prop_map(Step::Drop),
        6 => (any(), any()).prop_map(|(handle, socket)| Step::Send { handle, socket }),
        4 => any().prop_map(Step::Turn),
        3 => any().prop_map(Step::Take),
        1 => any().prop_map(Step::DropLoan),
        1 => any().prop_map(Step::Cancel),
        4 => any().prop_map(Step::Unfreeze),
        2 => (any(), any()).prop_map(|(handle, worker)| Step::Give { handle, worker }),
        1 => any().prop_map(Step::Register),
        1 => any().prop_map(Step::Unregister),
    ]
}

/// A clone or part, and the bytes that it must have.
pub(crate) struct Held {
    pub(crate) frozen: Frozen,
    pub(crate) seed: usize,
    pub(crate) start: usize,
}

impl Held {
    /// The bytes are those that it had from the beginning.
    #[track_caller]
    pub(crate) fn check(&self) {
        let (start, len) = (self.start, self.frozen.len());
        assert_same(&self.frozen, &pattern(self.seed, SHORT)[start..start + len]);
    }
}

/// The frozen buffers of a case: few, so that clones of one meet.
pub(crate) const WHOLES: usize = 3;
pub(crate) const SHORT: usize = 6000;

/// One driver and its sockets: a stream and one for datagrams. Everything sent on a stream is checked at
/// the end.
pub(crate) struct Place {
    pub(crate) driver: Driver,
    pub(crate) sockets: Vec<Socket>,
}

pub(crate) struct Model {
    pub(crate) places: Vec<Place>,
    pub(crate) region: Region,
    /// What the program holds, by buffer.
    pub(crate) held: Vec<(usize, Held)>,
    pub(crate) loans: Vec<Loan>,
    pub(crate) workers: Vec<Worker>,
    /// Bytes that each stream was given.
    pub(crate) streams: Vec<Vec<u8>>,
    pub(crate) seeds: usize,
}

/// A send under way, and what it must bring back.
pub(crate) struct Loan {
    pub(crate) whole: usize,
    pub(crate) seed: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) on_loan: OnLoan<Frozen>,
    pub(crate) sent: Sent,
    pub(crate) stream: bool,
}

impl Model {
    fn pick(&self, number: usize) -> Option<usize> {
        (!self.held.is_empty()).then(|| number % self.held.len())
    }

    /// Handles and loans of one buffer that the program can see. The kernel keeps dropped ones for as long as
    /// it likes; a thread keeps those given to it.
    fn seen(&self, whole: usize) -> usize {
        let held = self.held.iter().filter(|(of, _)| *of == whole).count();
        held + self.loans.iter().filter(|loan| loan.whole == whole).count()
    }

    pub(crate) fn act(&mut self, step: &Step) {
        match *step {
            Step::Clone(number) => {
                let Some(at) = self.pick(number) else { return };
                let (whole, held) = &self.held[at];
                let again = Held { frozen: held.frozen.clone(), ..*held };
                self.held.push((*whole, again));
            }
            Step::Part(number, start, len) => {
                let Some(at) = self.pick(number) else { return };
                let (whole, held) = &self.held[at];
                let start = start % (held.frozen.len() + 1);
                let len = len % (held.frozen.len() - start + 1);
                let part = Held {
                    frozen: held.frozen.part(start..start + len),
                    seed: held.seed,
                    start: held.start + start,
                };
                self.held.push((*whole, part));
            }
            Step::Drop(number) => {
                let Some(at) = self.pick(number) else { return };
                // One is kept of each.
                if self.held.iter().filter(|(of, _)| *of == self.held[at].0).count() > 1 {
                    self.held.swap_remove(at);
                }
            }
            Step::Send { handle, socket } => self.send(handle, socket),
            Step::Turn(place) => {
                let places = self.places.len();
                self.places[place % places].driver.turn(Wait::No).unwrap();
            }
            Step::Take(number) => {
                if self.loans.is_empty() {
                    return;
                }
                let at = number % self.loans.len();
                let loan = self.loans.swap_remove(at);
                self.take(loan);
            }
            Step::DropLoan(number) => {
                if !self.loans.is_empty() {
                    let at = number % self.loans.len();
                    drop(self.loans.swap_remove(at));
                }
            }
            Step::Cancel(number) => {
                // Only of a datagram: a stream may break or not, which the model does not know.
                let datagrams: Vec<_> = self.loans.iter().filter(|loan| !loan.stream).collect();
                if !datagrams.is_empty() {
                    datagrams[number % datagrams.len()].sent.cancel();
                }
            }
            Step::Unfreeze(number) => self.unfreeze(number),
            Step::Give { handle, worker } => {
                let Some(at) = self.pick(handle) else { return };
                let held = &self.held[at].1;
                let workers = self.workers.len();
                let again = Held { frozen: held.frozen.clone(), ..*held };
                self.workers[worker % workers].give(again);
            }
            Step::Register(place) => {
                let places = self.places.len();
                let _ = self.places[place % places].driver.register(&self.region);
            }
            Step::Unregister(place) => {
                let places = self.places.len();
                let _ = self.places[place % places].driver.unregister(&self.region);
            }
        }
    }

    fn send(&mut self, handle: usize, socket: usize) {
        let Some(at) = self.pick(handle) else { return };
        let (whole, held) = &self.held[at];
        let number = socket % (self.places.len() * 2);
        let (place, stream) = (number / 2, number.is_multiple_of(2));
        let socket = &self.places[place].sockets[number % 2];
        let Held { seed, start, .. } = *held;
        let (sent, on_loan) = match socket.send(held.frozen.clone()) {
            Ok(sending) => sending.split(),
            Err(refused) => {
                assert_eq!(refused.buffer[..], held.frozen[..]);
                return;
            }
        };
        if stream {
            self.streams[place].extend_from_slice(&held.frozen);
        }
        let (whole, len) = (*whole, held.frozen.len());
        self.loans.push(Loan { whole, seed, start, len, on_loan, sent, stream });
    }

    /// Takes a loan back, or leaves it in place.
    pub(crate) fn take(&mut self, loan: Loan) {
        let Loan { whole, seed, start, len, .. } = loan;
        match loan.on_loan.try_take() {
            Ok(Returned { buffer, .. }) => {
                assert_eq!(buffer.len(), len);
                let held = Held { frozen: buffer, seed, start };
                held.check();
                self.held.push((whole, held));
            }
            Err(on_loan) => self.loans.push(Loan { on_loan, ..loan }),
        }
    }

    fn unfreeze(&mut self, number: usize) {
        let Some(at) = self.pick(number) else { return };
        let (whole, held) = self.held.swap_remove(at);
        match held.frozen.try_unfreeze() {
            Err(frozen) => self.held.push((whole, Held { frozen, ..held })),
            Ok(mut buffer) => {
                assert_eq!(self.seen(whole), 0, "it was unfrozen while others had it");
                assert_eq!(buffer[..], pattern(held.seed, SHORT));
                self.seeds += 1;
                buffer.copy_from_slice(&pattern(self.seeds, SHORT));
                let frozen = buffer.freeze();
                self.held.push((whole, Held { frozen, seed: self.seeds, start: 0 }));
            }
        }
    }
}
