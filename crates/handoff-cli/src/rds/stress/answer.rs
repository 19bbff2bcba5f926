//! The answering side of `handoff rds stress`.

use std::time::Instant;

use futures_lite::future::yield_now;
use handoff::Driver;
use handoff_command::{Failure, output, service};
use handoff_net::rds::Host;

use super::super::frame::{self, HEAD, Head, Kind};
use super::peers::Peers;
use super::shared::{AT_ONCE, Run};

/// The longest answer that anybody may request.
const LONGEST: usize = 1 << 20;
/// A short request takes as long as so many bytes.
const SHORT: usize = 1 << 10;

/// Answers until it is time to end.
pub(super) async fn run(run: &Run<'_>, host: &Host, driver: &Driver) -> Result<(), Failure> {
    // A receiver on this host may not have read an answer whose completion has come.
    let copy = run.args.copy || matches!(host, Host::Kernel { .. });
    let port = host.bind(driver, run.args.port, copy)?;
    let answering = format!("answering at port {}", run.args.port);
    output::say(&answering);
    service::ready(&answering);
    let mut peers = Peers::new(run, host, port);
    while !run.is_over(None) {
        let (now, mut made) = (Instant::now(), 0);
        while made < AT_ONCE
            && let Some(received) = peers.port().receive()?
        {
            let (from, request) = (received.from, &*received.payload);
            made += request.len().max(SHORT);
            let Some(head) = requested(request) else {
                run.counted.borrow_mut().corrupt += 1;
                continue;
            };
            let len = head.answer as usize;
            if peers.answer(now, from, len, |answer| fill(answer, run, head, request))? {
                made += len;
            }
        }
        peers.go_on(now)?;
        if made < AT_ONCE {
            peers.port().changed(run.look()).await?;
        } else {
            yield_now().await;
        }
    }
    Ok(())
}

/// The head of a request.
fn requested(bytes: &[u8]) -> Option<Head> {
    frame::head(bytes).filter(|head| {
        head.kind == Kind::Request && (HEAD..=LONGEST).contains(&(head.answer as usize))
    })
}

/// Checks a request, and makes its answer.
fn fill(answer: &mut [u8], run: &Run<'_>, head: Head, request: &[u8]) {
    let counted = &mut *run.counted.borrow_mut();
    counted.messages += 1;
    counted.bytes += request.len() as u64;
    let intact = run.args.no_verify || frame::is_intact(request, head.number);
    counted.corrupt += u64::from(!intact);
    let kind = if intact { Kind::Answer } else { Kind::Corrupt };
    frame::fill(answer, Head { kind, ..head }, !run.args.no_verify);
}
