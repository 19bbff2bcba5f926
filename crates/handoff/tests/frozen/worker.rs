//! A thread with a driver of its own, which is given clones.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use handoff::{Driver, RingUse, Wait};

use crate::model::Held;
use crate::readers::Readers;
use crate::traffic::{assert_same, narrow_tcp};

/// So many clones stay in its hands.
const KEPT: usize = 3;

pub(crate) struct Worker {
    given: Sender<Held>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub(crate) fn new(ring: RingUse) -> Self {
        let (given, taken) = mpsc::channel::<Held>();
        let thread = thread::spawn(move || {
            let driver = Driver::builder().ring(ring).build().unwrap();
            let (near, far) = narrow_tcp();
            let mut readers = Readers::new();
            readers.add(far);
            let socket = driver.socket(near).unwrap();
            let (mut kept, mut expected) = (VecDeque::new(), Vec::new());
            for held in taken {
                held.check();
                expected.extend_from_slice(&held.frozen);
                drop(socket.send(held.frozen.clone()).unwrap());
                driver.turn(Wait::No).unwrap();
                kept.push_back(held);
                if kept.len() > KEPT {
                    kept.pop_front().unwrap().check();
                }
            }
            kept.iter().for_each(Held::check);
            while driver.in_flight() > 0 {
                driver.turn(Wait::Event).unwrap();
            }
            drop(socket);
            driver.turn(Wait::No).unwrap();
            assert_same(&readers.end()[0], &expected);
        });
        Self { given, thread }
    }

    pub(crate) fn give(&self, held: Held) {
        // The thread is there unless it failed, which its end tells.
        let _ = self.given.send(held);
    }

    /// All that it was given is sent, and it has let go.
    pub(crate) fn end(self) {
        drop(self.given);
        self.thread.join().unwrap();
    }
}
