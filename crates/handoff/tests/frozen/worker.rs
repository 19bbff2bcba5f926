//! A thread with its own driver, which gets clones.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use handoff::{Driver, RingUse, Wait};

use crate::model::Held;
use crate::readers::Readers;
use crate::traffic::{assert_same, narrow_tcp};

/// It keeps so many clones.
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
        // The thread is there unless it failed; its end shows that.
        let _ = self.given.send(held);
    }

    /// Everything given to it is sent, and it has let go.
    pub(crate) fn end(self) {
        drop(self.given);
        self.thread.join().unwrap();
    }
}
