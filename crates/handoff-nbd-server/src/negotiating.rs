//! Negotiation with a client, up to its choice of an export.

use std::rc::Rc;

use handoff_nbd::server::{Agreed, Limits, Negotiation, Policy, Step};

use crate::connection::Connection;
use crate::input::Input;

/// Negotiates; `None` where the client leaves.
pub(crate) async fn negotiate(
    connection: &Rc<Connection>,
    input: &mut Input,
) -> Result<Option<Box<Agreed>>, String> {
    let thread = &connection.thread;
    let policy = Policy { lists: thread.limits.lists, ..Policy::default() };
    let (mut negotiation, greeting) = Negotiation::new(policy, Limits::default());
    connection.reply(&greeting).await;
    loop {
        let step = negotiation.next(input.bytes(), &**thread);
        let (taken, step) = step.map_err(|error| error.to_string())?;
        input.take(taken);
        match step {
            Step::More => {
                if input.more(Input::room(), None).await? == 0 {
                    return Ok(None);
                }
            }
            Step::Send(bytes) => connection.reply(&bytes).await,
            Step::Session(session) => {
                let reply = match thread.sessions.enter(session, &connection.ending).await {
                    Some(entered) => {
                        *connection.entered.borrow_mut() = Some(entered);
                        negotiation.admit(thread.sessions.instance())
                    }
                    None => negotiation.reject("a newer session of this client is there"),
                };
                connection.reply(&reply).await;
            }
            Step::Ready(bytes, agreed) => {
                connection.reply(&bytes).await;
                return Ok(Some(agreed));
            }
            Step::Abort(bytes) => {
                connection.reply(&bytes).await;
                return Ok(None);
            }
            Step::StartTls(_) | Step::Waiting => return Err("TLS is not there yet".to_owned()),
        }
    }
}
