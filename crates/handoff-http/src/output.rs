//! What a connection sends: small pieces together, large ones lent.
//!
//! Contracts:
//! - bytes leave in the order in which they were given;
//! - at most [`UNTAKEN`] sends wait for room at the client, so a slow client slows the body;
//! - at most [`ON_LOAN`] are lent, so slow clients leave the driver room for others;
//! - dropping it cancels what the kernel has not taken; what the kernel has, it keeps until the client has it or the
//!   connection is reset.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSliceMut;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use handoff::{
    Buffer, Driver, Error, Frozen, OnLoan, Payload, Receipt, Route, RouteEngine, Sent, Socket,
    Tally,
};
use rustix::io::{ReadWriteFlags, preadv2};
use rustix::net::sockopt::set_socket_linger;

use crate::common::Common;
use crate::cut::Cut;
use crate::room;
use crate::served::Counters;

/// A piece of this size or more is lent; smaller ones are copied, several together.
pub(crate) const LENT_FROM: usize = 16 << 10;
/// The most bytes lent by one send.
const PIECE: usize = 256 << 10;
/// A range of a file of this size or more goes by a route.
const ROUTED_FROM: u64 = 64 << 10;
/// A range of a file of this size or more is lent where possible; splicing less takes fewer instructions.
const FILE_LENT_FROM: u64 = 256 << 10;
/// The most sends that the kernel has not taken.
const UNTAKEN: usize = 4;
/// The most sends of a connection on loan, if the driver has operations to spare; otherwise one.
const ON_LOAN: usize = 16;
/// Sends and files after which others have their turn: without a ring a send may be over at once.
const TURN: u32 = 16;

/// What a connection is sending. Whoever polls the connection looks at it, so nothing finished is kept.
pub(crate) struct Loans {
    /// Sends that the kernel has not taken whole.
    untaken: RefCell<VecDeque<Sent>>,
    /// Why one of them ended early.
    failure: Cell<Option<Error>>,
    on_loan: RefCell<VecDeque<Loan>>,
    /// A file is on its way.
    routing: Cell<bool>,
    /// Bytes of the current answer's body that were given to the kernel.
    pub(crate) body: Cell<u64>,
    counters: Rc<Counters>,
}

enum Loan {
    Gathered(OnLoan<Vec<Buffer>>),
    Bytes(OnLoan<Bytes>),
    Frozen(OnLoan<Frozen>),
}

impl Loan {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<handoff::Result<Receipt>> {
        match self {
            Self::Gathered(loan) => Pin::new(loan).poll(context).map_ok(|back| back.receipt),
            Self::Bytes(loan) => Pin::new(loan).poll(context).map_ok(|back| back.receipt),
            Self::Frozen(loan) => Pin::new(loan).poll(context).map_ok(|back| back.receipt),
        }
    }

    /// Counts bytes by what happened to them. Gathered bytes were copied before.
    fn tally(&self, receipt: &Receipt) -> Tally {
        match self {
            Self::Gathered(_) => Tally { copied: receipt.tally.total(), ..Tally::default() },
            Self::Bytes(_) | Self::Frozen(_) => receipt.tally,
        }
    }
}

impl Loans {
    /// Takes back finished sends.
    pub(crate) fn look(&self, context: &mut Context<'_>) {
        self.untaken.borrow_mut().retain_mut(|sent| match Pin::new(sent).poll(context) {
            Poll::Ready(Ok(_)) => false,
            Poll::Ready(Err(error)) => {
                self.failure.set(Some(error));
                false
            }
            Poll::Pending => true,
        });
        self.on_loan.borrow_mut().retain_mut(|loan| match loan.poll(context) {
            Poll::Ready(Ok(receipt)) => {
                self.counters.write(|served| served.sent += loan.tally(&receipt));
                false
            }
            Poll::Ready(Err(error)) => {
                self.failure.set(Some(error));
                false
            }
            Poll::Pending => true,
        });
    }

    /// Whether the client does not have all of what was given.
    pub(crate) fn is_under_way(&self) -> bool {
        self.held() > 0 || self.routing.get()
    }

    /// So many bytes of a body go.
    fn count(&self, bytes: usize) {
        self.body.update(|body| body + bytes as u64);
    }

    /// What the kernel has not taken or not given back.
    fn held(&self) -> usize {
        self.untaken.borrow().len() + self.on_loan.borrow().len()
    }
}

/// A kind of buffer that is sent here.
trait Lend: Payload {
    fn on_loan(loan: OnLoan<Self>) -> Loan;
}

impl Lend for Vec<Buffer> {
    fn on_loan(loan: OnLoan<Self>) -> Loan {
        Loan::Gathered(loan)
    }
}

impl Lend for Bytes {
    fn on_loan(loan: OnLoan<Self>) -> Loan {
        Loan::Bytes(loan)
    }
}

impl Lend for Frozen {
    fn on_loan(loan: OnLoan<Self>) -> Loan {
        Loan::Frozen(loan)
    }
}

pub(crate) struct Output {
    common: Rc<Common>,
    driver: Driver,
    socket: Socket,
    stall: Duration,
    splices: bool,
    stopped_blocking: bool,
    /// What the next send carries.
    pub(crate) gathered: Vec<u8>,
    /// Sends and files in all.
    sends: u32,
    loans: Rc<Loans>,
}

impl Output {
    pub(crate) fn new(common: &Rc<Common>, socket: &Socket) -> Self {
        let loans = Loans {
            untaken: RefCell::default(),
            failure: Cell::default(),
            on_loan: RefCell::default(),
            routing: Cell::default(),
            body: Cell::default(),
            counters: Rc::clone(&common.counters),
        };
        Self {
            common: Rc::clone(common),
            driver: common.driver.clone(),
            socket: socket.clone(),
            stall: common.limits.stall,
            splices: common.unlent.is_some(),
            stopped_blocking: false,
            gathered: Vec::new(),
            sends: 0,
            loans: Rc::new(loans),
        }
    }

    pub(crate) fn loans(&self) -> Rc<Loans> {
        Rc::clone(&self.loans)
    }

    /// Makes the connection's end a reset, or an ordinary end.
    pub(crate) fn ends_by_reset(&self, reset: bool) {
        let linger = reset.then_some(Duration::ZERO);
        if let Err(error) = set_socket_linger(&self.socket, linger) {
            tracing::debug!(%error, "the end of a connection stays as it is");
        }
    }

    /// Adds bytes behind the earlier ones, and lends them if they are many.
    pub(crate) async fn put(&mut self, mut bytes: Bytes) -> Result<(), Cut> {
        if bytes.len() < LENT_FROM {
            return self.put_copied(&bytes).await;
        }
        self.flush_before_more().await?;
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE));
            let len = piece.len();
            self.send(piece).await?;
            self.loans.count(len);
        }
        Ok(())
    }

    /// As [`put`](Self::put).
    pub(crate) async fn put_frozen(&mut self, frozen: &Frozen) -> Result<(), Cut> {
        if frozen.len() < LENT_FROM {
            return self.put_copied(frozen).await;
        }
        self.flush_before_more().await?;
        for start in (0..frozen.len()).step_by(PIECE) {
            let end = frozen.len().min(start + PIECE);
            self.send(frozen.part(start..end)).await?;
            self.loans.count(end - start);
        }
        Ok(())
    }

    async fn put_copied(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        if self.gathered.len() + bytes.len() > LENT_FROM {
            self.flush().await?;
        }
        self.gathered.extend_from_slice(bytes);
        self.loans.count(bytes.len());
        Ok(())
    }

    /// Sends a range of a file: through memory where it is short, else from the page cache's pages.
    pub(crate) async fn put_file(
        &mut self,
        file: &handoff::File,
        range: Range<u64>,
    ) -> Result<(), Cut> {
        let len = range.end - range.start;
        if len < ROUTED_FROM {
            return Box::pin(self.put_through_memory(file, range)).await;
        }
        self.give_turn().await;
        let mut route = Route::new(&self.driver, (file, range.clone()), &self.socket);
        let splices = self.splices || len < FILE_LENT_FROM;
        if splices {
            self.stop_blocking();
            let head = std::mem::take(&mut self.gathered);
            route = route.starting_with(RouteEngine::Splice).head(head);
        }
        let mut routed = Routed { route, loans: Rc::clone(&self.loans) };
        if splices && routed.route.run_at_once() {
            return Ok(());
        }
        // A function of its own, so that answers that need no wait are small.
        Box::pin(self.run(routed, len)).await
    }

    async fn put_through_memory(
        &mut self,
        file: &handoff::File,
        range: Range<u64>,
    ) -> Result<(), Cut> {
        let len = range.end - range.start;
        let buffer = Buffer::from(vec![0; len as usize]);
        let read = |buffer| file.read_at(buffer, range.start);
        let read = room::start(&self.driver, buffer, read).await?.await?;
        if (read.result? as u64) < len {
            return Err(Cut::FileEnded);
        }
        self.put_read(read.buffer).await
    }

    /// Adds a short range of a file if the page cache has all of it, which takes one call; returns whether
    /// it is done.
    pub(crate) async fn put_cached(
        &mut self,
        file: &std::fs::File,
        range: &Range<u64>,
    ) -> Result<bool, Cut> {
        let len = range.end - range.start;
        if len >= ROUTED_FROM {
            return Ok(false);
        }
        let mut bytes = vec![0; len as usize];
        let pieces = &mut [IoSliceMut::new(&mut bytes)];
        let read = preadv2(file, pieces, range.start, ReadWriteFlags::NOWAIT);
        if read.is_ok_and(|read| read == bytes.len()) {
            self.put_read(Buffer::from(bytes)).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Sends bytes read from a file, behind the gathered ones.
    async fn put_read(&mut self, buffer: Buffer) -> Result<(), Cut> {
        self.loans.counters.write(|served| served.read.copied += buffer.len() as u64);
        let head = Buffer::from(std::mem::take(&mut self.gathered));
        let len = buffer.len();
        self.send(vec![head, buffer]).await?;
        self.loans.count(len);
        Ok(())
    }

    /// Runs a route of so many bytes to its end.
    async fn run(&mut self, mut routed: Routed, len: u64) -> Result<(), Cut> {
        self.flush_before_more().await?;
        self.loans.routing.set(true);
        let progress = routed.route.progress();
        let running = pin!(routed.route.run());
        let standing_still = pin!(async {
            let mut seen = progress.get();
            loop {
                self.driver.sleep(self.stall).await?;
                if progress.get() == seen {
                    return Err::<(), Cut>(Cut::Stalled);
                }
                seen = progress.get();
            }
        });
        match select(running, standing_still).await {
            Either::Left((carried, _)) => {
                carried.result?;
                if carried.bytes < len {
                    return Err(Cut::FileEnded);
                }
                self.loans.routing.set(false);
                Ok(())
            }
            Either::Right((ended, _)) => ended,
        }
    }

    /// Sends gathered bytes, without waiting until the kernel has taken them.
    pub(crate) async fn flush(&mut self) -> Result<(), Cut> {
        self.send_gathered(false).await
    }

    /// The same if more is sent at once, which goes into the same packets.
    async fn flush_before_more(&mut self) -> Result<(), Cut> {
        self.send_gathered(true).await
    }

    async fn send_gathered(&mut self, more: bool) -> Result<(), Cut> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let buffer = Buffer::from(std::mem::take(&mut self.gathered));
        self.send_before(vec![buffer], more).await
    }

    /// Waits until the kernel has taken everything.
    pub(crate) async fn finish(&mut self) -> Result<(), Cut> {
        self.flush().await?;
        self.until(|loans| loans.untaken.borrow().is_empty()).await
    }

    /// Waits until every lent buffer is back.
    pub(crate) async fn give_back(&mut self) -> Result<(), Cut> {
        self.until(|loans| loans.on_loan.borrow().is_empty()).await
    }

    async fn send<B: Lend>(&mut self, buffer: B) -> Result<(), Cut> {
        self.send_before(buffer, false).await
    }

    /// Sends a buffer, before more or not.
    async fn send_before<B: Lend>(&mut self, buffer: B, more: bool) -> Result<(), Cut> {
        self.until(|loans| {
            let most = if self.common.has_spare() { ON_LOAN } else { 1 };
            loans.untaken.borrow().len() < UNTAKEN && loans.on_loan.borrow().len() < most
        })
        .await?;
        self.give_turn().await;
        let send = |buffer| {
            let message = self.socket.message(buffer);
            if more { message.more() } else { message }.send()
        };
        let (sent, loan) = room::start(&self.driver, buffer, send).await?.split();
        self.loans.untaken.borrow_mut().push_back(sent.cancel_on_drop());
        self.loans.on_loan.borrow_mut().push_back(B::on_loan(loan));
        Ok(())
    }

    /// Before each send or file.
    async fn give_turn(&mut self) {
        self.sends = self.sends.wrapping_add(1);
        if self.sends.is_multiple_of(TURN) {
            others_first().await;
        }
    }

    /// Splicing needs a non-blocking socket; this one stays so, so that not every file has to check.
    fn stop_blocking(&mut self) {
        if !self.stopped_blocking {
            self.stopped_blocking = self.socket.never_block().is_ok();
        }
    }

    /// Waits until that holds. Fails if a send has, or if the client takes nothing for too long.
    async fn until(&self, is_so: impl Fn(&Loans) -> bool) -> Result<(), Cut> {
        let loans = &self.loans;
        loop {
            let held = loans.held();
            let so = poll_fn(|context| {
                loans.look(context);
                if let Some(error) = loans.failure.take() {
                    return Poll::Ready(Err(Cut::from(error)));
                }
                let is_so = is_so(loans);
                if is_so || loans.held() < held { Poll::Ready(Ok(is_so)) } else { Poll::Pending }
            });
            match self.driver.timeout(self.stall, so).await {
                Err(Error::TimedOut { .. }) => return Err(Cut::Stalled),
                waited => match waited?? {
                    true => return Ok(()),
                    false => continue,
                },
            }
        }
    }
}

/// A route, counted however it ends.
struct Routed {
    route: Route,
    loans: Rc<Loans>,
}

impl Drop for Routed {
    fn drop(&mut self) {
        self.loans.body.update(|body| body + self.route.progress().get());
        self.loans.counters.write(|served| {
            served.sent += self.route.given();
            served.read += self.route.taken();
        });
    }
}

/// Gives the thread's other futures their turn.
async fn others_first() {
    let mut waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
