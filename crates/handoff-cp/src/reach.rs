//! The connections of a transfer: the peer is connected to or waited for, and greeted.

use handoff::Socket;
use handoff_command::{Failure, allow_list, output};
use handoff_net::address::{Address, Endpoint};
use handoff_net::deadline::Deadline;
use handoff_net::reach::{self, Listener};

use crate::args::Args;
use crate::job::Job;
use crate::queues::Steering;
use crate::wire::Hello;
use crate::{handshake, random};

/// What this side's hello says of the transfer.
pub(crate) struct Offer {
    pub(crate) sends: bool,
    pub(crate) length: Option<u64>,
    pub(crate) sparse: bool,
}

/// Connections, and the peer's hello; `None` with `--raw`.
type Reached = (Vec<Socket>, Option<Hello>);

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
    endpoint: &Endpoint,
    offer: &Offer,
    steering: Option<&Steering<'_>>,
) -> Result<Reached, Failure> {
    let args = job.order.args;
    let own = if offer.sends { &job.order.destination } else { &job.order.source };
    let (connections, peer) = match own {
        Address::Listen(_) => wait_for(job, endpoint, offer, steering)?,
        _ => connect(job, endpoint, offer, steering)?,
    };
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
    Ok((connections, peer))
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
    let listener = Listener::bind(endpoint, family, from, deadline)?;
    let address = listener.address()?;
    // Without words between us a peer sends as soon as it is connected, and bytes that come before the
    // rule exists are copied.
    if let Some(steering) = steering.filter(|_| args.raw) {
        steering.rules.steer_arriving(address)?;
    }
    output::say(format_args!("listening on tcp://{address}"));
    allow_list::warn(address, from, if offer.sends { "take the file" } else { "send" });
    if args.raw {
        let deadline = Deadline::new(job.order.stop, args.connect_timeout);
        return Ok((vec![listener.accept_one(&job.driver, deadline)?], None));
    }
    let answer = |peer: &Hello, socket: &Socket| {
        let ours = offer.hello(args, peer.streams, peer.stream, peer.transfer, peer.hears_work);
        if peer.sends == offer.sends {
            let why = offer.same_side();
            handshake::refuse(socket, &ours, &why);
            return Err(why);
        }
        if let Some(why) = offer.too_long(args, peer) {
            handshake::refuse(socket, &ours, &why);
            return Err(why);
        }
        let steered = steer(steering, socket, peer.stream);
        steered.map_err(|failure| failure.line().unwrap_or_default())?;
        Ok(ours)
    };
    let queue = steering.map(|steering| &steering.queue);
    let deadline = Deadline::new(job.order.stop, None);
    let (sockets, peer) = deadline.block_on(&job.driver, async |_| {
        let (first, rest) = (args.connect_timeout, args.reach_timeout());
        handshake::gather(&job.driver, queue, listener, answer, first, rest).await
    })??;
    Ok((sockets, Some(peer)))
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
    let sockets = reach::connect(&job.driver, endpoint, family, args.streams, deadline)?;
    if args.raw {
        sockets.iter().try_for_each(|socket| steer(steering, socket, 0))?;
        return Ok((sockets, None));
    }
    let transfer = random::bits();
    let hello = |number| offer.hello(args, args.streams, number, transfer, true);
    let steer = |socket: &Socket, number| steer(steering, socket, number);
    let queue = steering.map(|steering| &steering.queue);
    let peer = deadline.block_on(&job.driver, async |left| {
        handshake::call(&job.driver, queue, &sockets, hello, steer, left).await
    })??;
    Ok((sockets, peer))
}
