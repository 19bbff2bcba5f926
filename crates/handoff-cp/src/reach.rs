//! The connections of a transfer: the peer is connected to or waited for, and greeted.

use futures_util::future::try_join_all;
use handoff::{Error, Socket};
use handoff_command::{Failure, allow_list, output};
use handoff_net::address::Endpoint;
use handoff_net::deadline::Deadline;
use handoff_net::reach::{self, Listener};

use crate::args::Args;
use crate::handshake::{self, Greeting, Reached, Refusal};
use crate::job::Job;
use crate::queues::Steering;
use crate::random;
use crate::wire::Hello;

/// What a listener in the clear is told.
const INSTEAD: &str = "type tls-listen:// instead to let in only who has the KEY that it prints, and to have the bytes \
                       ciphered; --from ADDR/LEN lets fewer in";

/// What this side's hello says of the transfer.
pub(crate) struct Offer {
    pub(crate) sends: bool,
    pub(crate) length: Option<u64>,
    pub(crate) sparse: bool,
}

impl Offer {
    /// The hello on one of so many streams.
    fn hello(
        &self,
        args: &Args,
        streams: u16,
        stream: u16,
        transfer: u128,
        hears_work: bool,
    ) -> Hello {
        Hello {
            sends: self.sends,
            verifies: args.verify,
            streams,
            stream,
            transfer,
            length: self.length,
            sparse: self.sparse,
            preserves: args.preserve,
            hears_work,
        }
    }

    /// Why two sides that both send, or both receive, cannot copy.
    fn same_side(&self) -> String {
        let both = if self.sends { "send" } else { "receive" };
        format!("both sides {both}: on one of them the connection is SRC, on the other DST")
    }

    /// Why the peer announces too many bytes.
    fn too_long(&self, args: &Args, peer: &Hello) -> Option<String> {
        if self.sends { None } else { args.too_long(peer.length) }
    }
}

/// Connects to the peer or waits for it, and greets it. The peer's hello is `None` with `--raw`. The NIC's
/// queues, if there are any, get the connections before anything but first words comes.
///
/// # Errors
///
/// A peer that cannot be reached, or that does not fit; time-outs, and the stop.
pub(crate) fn reach(
    job: &Job<'_>,
    offer: &Offer,
    steering: Option<&Steering<'_>>,
) -> Result<Reached, Failure> {
    let args = job.order.args;
    let own = if offer.sends { &job.order.destination } else { &job.order.source };
    let endpoint = own.endpoint().ok_or_else(|| Failure::usage("no side is a connection"))?;
    let reached = match own.listens() {
        true => wait_for(job, endpoint, offer, steering)?,
        false => connect(job, endpoint, offer, steering)?,
    };
    let peer = reached.peer;
    if peer.is_some_and(|peer| peer.sends == offer.sends) {
        return Err(Failure::usage(offer.same_side()));
    }
    if let Some(why) = peer.and_then(|peer| offer.too_long(args, &peer)) {
        return Err(Failure::failed(why));
    }
    if peer.is_some_and(|peer| peer.preserves != args.preserve) {
        job.order.note(
            "a copy keeps the bytes only: --preserve was said on one side, not on both".to_owned(),
        );
    }
    Ok(reached)
}

/// Steers a connection to its queue, if there are queues.
fn steer(steering: Option<&Steering<'_>>, socket: &Socket, stream: u16) -> Result<(), Failure> {
    steering.map_or(Ok(()), |steering| steering.steer(socket, stream))
}

fn wait_for(
    job: &Job<'_>,
    endpoint: &Endpoint,
    offer: &Offer,
    steering: Option<&Steering<'_>>,
) -> Result<Reached, Failure> {
    let args = job.order.args;
    let (family, from) = (args.addresses.family(), args.addresses.from());
    let deadline = Deadline::new(job.order.stop, Some(args.reach_timeout()));
    let secured = job.order.secured.as_ref();
    let listener = match secured {
        Some(secured) => secured.bind(args, endpoint, deadline)?,
        None => Listener::bind(endpoint, family, from, deadline)?,
    };
    let address = listener.address()?;
    // Without words between us a peer sends as soon as it is connected, and bytes that come before the
    // rule exists are copied.
    if let Some(steering) = steering.filter(|_| args.raw) {
        steering.rules.steer_arriving(address)?;
    }
    match secured {
        Some(secured) => secured.announce(args, address, offer.sends),
        None if job.order.certified.is_some() => {
            output::say(format_args!("listening on tls://{address}"));
            let what = if offer.sends { "take the file" } else { "send" };
            allow_list::warn(address, from, what);
        }
        None => {
            output::say(format_args!("listening on tcp://{address}"));
            let what = if offer.sends { "take the file" } else { "send" };
            allow_list::warn_with(address, from, what, INSTEAD);
        }
    }
    if args.raw {
        let deadline = Deadline::new(job.order.stop, args.connect_timeout);
        return bare(job, vec![listener.accept_one(&job.driver, deadline)?]);
    }
    let answer = |peer: &Hello, socket: &Socket| {
        let ours = offer.hello(args, peer.streams, peer.stream, peer.transfer, peer.hears_work);
        let why = (peer.sends == offer.sends).then(|| offer.same_side());
        if let Some(why) = why.or_else(|| offer.too_long(args, peer)) {
            return Err(Refusal { why, hello: Some(ours) });
        }
        match steer(steering, socket, peer.stream) {
            Ok(()) => Ok(ours),
            Err(failure) => Err(Refusal { why: failure.line().unwrap_or_default(), hello: None }),
        }
    };
    let greeting = Greeting {
        driver: &job.driver,
        queue: steering.map(|steering| &steering.queue),
        lock: secured.map(|secured| &secured.lock),
    };
    let deadline = Deadline::new(job.order.stop, None);
    deadline.block_on(&job.driver, async |_| {
        let (first, rest) = (args.connect_timeout, args.reach_timeout());
        handshake::gather(greeting, listener, answer, first, rest).await
    })?
}

/// Connections that carry bare bytes, over TLS if that is wanted.
fn bare(job: &Job<'_>, connections: Vec<Socket>) -> Result<Reached, Failure> {
    const LATE: &str =
        "the handshake came to no end in time (--connect-timeout): does the peer speak TLS?";
    let Some(certified) = &job.order.certified else {
        return Ok(Reached { connections, peer: None, session: None });
    };
    let deadline = Deadline::new(job.order.stop, Some(job.order.args.reach_timeout()));
    let opened = deadline.block_on(&job.driver, async |left| {
        let opening = try_join_all(connections.into_iter().map(|socket| certified.open(socket)));
        match job.driver.timeout(left, opening).await {
            Ok(opened) => opened,
            Err(Error::TimedOut { .. }) => Err(Failure::failed(LATE)),
            Err(error) => Err(Failure::failed(error)),
        }
    })?;
    let (connections, mut sessions): (Vec<_>, Vec<_>) = opened?.into_iter().unzip();
    Ok(Reached { connections, peer: None, session: sessions.pop() })
}

fn connect(
    job: &Job<'_>,
    endpoint: &Endpoint,
    offer: &Offer,
    steering: Option<&Steering<'_>>,
) -> Result<Reached, Failure> {
    let args = job.order.args;
    let deadline = Deadline::new(job.order.stop, Some(args.reach_timeout()));
    let family = args.addresses.family();
    let secured = job.order.secured.as_ref();
    let connected = reach::connect(&job.driver, endpoint, family, args.streams, deadline);
    let connections = connected.map_err(|failure| match failure {
        Failure::Failed(why) if secured.is_some() => Failure::Failed(format!(
            "{}; a listener ends with the transfer that its KEY was for",
            why.replacen("tcp://", "tls://", 1)
        )),
        failure => failure,
    })?;
    if args.raw {
        connections.iter().try_for_each(|socket| steer(steering, socket, 0))?;
        return bare(job, connections);
    }
    let transfer = random::bits();
    let hello = |number| offer.hello(args, args.streams, number, transfer, true);
    let steer = |socket: &Socket, number| steer(steering, socket, number);
    let greeting = Greeting {
        driver: &job.driver,
        queue: steering.map(|steering| &steering.queue),
        lock: secured.map(|secured| &secured.lock),
    };
    deadline.block_on(&job.driver, async |left| {
        handshake::call(greeting, connections, hello, steer, left).await
    })?
}
