//! The answering side of `handoff rds stress`.

use std::collections::VecDeque;
use std::net::SocketAddr;

use futures_lite::future::yield_now;
use handoff::{Buffer, Driver, Region};

use super::super::frame::{self, HEAD, Head, Kind};
use super::super::port::Host;
use super::shared::{AT_ONCE, Run};
use crate::{Failure, output, service};

/// So many answers may wait to be sent before no more requests are taken.
const MOST: usize = 1024;
/// The longest answer that anybody may request.
const LONGEST: usize = 1 << 20;

/// Answers until it is time to end.
pub(super) async fn run(run: &Run<'_>, host: &Host, driver: &Driver) -> Result<(), Failure> {
    // A receiver on this host may not have read an answer whose completion has come.
    let copy = run.args.copy || matches!(host, Host::Kernel { .. });
    let port = host.bind(driver, run.args.port, copy)?;
    let answering = format!("answering at port {}", run.args.port);
    output::say(&answering);
    service::ready(&answering);
    let mut free: Vec<Buffer> = Vec::new();
    let mut waiting: VecDeque<(SocketAddr, Buffer)> = VecDeque::new();
    let mut batch = Vec::new();
    while !run.is_over(None) {
        port.completions(&mut batch)?;
        for back in batch.drain(..) {
            run.took_back(back.tally);
            free.push(back.payload);
        }
        let mut checked = 0;
        while checked < AT_ONCE
            && waiting.len() < MOST
            && let Some(received) = port.receive()?
        {
            checked += received.payload.len();
            let answer = answer(run, &received.payload, &mut free)?;
            waiting.extend(answer.map(|answer| (received.from, answer)));
        }
        // An answer refused for now does not delay those to others.
        for _ in 0..waiting.len() {
            let (to, buffer) = waiting.pop_front().expect("so many wait");
            if let Err(refused) = port.send(to, buffer, 0) {
                if refused.error.is_temporary() {
                    waiting.push_back((to, refused.payload));
                } else {
                    tracing::warn!(%to, error = %refused.error, "an answer is not sent");
                    free.push(refused.payload);
                }
            }
        }
        if checked < AT_ONCE {
            port.changed(run.look()).await?;
        } else {
            yield_now().await;
        }
    }
    Ok(())
}

/// The answer; `None` if it is no request.
fn answer(
    run: &Run<'_>,
    request: &[u8],
    free: &mut Vec<Buffer>,
) -> Result<Option<Buffer>, Failure> {
    let counted = &mut *run.counted.borrow_mut();
    let len = |head: &Head| head.answer as usize;
    let head = frame::head(request)
        .filter(|head| head.kind == Kind::Request && (HEAD..=LONGEST).contains(&len(head)));
    let Some(head) = head else {
        counted.corrupt += 1;
        return Ok(None);
    };
    counted.messages += 1;
    counted.bytes += request.len() as u64;
    let intact = run.args.no_verify || frame::is_intact(request, head.number);
    counted.corrupt += u64::from(!intact);
    let mut buffer = match free.pop().filter(|buffer| buffer.capacity() >= len(&head)) {
        Some(buffer) => buffer,
        None => {
            let mut region = Region::anonymous(len(&head)).map_err(Failure::failed)?;
            region.take(len(&head)).expect("was mapped")
        }
    };
    buffer.set_len(len(&head));
    let kind = if intact { Kind::Answer } else { Kind::Corrupt };
    frame::fill(&mut buffer, Head { kind, ..head }, !run.args.no_verify);
    Ok(Some(buffer))
}
