//! What comes back when a driver goes.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::lease::rx_shared::RxShared;
use crate::lease::{Arrivals, Span};
use crate::mechanism::Engine;
use crate::op::chooser::Chooser;
use crate::op::loan::AsLoan;
use crate::op::{Loan, SendOp, SocketShared};
use crate::ring::Epoll;

const PAGE: u64 = 4096;

fn reactor() -> Rc<Reactor> {
    Reactor::new(Io::of_epoll(Epoll::new().unwrap(), String::new()), 16).unwrap()
}

/// Spans of the first so many chunks, as from the kernel.
fn received(queue: &Rc<RxShared>, chunks: u64) -> Vec<Span> {
    let mut arrivals = Arrivals::new(Some(Rc::clone(queue)));
    let told: Vec<_> = (0..chunks).map(|chunk| RawSpan { begin: chunk * PAGE, len: 9 }).collect();
    let (spans, bytes) = arrivals.push_told(&told);
    queue.arrived(spans, bytes, -1);
    arrivals.collect()
}

#[test]
fn a_span_that_outlives_the_driver_keeps_the_ring_open() {
    for handle_kept in [false, true] {
        let reactor = reactor();
        let (queue, given_back) =
            RxShared::without_kernel(&reactor.core.pending, 64, PAGE as usize);
        reactor.core.rx_queues.borrow_mut().push(Rc::clone(&queue));
        // Stands for the ring; no other test uses this name.
        let name = format!("kept open, handle {handle_kept}");
        let ring = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", ring.as_raw_fd()));
        let opened = std::fs::read_link(&path).unwrap();
        let is_open = || std::fs::read_link(&path).is_ok_and(|now| now == opened);
        queue.ring.set(Some(ring.into()));
        let mut spans = received(&queue, 50);
        drop(spans.split_off(45));
        let kept = handle_kept.then(|| Rc::clone(&queue));
        drop(queue);
        assert!(is_open());
        drop(reactor);
        // The kernel heard of everything given back before the driver went.
        assert_eq!(given_back().len(), 5);
        let mut last = spans.pop().unwrap();
        drop(spans);
        let part = last.split_to(3);
        drop(last);
        assert!(is_open(), "a part of a span is held");
        drop(part);
        assert!(!is_open());
        drop(kept);
    }
}

#[test]
fn what_was_given_back_when_a_driver_leaves_is_there_for_others_while_a_handle_is_left() {
    let reactor = reactor();
    let (queue, given_back) = RxShared::without_kernel(&reactor.core.pending, 64, PAGE as usize);
    reactor.core.rx_queues.borrow_mut().push(Rc::clone(&queue));
    let mut spans = received(&queue, 5);
    drop(spans.split_off(3));
    assert_eq!(given_back(), []);
    reactor.leave();
    assert_eq!(given_back().len(), 2);
    drop(spans);
    assert_eq!(given_back().len(), 3);
}

#[test]
fn a_driver_without_spans_takes_the_ring_along() {
    let reactor = reactor();
    let (queue, _) = RxShared::without_kernel(&reactor.core.pending, 64, PAGE as usize);
    reactor.core.rx_queues.borrow_mut().push(Rc::clone(&queue));
    queue.ring.set(Some(memfd_create("taken along", MemfdFlags::CLOEXEC).unwrap().into()));
    drop(reactor);
    assert!(queue.ring.take().is_none());
}

/// The pages may be in the write queue of a closed connection, and another driver's ring receives from the queue.
#[test]
fn a_span_that_the_kernel_still_sends_never_goes_back_when_its_driver_has_gone() {
    let one: fn(Vec<Span>) -> Loan = |mut spans| spans.remove(0).into_loan();
    let many: fn(Vec<Span>) -> Loan = Vec::into_loan;
    for (lend, header_lent) in [(one, false), (many, false), (one, true)] {
        let reactor = reactor();
        let (queue, given_back) =
            RxShared::without_kernel(&reactor.core.pending, 64, PAGE as usize);
        reactor.core.rx_queues.borrow_mut().push(Rc::clone(&queue));
        queue.ring.set(Some(memfd_create("sends", MemfdFlags::CLOEXEC).unwrap().into()));
        let mut spans = received(&queue, 3);
        let (rest, kept) = (spans.split_off(1), spans[0].split_to(3));
        let lent = lend(spans);
        let (near, _far) = UnixStream::pair().unwrap();
        let chooser = Chooser::new(Err(String::new()), true);
        let socket = Rc::new(SocketShared::new(&reactor.core.io, near.into(), chooser).unwrap());
        {
            let mut records = reactor.core.records.borrow_mut();
            let new = || SendOp::new(socket, Engine::UringZc, lent.len(), 0);
            let (_, op, _) = records.insert_send(new);
            op.lent.lend(lent);
            (op.lent.awaiting, op.header_lent) = (1, header_lent);
            op.succeed();
        }
        drop(reactor);
        assert_eq!(given_back(), []);
        drop(rest);
        assert_eq!(given_back(), [PAGE, 2 * PAGE]);
        drop(kept);
        assert_eq!(given_back(), [], "the kernel sends the other part");
        assert!(queue.ring.take().is_none());
    }
}
