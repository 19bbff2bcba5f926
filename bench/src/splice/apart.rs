//! Receiving and sending independently in one thread: what a relay out of a NIC's memory is compared with.
//!
//! Spans are received and dropped. For each piece that a route would send on, the engine sends as many bytes of
//! its own registered memory without a copy.

use std::{cell::Cell, cell::RefCell, collections::VecDeque, future::IntoFuture as _, pin::Pin};
use std::{future::poll_fn, rc::Rc, task::Context, task::Poll};

use handoff::{
    Buffer, Carried, Driver, Engine, Finished, Finishing, Intake, Receiver, Region, RouteEngine,
    Socket, Tally,
};

/// The most pieces on loan at once, and the bytes from which a piece gets no further span: as in a route.
const PIECES: usize = 16;
const ENOUGH: usize = 192 << 10;
/// The most bytes of a piece: its last span may have 64 KiB.
const LONGEST: usize = ENOUGH + (64 << 10);

/// Memory to send from, which all connections share.
#[derive(Clone)]
pub(super) struct Memory(Rc<RefCell<Vec<Buffer>>>);

impl Memory {
    /// Makes memory for this many connections, and registers it with the driver.
    pub(super) fn new(driver: &Driver, connections: usize) -> handoff::Result<Self> {
        let mut region = Region::anonymous(connections * PIECES * LONGEST)?;
        driver.register(&region)?;
        Ok(Self(Rc::new(RefCell::new(region.chunks(LONGEST)))))
    }
}

/// A connection to receive from, and another to send to.
pub(super) struct Apart {
    receiver: Receiver,
    to: Socket,
    memory: Memory,
    out: VecDeque<Finishing<Buffer>>,
    moved: Rc<Cell<u64>>,
    given: Tally,
    result: handoff::Result<()>,
    ended: bool,
}

impl Apart {
    pub(super) fn new(
        from: &Socket,
        intake: Intake,
        to: Socket,
        memory: &Memory,
    ) -> handoff::Result<Self> {
        to.set_engine(Engine::UringZc)?;
        Ok(Self {
            receiver: from.receive(intake)?,
            to,
            memory: memory.clone(),
            out: VecDeque::new(),
            moved: Rc::default(),
            given: Tally::default(),
            result: Ok(()),
            ended: false,
        })
    }

    pub(super) fn progress(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.moved)
    }

    /// Works until the stream has ended and all memory is back.
    pub(super) async fn run(mut self) -> Carried {
        poll_fn(|context| self.poll(context)).await;
        Carried {
            result: self.result,
            bytes: self.moved.get(),
            engine: RouteEngine::Memory,
            taken: self.receiver.tally(),
            given: self.given,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            while let Some(first) = self.out.front_mut()
                && let Poll::Ready(finished) = Pin::new(first).poll(context)
            {
                self.out.pop_front();
                match finished {
                    Ok(finished) => self.take_back(finished),
                    Err(error) => (self.result, self.ended) = (Err(error), true),
                }
            }
            if self.ended {
                return if self.out.is_empty() { Poll::Ready(()) } else { Poll::Pending };
            }
            if self.out.len() >= PIECES {
                return Poll::Pending;
            }
            let received = Pin::new(&mut self.receiver.next_span()).poll(context);
            let Poll::Ready(received) = received else { return Poll::Pending };
            if let Err(error) = self.pass(received) {
                (self.result, self.ended) = (Err(error), true);
            }
        }
    }

    /// Drops the spans that have arrived, and sends as many bytes.
    fn pass(&mut self, first: Option<handoff::Result<handoff::Span>>) -> handoff::Result<()> {
        let Some(first) = first else {
            self.ended = true;
            return Ok(());
        };
        let mut spans = vec![first?];
        let mut bytes = spans[0].len();
        while bytes < ENOUGH {
            // The receiver reports its end again at the next call.
            let Some(Some(span)) = self.receiver.try_next_span() else { break };
            let span = span?;
            bytes += span.len();
            spans.push(span);
        }
        drop(spans);
        let mut buffer =
            self.memory.0.borrow_mut().pop().expect("there is one for each that is out");
        buffer.set_len(bytes);
        let sending = self.to.send(buffer).map_err(|refused| refused.error)?;
        self.out.push_back(sending.into_future());
        Ok(())
    }

    fn take_back(&mut self, finished: Finished<Buffer>) {
        self.memory.0.borrow_mut().push(finished.buffer);
        self.given += finished.receipt.tally;
        match finished.sent {
            Ok(bytes) => self.moved.set(self.moved.get() + bytes as u64),
            Err(error) => (self.result, self.ended) = (Err(error), true),
        }
    }
}
