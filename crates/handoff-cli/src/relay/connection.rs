//! One connection: the target is reached, and a route carries each direction to its end.

use std::future::IntoFuture as _;
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::{Either, FutureExt as _, select};
use handoff::{Buffer, Client, Engine, Error, Intake, Route, RouteEngine, RouteSource, Socket};
use handoff_command::clock;
use handoff_net::listening::Target;
use handoff_net::proxy::{self, Head, MAX_HEAD};
use handoff_net::reach;
use rustix::net::sockopt::{set_socket_linger, set_tcp_user_timeout};

use super::counters::Counted;
use super::shared::Relay;

/// After a failure to accept or to connect that says nothing of when it ends.
pub(super) const AGAIN: Duration = Duration::from_millis(250);

/// How long a direction may take to end, once the other has failed.
const CLOSING: Duration = Duration::from_secs(2);

/// Serves a client to the end, and counts how it was.
pub(super) async fn serve(relay: Rc<Relay>, client: Socket, peer: Client, mut counted: Counted) {
    match carry(&relay, client, peer, &mut counted).await {
        Ok(()) => counted.ended_well(),
        Err(reason) => {
            tracing::info!(%peer, %reason, "a connection failed");
            counted.failed(reason);
        }
    }
}

async fn carry(
    relay: &Relay,
    client: Socket,
    peer: Client,
    counted: &mut Counted,
) -> Result<(), String> {
    // For the target, and for what the engine needs; dropped after them.
    let _room = relay.reserve.lend(relay.beside_client);
    let client = Side::new(client);
    let front = match relay.accept_proxy {
        true => match hear(relay, &client.socket, counted).await? {
            Some(front) => Some(front),
            None => {
                client.ends_well(relay.idle);
                return Ok(());
            }
        },
        false => None,
    };
    let (server, address) = connect(relay).await?;
    let server = Side::new(server);
    counted.reached(address);
    begin(relay, (&client.socket, peer), front, &server.socket, counted).await?;
    let up = route(relay, &client.socket, relay.intake.clone(), &server.socket)?;
    let down = route(relay, &server.socket, None, &client.socket)?;
    counted.watch(up.progress(), down.progress());
    let mut ways = Ways { up, down, relay, counted };
    {
        let (up, down) = ((&mut ways.up, &server.socket), (&mut ways.down, &client.socket));
        let both = pin!(both(relay, up, down));
        match select(both, pin!(standing_still(relay, counted))).await {
            Either::Left((both, _)) => both?,
            Either::Right((reason, _)) => return Err(reason),
        }
    }
    client.ends_well(relay.idle);
    server.ends_well(relay.idle);
    Ok(())
}

/// What a front has sent: its head, and what lies behind it already.
struct Front {
    head: Head,
    bytes: Vec<u8>,
}

/// Takes the head that a front sends; `None` if it only looked whether somebody listens.
async fn hear(
    relay: &Relay,
    client: &Socket,
    counted: &mut Counted,
) -> Result<Option<Front>, String> {
    let hearing = async {
        let mut bytes = Vec::new();
        loop {
            let room = Buffer::from(vec![0; MAX_HEAD - bytes.len()]);
            let receiving =
                client.receive_into(room).map_err(|refused| refused.error.to_string())?;
            let received = receiving.await.map_err(|error| error.to_string())?;
            match received.result.map_err(|error| error.to_string())? {
                0 if bytes.is_empty() => return Ok(None),
                0 => return Err("it ended within the head of the PROXY protocol".to_owned()),
                count => bytes.extend_from_slice(&received.buffer[..count]),
            }
            if let Some(head) = proxy::read(&bytes)? {
                return Ok(Some(Front { head, bytes }));
            }
        }
    };
    let heard = relay.driver.timeout(relay.connect_timeout, hearing).await;
    let late =
        |_| "its head of the PROXY protocol did not come in time (--connect-timeout)".to_owned();
    let front = heard.map_err(late)??;
    if let Some((client, _)) = front.as_ref().and_then(|front| front.head.addresses)
        && !counted.comes_for(client.into(), relay.most_per_client)
    {
        return Err("it has as many connections as --max-per-client allows".to_owned());
    }
    Ok(front)
}

/// Tells the target who connects, if it is to know, and sends what came with a front's head.
async fn begin(
    relay: &Relay,
    (client, peer): (&Socket, Client),
    front: Option<Front>,
    server: &Socket,
    counted: &mut Counted,
) -> Result<(), String> {
    let ahead = front.as_ref().map_or(&[][..], |front| &front.bytes[front.head.len..]);
    let head = relay.proxy_protocol.map(|version| {
        let addresses = match &front {
            Some(front) => front.head.addresses,
            None => peer.address().zip(local_address(client)),
        };
        proxy::head(version, addresses)
    });
    let bytes = [head.as_deref().unwrap_or_default(), ahead].concat();
    if bytes.is_empty() {
        return Ok(());
    }
    let (len, ahead) = (bytes.len(), ahead.len());
    let sending = server.send(Buffer::from(bytes)).map_err(|refused| refused.error.to_string())?;
    let sent = relay.driver.timeout(relay.connect_timeout, sending.into_future()).await;
    let late = |_| "the target takes nothing (--connect-timeout)".to_owned();
    let sent = sent.map_err(late)?.and_then(|finished| finished.sent);
    match sent.map_err(|error| error.to_string())? {
        all if all == len => counted.copied_ahead(ahead),
        _ => return Err("the target took a part of the first bytes".to_owned()),
    }
    Ok(())
}

/// The address that a client has connected to.
fn local_address(client: &Socket) -> Option<SocketAddr> {
    rustix::net::getsockname(client).ok()?.try_into().ok()
}

/// One side of a connection. Unless it ends well, it is reset: what was cut does not look whole, and a side that takes
/// nothing keeps no descriptor and no memory.
struct Side {
    socket: Socket,
    ended_well: bool,
}

impl Side {
    fn new(socket: Socket) -> Self {
        // The kernel resets it, too, if this process is killed.
        linger(&socket, Some(Duration::ZERO));
        Self { socket, ended_well: false }
    }

    /// The kernel has the rest.
    fn ends_well(mut self, idle: Option<Duration>) {
        self.ended_well = true;
        linger(&self.socket, None);
        let Some(idle) = idle else { return };
        // The kernel gives up on a side that takes nothing for that long.
        let millis = idle.as_millis().min(i32::MAX as u128) as u32;
        if let Err(error) = set_tcp_user_timeout(&self.socket, millis) {
            tracing::debug!(%error, "the end of a connection has no time limit");
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if !self.ended_well {
            self.socket.abort();
        }
    }
}

fn linger(socket: &Socket, time: Option<Duration>) {
    if let Err(error) = set_socket_linger(socket, time) {
        tracing::debug!(%error, "the end of a connection stays as it is");
    }
}

/// A connection to the first address of the target that takes it. Without a descriptor it waits until others end.
async fn connect(relay: &Relay) -> Result<(Socket, Target), String> {
    let (begin, timeout) = (Instant::now(), relay.connect_timeout);
    let (addresses, unresolved) = relay.target.find(&relay.driver, timeout).await;
    let mut errors: Vec<_> = unresolved.into_iter().collect();
    for address in &*addresses {
        let reached = loop {
            match address.connect(&relay.driver, timeout).await {
                Err(error @ Error::NoDescriptor { .. }) if begin.elapsed() < timeout => {
                    relay.counters.note(error.to_string());
                    clock::pass(&relay.driver, AGAIN).await;
                }
                reached => break reached,
            }
        };
        match reached {
            Ok(socket) => {
                relay.counters.reached();
                for why in errors {
                    tracing::info!(%address, %why, "this was passed over");
                }
                return Ok((socket, address.clone()));
            }
            Err(error) => errors.push(format!("{address}: {}", reach::why(&error))),
        }
    }
    let failure = format!("the target can't be reached: {}", errors.join("; "));
    relay.counters.unreached(&failure);
    Err(failure)
}

/// Both directions of a connection, which are counted however they end.
struct Ways<'a> {
    up: Route,
    down: Route,
    relay: &'a Relay,
    counted: &'a Counted,
}

impl Drop for Ways<'_> {
    fn drop(&mut self) {
        let by_queue = self.relay.intake.is_some();
        for (route, by_queue) in [(&self.up, by_queue), (&self.down, false)] {
            self.counted.carried(route, by_queue);
            for (engine, reason) in route.passed_over() {
                self.relay.counters.note(format!("{engine} can't serve: {reason}"));
            }
        }
    }
}

/// Carries both directions. Where one fails, both connections end, and the other direction has a moment
/// to come to its end and to count what it carried.
async fn both(
    relay: &Relay,
    (up, server): (&mut Route, &Socket),
    (down, client): (&mut Route, &Socket),
) -> Result<(), String> {
    let upward = pin!(direction(up, server));
    let downward = pin!(direction(down, client));
    let (ended, other) = match select(upward, downward).await {
        Either::Left((ended, other)) => (ended, other.right_future()),
        Either::Right((ended, other)) => (ended, other.left_future()),
    };
    if ended.is_ok() {
        return other.await;
    }
    server.abort();
    client.abort();
    select(other, pin!(clock::pass(&relay.driver, CLOSING))).await;
    ended
}

fn route(
    relay: &Relay,
    from: &Socket,
    intake: Option<Intake>,
    to: &Socket,
) -> Result<Route, String> {
    let source = RouteSource::Stream(from.clone(), intake);
    let route = Route::new(&relay.driver, source, to);
    let Some(engine) = relay.engine else { return Ok(route) };
    if engine == RouteEngine::GetBuf {
        // What is asked for is not to copy, also where that is cheaper.
        to.set_engine(Engine::UringZc).map_err(|error| error.to_string())?;
    }
    Ok(route.only(engine))
}

/// Carries one direction, and passes its end on.
async fn direction(route: &mut Route, sink: &Socket) -> Result<(), String> {
    route.run().await.result.map_err(|error| error.to_string())?;
    match sink.shutdown(Shutdown::Write) {
        // The other side is gone altogether, which its own direction tells of.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(()),
        ended => ended.map_err(|error| format!("passing the end on: {error}")),
    }
}

/// Ends when too little has moved for too long.
async fn standing_still(relay: &Relay, counted: &Counted) -> String {
    let (mut seen, mut since) = (counted.moved(), Instant::now());
    loop {
        clock::pass(&relay.driver, relay.look).await;
        counted.tell();
        let Some(idle) = relay.idle else { continue };
        let (moved, time) = (counted.moved(), since.elapsed());
        let least = (relay.least_rate as f64 * idle.as_secs_f64()).max(1.0);
        if (moved - seen) as f64 >= least {
            (seen, since) = (moved, Instant::now());
        } else if time >= idle {
            return match moved == seen {
                true => "nothing moved for too long (--idle)".to_owned(),
                false => "too little moved for too long (--least-rate)".to_owned(),
            };
        }
    }
}
