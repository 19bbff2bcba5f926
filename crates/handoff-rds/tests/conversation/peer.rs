//! The peer's side of connections, frame by frame.

use std::net::IpAddr;
use std::time::Duration;

use handoff::Tally;
use handoff_rds::protocol::{
    Body, ConnectionId, Expect, Host, Limits, Message, MessageId, Output, Reason,
};
use handoff_rds::wire::{
    CongestionMap, Extension, Extensions, FLAG_CONGESTION_MAP, HEADER_LEN, Header, MAP_LEN,
};

pub(crate) type Own = Host<Vec<u8>, Vec<u8>>;

pub(crate) const SMALLER: [u8; 4] = [10, 0, 0, 1];
pub(crate) const LARGER: [u8; 4] = [10, 0, 0, 2];
pub(crate) const GENERATION: u32 = 0x0102_0304;

pub(crate) fn host(address: [u8; 4], limits: Limits) -> Own {
    let mut host = Host::new(address.into(), GENERATION, limits);
    host.bind(4000).expect("is free");
    host
}

pub(crate) fn short() -> Limits {
    Limits { message: 1000, receive: 2000, held: 4000, queued: 3000, peers: 2, ..Limits::default() }
}

/// A host with the larger address, connected to by a peer with the smaller one.
pub(crate) fn connected(limits: Limits) -> (Own, ConnectionId) {
    let mut host = host(LARGER, limits);
    let id = host.accepted(SMALLER.into(), 40_000).expect("is taken");
    assert_eq!(outputs(&mut host), [Output::Resume(id), Output::Ready(id)]);
    (host, id)
}

/// As [`connected`], and each has told the other what it can, as kernels do.
pub(crate) fn introduced(limits: Limits) -> (Own, ConnectionId) {
    let (mut host, id) = connected(limits);
    map(&mut host, id, &CongestionMap::new());
    written(&mut host, id);
    say(&mut host, id, &pong(1, 8));
    (host, id)
}

pub(crate) fn capabilities(generation: u32, paths: u16) -> Extensions {
    Extensions::of(&[Extension::Paths(paths), Extension::Generation(generation)])
}

/// The peer's answer to our probe.
pub(crate) fn pong(sequence: u64, paths: u16) -> Header {
    Header { sequence, destination: 1, extensions: capabilities(7, paths), ..Header::default() }
}

pub(crate) fn message(sequence: u64, flags: u8, len: u32) -> Header {
    Header { sequence, flags, len, source: 5000, destination: 4000, ..Header::default() }
}

pub(crate) fn outputs(host: &mut Own) -> Vec<Output> {
    std::iter::from_fn(|| host.poll()).collect()
}

/// Why the host closed its only connection.
pub(crate) fn reason(host: &mut Own) -> Option<Reason> {
    outputs(host).into_iter().find_map(|output| match output {
        Output::Close { reason, .. } => Some(reason),
        _ => None,
    })
}

/// The peer sends a frame; payloads are of zeros.
pub(crate) fn say(host: &mut Own, id: ConnectionId, header: &Header) {
    assert_eq!(host.expect(id), Expect::Header);
    host.header(id, &header.to_bytes());
    match host.expect(id) {
        Expect::Payload(len) => host.payload_received(id, vec![0; len]),
        Expect::Skip(_) => host.skipped(id),
        Expect::Header | Expect::Nothing => {}
        Expect::Map => panic!("a map is sent by `map`"),
    }
}

pub(crate) fn map(host: &mut Own, id: ConnectionId, map: &CongestionMap) {
    let header = Header { flags: FLAG_CONGESTION_MAP, len: MAP_LEN as u32, ..Header::default() };
    host.header(id, &header.to_bytes());
    assert_eq!(host.expect(id), Expect::Map);
    host.map(id, map.as_bytes());
}

/// A frame that the host gave out.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) message: Option<MessageId>,
    pub(crate) map: Option<Vec<u16>>,
    /// The stream's offset at its end, counted from the first of these.
    pub(crate) end: u64,
}

/// All that the host has to write.
pub(crate) fn written(host: &mut Own, id: ConnectionId) -> Vec<Frame> {
    let mut end = 0;
    std::iter::from_fn(|| host.next_write(id))
        .map(|write| {
            let header = Header::parse(&write.header);
            end += HEADER_LEN as u64 + u64::from(header.len);
            let (message, map) = match write.body {
                Body::Empty => (None, None),
                Body::Message(id) => (Some(id), None),
                Body::Map(map) => (None, Some(map.ports().collect())),
            };
            Frame { header, message, map, end }
        })
        .collect()
}

pub(crate) fn to(peer: [u8; 4], len: usize, cookie: u32) -> Message<Vec<u8>> {
    let to = IpAddr::from(peer);
    Message { from: 4000, to, port: 5000, payload: vec![3; len], len, cookie }
}

pub(crate) fn release(host: &mut Own, frames: &[Frame]) {
    for id in frames.iter().filter_map(|frame| frame.message) {
        host.released(id, Tally::default());
    }
}

pub(crate) fn ended(host: &mut Own) -> Vec<(u32, handoff_rds::End)> {
    let mut batch = Vec::new();
    host.completions(4000).expect("bound").take(usize::MAX, &mut batch);
    batch.into_iter().map(|back| (back.cookie, back.end)).collect()
}

pub(crate) fn after(host: &mut Own, time: Duration) {
    let deadline = host.deadline().expect("something is waited for");
    assert!(deadline <= time, "{deadline:?}");
    host.advance(time);
}
