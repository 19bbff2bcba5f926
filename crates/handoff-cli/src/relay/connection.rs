//! One connection: the target is reached, and a route carries each direction to its end.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use futures_util::future::{Either, select, try_join};
use handoff::{Carried, Engine, Intake, Route, RouteEngine, RouteSink, RouteSource, Socket};
use socket2::SockRef;

use super::ledger::Counted;
use super::{Relay, gate};

/// Serves a client to the end, and says in the ledger how it was.
pub(super) async fn serve(
    relay: Rc<Relay>,
    client: TcpStream,
    peer: SocketAddr,
    mut counted: Counted,
) {
    match carry(&relay, client, &mut counted).await {
        Ok(()) => counted.ended_well(),
        Err(reason) => {
            tracing::info!(%peer, %reason, "a connection failed");
            counted.failed(reason);
        }
    }
}

async fn carry(relay: &Relay, client: TcpStream, counted: &mut Counted) -> Result<(), String> {
    let server = gate::connect(relay).await?;
    let attach = |stream| relay.driver.socket(stream).map_err(|error| error.to_string());
    let (client, server) = (attach(client)?, attach(server)?);
    let mut up = route(relay, &client, relay.intake.clone(), &server)?;
    let mut down = route(relay, &server, None, &client)?;
    counted.watch(up.progress(), down.progress());
    let ended = {
        let both = pin!(try_join(
            direction(&mut up, &server, counted),
            direction(&mut down, &client, counted),
        ));
        match select(both, pin!(idle(relay, counted))).await {
            Either::Left((both, _)) => both.map(|_| ()),
            Either::Right((reason, _)) => Err(reason),
        }
    };
    for (engine, reason) in up.passed_over().iter().chain(down.passed_over()) {
        relay.ledger.note(format!("{engine} can't serve: {reason}"));
    }
    ended
}

fn route(
    relay: &Relay,
    from: &Socket,
    intake: Option<Intake>,
    to: &Socket,
) -> Result<Route, String> {
    let source = RouteSource::Stream(from.clone(), intake);
    let route = Route::new(&relay.driver, source, RouteSink::Socket(to.clone()));
    let Some(engine) = relay.engine else { return Ok(route) };
    if engine == RouteEngine::GetBuf {
        // What is asked for is not to copy, also where that is cheaper.
        to.set_engine(Engine::UringZc).map_err(|error| error.to_string())?;
    }
    Ok(route.only(engine))
}

/// Carries one direction, and passes its end on.
async fn direction(route: &mut Route, sink: &Socket, counted: &Counted) -> Result<(), String> {
    let carried: Carried = route.run().await;
    counted.carried(&carried);
    carried.result.map_err(|error| error.to_string())?;
    match SockRef::from(sink).shutdown(Shutdown::Write) {
        // The other side is gone altogether, which its own direction tells of.
        Err(error) if error.kind() == std::io::ErrorKind::NotConnected => Ok(()),
        ended => ended.map_err(|error| format!("passing the end on: {error}")),
    }
}

/// Ends when nothing has moved for too long.
async fn idle(relay: &Relay, counted: &Counted) -> String {
    let (mut seen, mut since) = (counted.moved(), Instant::now());
    loop {
        relay.ticks.next().await;
        counted.tell();
        let moved = counted.moved();
        if moved != seen {
            (seen, since) = (moved, Instant::now());
        } else if let Some(idle) = relay.idle
            && since.elapsed() >= idle
        {
            return "nothing moved for too long (--idle)".to_owned();
        }
    }
}
