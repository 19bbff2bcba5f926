//! One connection from its first byte to its last: requests as they come, and what is under way of them.
//!
//! Contract: whatever ends the connection, what was begun is carried out before it is over.

use std::future::{pending, poll_fn};
use std::net::Shutdown;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use handoff::{Client, Error, Socket};
use handoff_nbd::request::Operation;
use handoff_nbd::server::{Event, Expect, Requests};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::connection::{Connection, Job};
use crate::ending::{End, Ending};
use crate::input::Input;
use crate::memory::SMALL;
use crate::negotiating::negotiate;
use crate::thread::Thread;
use crate::{other, reading, writing};

/// How long a client may take to leave when the server stops.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection to its end. `negotiated` is called when it has an export.
pub(crate) async fn serve(
    thread: Rc<Thread>,
    socket: Socket,
    client: Client,
    ending: Arc<Ending>,
    negotiated: impl Fn(),
) {
    let connection = Connection::new(thread, socket, client, Arc::clone(&ending));
    let mut jobs = FuturesUnordered::<Job>::new();
    // A set whose futures were all polled wakes itself; this one never is.
    jobs.push(Box::pin(pending()));
    let mut reading = Box::pin(read(Rc::clone(&connection), &negotiated));
    let mut known = None;
    {
        let mut told = pin!(ending.told(None));
        let ended = poll_fn(|context| {
            if let Poll::Ready(end) = told.as_mut().poll(context) {
                known = Some(end);
                return Poll::Ready(Ok(()));
            }
            let ended = reading.as_mut().poll(context);
            jobs.extend(connection.new_jobs());
            while jobs.poll_next_unpin(context).is_ready() {}
            ended
        });
        if let Err(why) = ended.await {
            connection.cut(why);
        }
    }
    drop(reading);
    jobs.extend(connection.new_jobs());
    let had_requests = jobs.len() > 1;
    while jobs.len() > 1 {
        if known == Some(End::Replaced) {
            connection.cut("the client began anew".to_owned());
        }
        let mut told = pin!(ending.told(known));
        known = poll_fn(|context| match told.as_mut().poll(context) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => jobs.poll_next_unpin(context).map(|_| known),
        })
        .await;
    }
    if known == Some(End::Stop) && had_requests && !connection.is_cut() {
        linger(&connection).await;
    }
    if let Some(why) = connection.why_cut() {
        tracing::info!(%client, %why, "a connection ended early");
        connection.thread.counters.failed(why);
    }
    connection.entered.take();
    ending.finish();
}

/// Ends our direction, and lets the client read: a connection that is closed with requests that nobody has received is
/// reset, and takes the last replies along.
async fn linger(connection: &Connection) {
    let (socket, driver) = (&connection.socket, &connection.thread.driver);
    let left = async {
        let mut unwanted = [0; 4096];
        socket.shutdown(Shutdown::Write)?;
        loop {
            socket.readable()?.await?;
            match recv(socket, &mut unwanted, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Ok(()),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    let action = "waiting for a client to leave";
                    return Err(Error::Io { action, source: error.into() });
                }
            }
        }
    };
    // It has left, or has had its time.
    let left: handoff::Result<handoff::Result<()>> = driver.timeout(LINGER, left).await;
    tracing::debug!(?left, "a connection is closed");
}

/// Receives until the client has done.
async fn read(connection: Rc<Connection>, negotiated: &impl Fn()) -> Result<(), String> {
    let thread = Rc::clone(&connection.thread);
    let stall = thread.limits.stall;
    let mut input = Input::new(&thread.driver, &connection.socket);
    let negotiation = negotiate(&connection, &mut input);
    let agreed = match thread.driver.timeout(stall, negotiation).await {
        Ok(agreed) => agreed?,
        Err(Error::TimedOut { .. }) => return Err("the negotiation took too long".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let Some(agreed) = agreed else { return Ok(()) };
    negotiated();
    let disk = thread.disk(&agreed.export.name).ok_or("the export is gone")?;
    let header = agreed.target.framing.request_len();
    let mut requests = Requests::new(agreed.target);
    // What comes behind large writes is received exactly, so that payload need not be copied once more.
    let mut exactly = false;
    loop {
        let held = connection.room(1, 0).await;
        let event = loop {
            let (taken, event) = requests.next(input.bytes()).map_err(|error| error.to_string())?;
            input.take(taken);
            if let Some(event) = event {
                break event;
            }
            let (within, most) = match requests.expect() {
                Expect::Header(left) => (left < header, if exactly { left } else { Input::room() }),
                _ => (true, Input::room()),
            };
            if input.more(most, within.then_some(stall)).await? == 0 {
                return match within {
                    true => Err("the client left within a request".to_owned()),
                    false => Ok(()),
                };
            }
        };
        match event {
            Event::Request(request, answer) => {
                other::count(&thread.counters, &request);
                match request.operation {
                    Operation::Write => {
                        exactly = request.length > SMALL as u64;
                        let write = writing::Write { request, answer, held };
                        writing::receive(&connection, disk, write, &mut requests, &mut input)
                            .await?;
                    }
                    Operation::Read { .. } => {
                        let bytes = reading::memory_of(&request, &answer);
                        let room = connection.room(0, bytes).await;
                        let (connection, disk) = (Rc::clone(&connection), Rc::clone(disk));
                        let read = reading::Read { request, answer, _held: [held, room] };
                        connection.clone().carry_out(reading::answer(connection, disk, read));
                    }
                    _ => {
                        let (connection, disk) = (Rc::clone(&connection), Rc::clone(disk));
                        let job = other::answer(connection.clone(), disk, request, answer, held);
                        connection.carry_out(job);
                    }
                }
            }
            Event::Refused(refusal, answer) => {
                thread.counters.write(|served| served.refused += 1);
                let reply = answer.fail(refusal.error, refusal.text);
                let job = {
                    let connection = Rc::clone(&connection);
                    async move {
                        connection.reply(&reply).await;
                        drop(held);
                    }
                };
                connection.carry_out(job);
            }
            // Payload is taken past the machine.
            Event::Payload(_) => return Err("payload came without a request".to_owned()),
            Event::Disconnect => return Ok(()),
        }
    }
}
