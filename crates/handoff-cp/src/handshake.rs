//! The first words on a connection, from both sides.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - hellos are read side by side, so a silent connection blocks nobody;
//! - a listener takes exactly the connections of one transfer, then listens no more; a connection that does
//!   not speak the protocol is turned away and does not end the wait.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{Either, LocalBoxFuture, select};
use handoff::{Buffer, Driver, Engine, Error, Region, RxQueue, Socket};
use handoff_command::Failure;
use handoff_command::allow_list::AllowList;
use handoff_command::descriptors;
use handoff_command::failure::Failed;
use handoff_net::reach::Listener;
use rustix::net::SendFlags;

use crate::wire::{Frame, HELLO_LEN, Hello};

/// How long an accepted connection may take for its first words.
const FIRST_WORDS: Duration = Duration::from_secs(5);

/// The most connections whose first words are incomplete: the oldest makes room for the next.
const MOST_WAITING: usize = 256;

const SILENT: &str =
    "the peer does not speak: is it `handoff cp`? (with nc, socat and the like use --raw)";

/// Connections whose peers have not yet said who they are.
struct Handshakes<'a, A> {
    driver: &'a Driver,
    queue: Option<&'a RxQueue>,
    listener: handoff::Listener,
    allow_list: AllowList,
    waiting: VecDeque<Waiting<'a>>,
    /// The most of them; a transfer needs descriptors, too.
    room: usize,
    answer: A,
}

struct Waiting<'a> {
    peer: SocketAddr,
    words: LocalBoxFuture<'a, Result<(Socket, Hello), Failure>>,
}

/// Takes all connections of one transfer, in the order of their streams; returns the peer's hello. `answer`
/// returns our hello for theirs, or why they are turned away. It waits for nobody longer than `first`, and
/// for the other streams of a transfer than `rest`: then it turns away those that came, and waits for another sender.
/// The NIC may steer any of them to `queue`.
///
/// # Errors
///
/// The time-outs, errors of accepting.
pub(crate) async fn gather(
    driver: &Driver,
    queue: Option<&RxQueue>,
    listener: Listener,
    answer: impl Fn(&Hello, &Socket) -> Result<Hello, String>,
    first: Option<Duration>,
    rest: Duration,
) -> Result<(Vec<Socket>, Hello), Failure> {
    let (listener, allow_list) = listener.on(driver)?;
    let room = MOST_WAITING.min(descriptors::allowed() / 4);
    let waiting = VecDeque::new();
    let mut handshakes = Handshakes { driver, queue, listener, allow_list, waiting, room, answer };
    // A time-out past the end of time means none.
    let until = first.and_then(|first| Instant::now().checked_add(first));
    loop {
        let left =
            until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
        if let Some(transfer) = handshakes.transfer(left, rest).await? {
            return Ok(transfer);
        }
    }
}

impl<'a, A: Fn(&Hello, &Socket) -> Result<Hello, String>> Handshakes<'a, A> {
    /// All connections of the next transfer; `None` if some of them did not come.
    async fn transfer(
        &mut self,
        first: Duration,
        rest: Duration,
    ) -> Result<Option<(Vec<Socket>, Hello)>, Failure> {
        let driver = self.driver;
        let nobody = "nobody connected in time (--connect-timeout)";
        let (peer, socket, hello) = within(driver, first, nobody, self.accepted(None)).await?;
        let mut streams: Vec<Option<Socket>> = Vec::new();
        streams.resize_with(usize::from(hello.streams), || None);
        streams[usize::from(hello.stream)] = Some(socket);
        let others = async {
            while streams.iter().any(Option::is_none) {
                let (_, socket, next) = self.accepted(Some(hello)).await?;
                streams[usize::from(next.stream)] = Some(socket);
            }
            Ok::<_, Failure>(())
        };
        match driver.timeout(rest, others).await {
            Ok(over) => over?,
            Err(Error::TimedOut { .. }) => {
                let came = streams.iter().flatten().count();
                let why = format!(
                    "only {came} of the {} streams of its transfer connected in time (--connect-timeout)",
                    hello.streams
                );
                self.allow_list.turned_away(peer, &why);
                return Ok(None);
            }
            Err(error) => return Err(Failure::failed(error)),
        }
        Ok(Some((streams.into_iter().flatten().collect(), hello)))
    }

    /// The next welcome connection: of the transfer that has begun, if one has.
    async fn accepted(
        &mut self,
        begun: Option<Hello>,
    ) -> Result<(SocketAddr, Socket, Hello), Failure> {
        loop {
            let words = poll_fn(|context| {
                let spoken = self.waiting.iter_mut().enumerate().find_map(|(at, one)| {
                    match one.words.poll_unpin(context) {
                        Poll::Ready(words) => Some((at, words)),
                        Poll::Pending => None,
                    }
                });
                match spoken {
                    Some((at, words)) => {
                        let one = self.waiting.remove(at).expect("was polled just now");
                        Poll::Ready((one.peer, words))
                    }
                    None => Poll::Pending,
                }
            });
            let next = match select(pin!(words), self.listener.accept()).await {
                Either::Left((heard, _)) => Either::Left(heard),
                Either::Right((accepted, _)) => Either::Right(accepted),
            };
            match next {
                Either::Left((peer, words)) => match self.welcome(words, begun).await {
                    Ok((socket, hello)) => return Ok((peer, socket, hello)),
                    Err(why) => self.allow_list.turned_away(peer, &why),
                },
                Either::Right(Ok((socket, peer))) => self.take_in(socket, peer),
                Either::Right(Err(error)) => match self.waiting.pop_front() {
                    Some(oldest) if matches!(error, Error::NoDescriptor { .. }) => {
                        self.allow_list.turned_away(oldest.peer, &error.to_string());
                    }
                    _ => return Err(error).failed("accepting a connection"),
                },
            }
        }
    }

    /// Reads from a new connection, if it may connect.
    fn take_in(&mut self, socket: Socket, peer: SocketAddr) {
        if !self.allow_list.lets_in(peer) {
            return;
        }
        if self.waiting.len() >= self.room
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.allow_list.turned_away(oldest.peer, "it said nothing while others came");
        }
        let (driver, queue) = (self.driver, self.queue);
        let words = async move {
            let hello = within(driver, FIRST_WORDS, SILENT, hear(&socket, queue)).await?;
            Ok((socket, hello))
        };
        self.waiting.push_back(Waiting { peer, words: words.boxed_local() });
    }

    /// Answers a hello, if it belongs to the transfer that has begun.
    async fn welcome(
        &self,
        words: Result<(Socket, Hello), Failure>,
        begun: Option<Hello>,
    ) -> Result<(Socket, Hello), String> {
        let line = |failure: Failure| failure.line().unwrap_or_default();
        let (socket, hello) = words.map_err(line)?;
        if !begun.is_none_or(|begun| begun == Hello { stream: begun.stream, ..hello }) {
            return Err("it belongs to another transfer".to_owned());
        }
        let ours = (self.answer)(&hello, &socket)?;
        let late = "it took too long to listen";
        within(self.driver, FIRST_WORDS, late, speak(&socket, &ours)).await.map_err(line)?;
        Ok((socket, hello))
    }
}

/// The result of a future, or that it took too long.
async fn within<T>(
    driver: &Driver,
    time: Duration,
    late: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match driver.timeout(time, work).await {
        Ok(over) => over,
        Err(Error::TimedOut { .. }) => Err(Failure::failed(late)),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Tells a peer that says hello why it is refused, as much as can be sent at once.
pub(crate) fn refuse(socket: &Socket, hello: &Hello, why: &str) {
    let answer = Frame::Answer { bytes: 0, outcome: Err(why.to_owned()) };
    let words = [&hello.encode()[..], &answer.encode()].concat();
    // If it does not read that, it sees the connection end.
    let _ = rustix::net::send(socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Says hello on each connection, with its number, and reads the peer's; `heard` is called for each that has
/// spoken. The NIC may steer any of them to `queue`.
///
/// # Errors
///
/// A peer that is gone or sends something else, the time-out, errors of `heard`.
pub(crate) async fn call(
    driver: &Driver,
    queue: Option<&RxQueue>,
    sockets: &[Socket],
    hello: impl Fn(u16) -> Hello,
    heard: impl Fn(&Socket, u16) -> Result<(), Failure>,
    time: Duration,
) -> Result<Option<Hello>, Failure> {
    let both = async {
        for (socket, number) in sockets.iter().zip(0..) {
            speak(socket, &hello(number)).await?;
        }
        let mut peer = None;
        for (socket, number) in sockets.iter().zip(0..) {
            peer = Some(hear(socket, queue).await?);
            heard(socket, number)?;
        }
        Ok(peer)
    };
    within(driver, time, SILENT, both).await
}

async fn speak(socket: &Socket, hello: &Hello) -> Result<(), Failure> {
    const GREETING: &str = "greeting the peer";
    let hello = hello.encode();
    // So few bytes would be a first try of the cheapest engine, and count as lent.
    socket.set_engine(Engine::Copy).failed(GREETING)?;
    let message = socket.message(Vec::<Buffer>::new()).header(&hello).send();
    let (sent, _) = message.failed(GREETING)?.split();
    sent.await.failed(GREETING)?;
    socket.set_engine(Engine::Auto).failed(GREETING)
}

async fn hear(socket: &Socket, queue: Option<&RxQueue>) -> Result<Hello, Failure> {
    const HEARING: &str = "hearing the peer";
    let mut words = Vec::with_capacity(HELLO_LEN);
    match queue {
        None => {
            let mut room = Region::anonymous(HELLO_LEN).failed(HEARING)?;
            let room = room.take(HELLO_LEN).expect("has just that");
            let heard = socket.receive_exact(room).failed(HEARING)?.await.failed(HEARING)?;
            match heard.result {
                Ok(len) => words.extend_from_slice(&heard.buffer[..len]),
                Err(Error::StreamEnded { .. }) => {}
                Err(error) => return Err(error).failed(HEARING),
            }
        }
        // Plain receive cannot read what the NIC has put into the queue's memory.
        Some(queue) => {
            let len = (HELLO_LEN as u32).try_into().expect("is not zero");
            let mut receiver = socket.receive(queue.take(len)).failed(HEARING)?;
            while let Some(span) = receiver.next_span().await {
                words.extend_from_slice(&span.failed(HEARING)?);
            }
        }
    }
    match words.first_chunk() {
        Some(words) => Hello::decode(words).map_err(Failure::failed),
        None => Err(Failure::failed(
            "the peer ended the connection before it said hello: it has another transfer under way, is \
             of another version, or is not `handoff cp` (for nc, socat and the like use --raw)",
        )),
    }
}
