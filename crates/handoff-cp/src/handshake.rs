//! The first words on a connection, from both sides.
//!
//! Contracts:
//! - every wait ends with the time-out or with the stop, whichever is first;
//! - hellos are read side by side, so a silent connection blocks nobody;
//! - a listener takes exactly the connections of one transfer, then listens no more; a connection that does
//!   not speak the protocol is turned away and does not end the wait.

use std::collections::VecDeque;
use std::future::{Future, IntoFuture as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{Either, LocalBoxFuture, select, try_join_all};
use handoff::tls::TlsSession;
use handoff::{Buffer, Driver, Engine, Error, Region, RxQueue, Socket};
use handoff_command::Failure;
use handoff_command::allow_list::AllowList;
use handoff_command::descriptors;
use handoff_command::failure::Failed;
use handoff_net::reach::Listener;
use rustix::net::SendFlags;

use crate::lock::Lock;
use crate::wire::{Frame, HELLO_LEN, Hello};

/// How long an accepted connection may take for its first words, in the clear.
const FIRST_WORDS: Duration = Duration::from_secs(5);

/// The most connections whose first words are incomplete: the oldest makes room for the next.
const MOST_WAITING: usize = 256;

/// How long a refusal may take to be sent.
const AT_ONCE: Duration = Duration::from_millis(100);

const SILENT: &str =
    "the peer does not speak: is it `handoff cp`? (with nc, socat and the like use --raw)";

const UNPROVEN: &str = "the handshake came to no end in time (--connect-timeout): is the peer `handoff cp` with tls://?";

/// How first words are said and heard.
#[derive(Clone, Copy)]
pub(crate) struct Greeting<'a> {
    pub(crate) driver: &'a Driver,
    /// The NIC may steer any connection to it.
    pub(crate) queue: Option<&'a RxQueue>,
    /// Connections are ciphered, and both ends prove themselves before anything else.
    pub(crate) lock: Option<&'a Lock>,
}

impl Greeting<'_> {
    /// What is said of a peer that takes too long.
    fn late(&self) -> &'static str {
        if self.lock.is_some() { UNPROVEN } else { SILENT }
    }

    /// Makes a connection what it is to be before the hellos.
    async fn open(&self, socket: Socket) -> Result<(Socket, Option<TlsSession>), Failure> {
        match self.lock {
            None => Ok((socket, None)),
            Some(lock) => {
                let (socket, session) = lock.open(self.driver, socket).await?;
                Ok((socket, Some(session)))
            }
        }
    }
}

/// Connections of a transfer.
pub(crate) struct Reached {
    pub(crate) connections: Vec<Socket>,
    /// What the peer says of the transfer; `None` with `--raw`.
    pub(crate) peer: Option<Hello>,
    /// Who ciphers them, if that is done.
    pub(crate) session: Option<TlsSession>,
}

/// Why a peer that has said hello is turned away, and what it is told of that.
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) hello: Option<Hello>,
}

/// A connection that has said hello.
struct Spoken {
    socket: Socket,
    session: Option<TlsSession>,
    hello: Hello,
}

/// Connections whose peers have not yet said who they are.
struct Handshakes<'a, A> {
    greeting: Greeting<'a>,
    listener: handoff::Listener,
    allow_list: AllowList,
    waiting: VecDeque<Waiting<'a>>,
    /// The most of them; a transfer needs descriptors, too.
    room: usize,
    /// How long each may take.
    time: Duration,
    answer: A,
}

struct Waiting<'a> {
    peer: SocketAddr,
    words: LocalBoxFuture<'a, Result<Spoken, Failure>>,
}

/// Takes all connections of one transfer, in the order of their streams; returns the peer's hello. `answer`
/// returns our hello for theirs, or why they are turned away. It waits for nobody longer than `first`, and
/// for the other streams of a transfer than `rest`: then it turns away those that came, and waits for another sender.
///
/// # Errors
///
/// The time-outs, errors of accepting.
pub(crate) async fn gather(
    greeting: Greeting<'_>,
    listener: Listener,
    answer: impl Fn(&Hello, &Socket) -> Result<Hello, Refusal>,
    first: Option<Duration>,
    rest: Duration,
) -> Result<Reached, Failure> {
    let (listener, allow_list) = listener.on(greeting.driver)?;
    let room = MOST_WAITING.min(descriptors::allowed() / 4);
    let waiting = VecDeque::new();
    let time = if greeting.lock.is_some() { rest } else { FIRST_WORDS };
    let mut handshakes = Handshakes { greeting, listener, allow_list, waiting, room, time, answer };
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

impl<'a, A: Fn(&Hello, &Socket) -> Result<Hello, Refusal>> Handshakes<'a, A> {
    /// All connections of the next transfer; `None` if some of them did not come.
    async fn transfer(
        &mut self,
        first: Duration,
        rest: Duration,
    ) -> Result<Option<Reached>, Failure> {
        let driver = self.greeting.driver;
        let nobody = "nobody connected in time (--connect-timeout)";
        let (peer, spoken) = within(driver, first, nobody, self.accepted(None)).await?;
        let Spoken { socket, session, hello } = spoken;
        let mut streams: Vec<Option<Socket>> = Vec::new();
        streams.resize_with(usize::from(hello.streams), || None);
        streams[usize::from(hello.stream)] = Some(socket);
        let others = async {
            while streams.iter().any(Option::is_none) {
                let (_, next) = self.accepted(Some(hello)).await?;
                streams[usize::from(next.hello.stream)] = Some(next.socket);
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
        let connections = streams.into_iter().flatten().collect();
        Ok(Some(Reached { connections, peer: Some(hello), session }))
    }

    /// The next welcome connection: of the transfer that has begun, if one has.
    async fn accepted(&mut self, begun: Option<Hello>) -> Result<(SocketAddr, Spoken), Failure> {
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
                    Ok(spoken) => return Ok((peer, spoken)),
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
        let (greeting, time) = (self.greeting, self.time);
        let words = async move {
            let words = async {
                let (socket, session) = greeting.open(socket).await?;
                let hello = hear(&socket, greeting.queue).await?;
                Ok(Spoken { socket, session, hello })
            };
            within(greeting.driver, time, greeting.late(), words).await
        };
        self.waiting.push_back(Waiting { peer, words: words.boxed_local() });
    }

    /// Answers a hello, if it belongs to the transfer that has begun.
    async fn welcome(
        &self,
        words: Result<Spoken, Failure>,
        begun: Option<Hello>,
    ) -> Result<Spoken, String> {
        let line = |failure: Failure| failure.line().unwrap_or_default();
        let spoken = words.map_err(line)?;
        let (driver, hello) = (self.greeting.driver, spoken.hello);
        if !begun.is_none_or(|begun| begun == Hello { stream: begun.stream, ..hello }) {
            return Err("it belongs to another transfer".to_owned());
        }
        let ours = match (self.answer)(&hello, &spoken.socket) {
            Ok(ours) => ours,
            Err(Refusal { why, hello }) => {
                if let Some(hello) = hello {
                    refuse(driver, &spoken, &hello, &why).await;
                }
                return Err(why);
            }
        };
        let late = "it took too long to listen";
        let speaking = speak(&spoken.socket, spoken.session.is_some(), &ours);
        within(driver, FIRST_WORDS, late, speaking).await.map_err(line)?;
        Ok(spoken)
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
async fn refuse(driver: &Driver, peer: &Spoken, hello: &Hello, why: &str) {
    let answer = Frame::Answer { bytes: 0, outcome: Err(why.to_owned()) };
    let words = [&hello.encode()[..], &answer.encode()].concat();
    let socket = &peer.socket;
    // If it does not read that, it sees the connection end.
    if peer.session.is_none() {
        let _ = rustix::net::send(socket, &words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    } else if let Ok(sending) = socket.send(Buffer::from(words)) {
        let _ = driver.timeout(AT_ONCE, sending.into_future()).await;
    }
}

/// Says hello on each connection, with its number, and reads the peer's; `heard` is called for each that has
/// spoken.
///
/// # Errors
///
/// A peer that is gone or sends something else, the time-out, errors of `heard`.
pub(crate) async fn call(
    greeting: Greeting<'_>,
    connections: Vec<Socket>,
    hello: impl Fn(u16) -> Hello,
    heard: impl Fn(&Socket, u16) -> Result<(), Failure>,
    time: Duration,
) -> Result<Reached, Failure> {
    let both = async {
        // Side by side, as the listener waits for none of them for long.
        let opened =
            try_join_all(connections.into_iter().zip(0..).map(async |(socket, number)| {
                let (socket, session) = greeting.open(socket).await?;
                speak(&socket, session.is_some(), &hello(number)).await?;
                Ok::<_, Failure>((socket, session))
            }));
        let (mut connections, mut peer, mut first) = (Vec::new(), None, None);
        for ((socket, session), number) in opened.await?.into_iter().zip(0..) {
            peer = Some(hear(&socket, greeting.queue).await?);
            heard(&socket, number)?;
            connections.push(socket);
            first = first.or(session);
        }
        Ok(Reached { connections, peer, session: first })
    };
    within(greeting.driver, time, greeting.late(), both).await
}

async fn speak(socket: &Socket, ciphered: bool, hello: &Hello) -> Result<(), Failure> {
    const GREETING: &str = "greeting the peer";
    let hello = hello.encode();
    if ciphered {
        let sending = socket.send(Buffer::from(hello.to_vec())).failed(GREETING)?;
        return sending.await.failed(GREETING)?.sent.map(drop).failed(GREETING);
    }
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
                // Over TLS this is what an end without close-notify gives.
                Err(Error::StreamEnded { .. } | Error::Tls { .. }) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECONNRESET) => {}
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
             of another version, wants tls://, or is not `handoff cp` (for nc, socat and the like use --raw)",
        )),
    }
}
