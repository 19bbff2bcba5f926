//! Handles of any kind on operations, polled and awaited alike.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use handoff::{
    Buffer, Error, Finishing, GroupOnLoan, Lendable, OnLoan, Payload, Sending, Sent, Transfer,
};

use crate::alarm::{Alarm, Whim};
use crate::model::Back;

/// The result of a handle.
#[derive(Debug)]
pub(crate) enum Event {
    Sent(Result<usize, Error>),
    Back(Back),
    Both(Result<usize, Error>, Back),
    Group(Vec<Buffer>),
    Transferred(Result<usize, Error>, Back),
    /// The kernel keeps what the driver had lent it.
    Kept(Error),
    #[cfg(feature = "getbuf")]
    Lent(Result<Option<handoff::Lease>, Error>),
}

fn event_of<T>(over: Result<T, Error>, event: impl FnOnce(T) -> Event) -> Event {
    over.map_or_else(Event::Kept, event)
}

/// A handle to poll.
pub(crate) trait Ask {
    /// Polls without a waker; `None` also where that is impossible.
    fn try_take(&mut self) -> Option<Event>;
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event>;
    fn cancel(&self) {}
}

/// A handle that returns itself if there is nothing to take.
struct Simple<H, T>(Option<H>, fn(H) -> Result<T, H>, fn(T) -> Event);

impl<H, T> Ask for Simple<H, T>
where
    H: Future<Output = T> + Unpin + Cancel,
{
    fn try_take(&mut self) -> Option<Event> {
        match (self.1)(self.0.take()?) {
            Ok(taken) => Some((self.2)(taken)),
            Err(again) => {
                self.0 = Some(again);
                None
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let handle = self.0.as_mut().expect("a handle is asked until it is over");
        Pin::new(handle).poll(context).map(self.2)
    }

    fn cancel(&self) {
        self.0.iter().for_each(Cancel::ask_to_end);
    }
}

/// What can be asked to end early.
trait Cancel {
    fn ask_to_end(&self) {}
}

impl Cancel for Sent {
    fn ask_to_end(&self) {
        self.cancel();
    }
}
impl<B: Payload> Cancel for OnLoan<B> {}
impl<B: Lendable> Cancel for Transfer<B> {}
#[cfg(feature = "getbuf")]
impl Cancel for handoff::Getting {}

struct Whole<B: Payload>(Finishing<B>);

impl<B: Payload + Into<Back>> Ask for Whole<B> {
    fn try_take(&mut self) -> Option<Event> {
        None
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        Pin::new(&mut self.0)
            .poll(context)
            .map(|over| event_of(over, |over| Event::Both(over.sent, over.buffer.into())))
    }
}

struct Flushed(Option<GroupOnLoan<Buffer>>);

impl Ask for Flushed {
    fn try_take(&mut self) -> Option<Event> {
        let mut buffers = Vec::new();
        match self.0.take()?.try_take(&mut buffers) {
            Ok(_) => Some(Event::Group(buffers)),
            Err(again) => {
                self.0 = Some(again);
                None
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let handle = self.0.as_mut().expect("a handle is asked until it is over");
        Pin::new(handle).poll(context).map(|back| event_of(back, |back| Event::Group(back.buffer)))
    }
}

/// What keeps an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Send,
    Transfer,
    Receiver,
    Lend,
}

/// A handle, the waker for its end, and its subject.
pub(crate) struct Handle {
    ask: Box<dyn Ask>,
    /// The waker that the last poll registered. When the operation is over, it is called by the end of the
    /// next turn.
    pub(crate) alarm: Option<Arc<Alarm>>,
    pub(crate) about: usize,
    /// It is only polled.
    future: bool,
    kind: &'static str,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.about)
    }
}

impl Handle {
    fn new(ask: impl Ask + 'static, about: usize, kind: &'static str) -> Self {
        Self { ask: Box::new(ask), alarm: None, about, future: kind == "whole", kind }
    }

    pub(crate) fn sent(sent: Sent, about: usize) -> Self {
        Self::new(Simple(Some(sent), Sent::try_take, Event::Sent), about, "sent")
    }

    pub(crate) fn loan<B: Payload + Into<Back> + 'static>(loan: OnLoan<B>, about: usize) -> Self {
        let take = |loan: OnLoan<B>| loan.try_take().map(Ok);
        let event =
            |back| event_of(back, |back: handoff::Returned<B>| Event::Back(back.buffer.into()));
        Self::new(Simple(Some(loan), take, event), about, "loan")
    }

    pub(crate) fn whole<B: Payload + Into<Back> + 'static>(
        sending: Sending<B>,
        about: usize,
    ) -> Self {
        Self::new(Whole(sending.into_future()), about, "whole")
    }

    pub(crate) fn group(flushed: GroupOnLoan<Buffer>, about: usize) -> Self {
        Self::new(Flushed(Some(flushed)), about, "group")
    }

    pub(crate) fn transfer<B>(transfer: Transfer<B>, about: usize) -> Self
    where
        B: Lendable + Into<Back> + 'static,
    {
        let take = |transfer: Transfer<B>| transfer.try_take().map(Ok);
        let event = |over| {
            event_of(over, |over: handoff::Transferred<B>| {
                Event::Transferred(over.result, over.buffer.into())
            })
        };
        Self::new(Simple(Some(transfer), take, event), about, "transfer")
    }

    #[cfg(feature = "getbuf")]
    pub(crate) fn lend(getting: handoff::Getting, about: usize) -> Self {
        Self::new(Simple(Some(getting), handoff::Getting::try_take, Event::Lent), about, "lend")
    }

    /// What it keeps as long as it exists; a group keeps only buffers.
    pub(crate) fn operation(&self) -> Option<(Kind, usize)> {
        match self.kind {
            "group" => None,
            "transfer" => Some((Kind::Transfer, self.about)),
            "lend" => Some((Kind::Lend, self.about)),
            _ => Some((Kind::Send, self.about)),
        }
    }

    /// Returns whether its kind can do that.
    pub(crate) fn cancel(&self) -> bool {
        self.ask.cancel();
        self.kind == "sent"
    }

    /// Asks without waiting.
    pub(crate) fn ask(&mut self) -> Option<Event> {
        if self.future {
            match self.ask.poll(&mut Context::from_waker(&Alarm::new(Whim::Nothing).waker())) {
                Poll::Ready(event) => Some(event),
                Poll::Pending => {
                    // The old waker has been dropped, and need not be called.
                    self.alarm = None;
                    None
                }
            }
        } else {
            self.ask.try_take()
        }
    }

    pub(crate) fn poll(&mut self, whim: Whim) -> Option<Event> {
        let before = self.alarm.take();
        let alarm = Alarm::new(whim);
        match self.ask.poll(&mut Context::from_waker(&alarm.waker())) {
            Poll::Ready(event) => {
                self.alarm = before;
                Some(event)
            }
            Poll::Pending => {
                self.alarm = Some(alarm);
                None
            }
        }
    }
}
