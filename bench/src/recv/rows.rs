//! The rows of the receive table: which network and engine each has, and whether it compares the bytes.

use std::{iter, sync::atomic::AtomicBool};

use handoff_command::quantity::format_size;

use super::{
    RecvArgs, SMALLEST_CHUNK,
    epoll::Epoll,
    handoff_rows::{By, Handoff, To},
    reception::{Receive, Reception},
    served::{Served, Serving},
    several::Several,
};
use crate::{
    measure::{Engine, Subject},
    network::{
        binding::Memory,
        far::{FarEnd, Network},
        placement::Placement,
        testbed::Load,
    },
    report::Config,
};

pub(super) const LOADS: [Load; 3] = [
    Load { mtu: 1_500, gro: false },
    // The packets carry 4,096 bytes behind the headers of IPv4 and TCP with time stamps.
    Load { mtu: 4_148, gro: false },
    Load { mtu: 1_500, gro: true },
];

/// The library's ways that each network has rows for.
const WAYS: [To; 3] = [To::Pool, To::Window, To::AreaWithoutNic];

/// What rows that are compared with each other have in common.
#[derive(Debug, Clone, Copy)]
struct Work {
    load: Load,
    check: bool,
    placement: Option<Placement>,
}

impl Work {
    /// All combinations for this load, in the table's order.
    fn all(args: &RecvArgs, load: Load) -> impl Iterator<Item = Self> {
        let placements = match &args.placement[..] {
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        };
        let both = move |placement| [false, true].map(|check| Self { load, check, placement });
        placements.into_iter().flat_map(both)
    }

    /// A row's name.
    fn name(self, engine: &str) -> String {
        let word = |yes: bool| if yes { "yes" } else { "no" };
        let Self { load: Load { mtu, gro }, check, placement } = self;
        let place = placement.map_or(String::new(), |it| format!(" softirq={}", it.name()));
        format!("mtu={mtu} gro={} check={}{place} {engine}", word(gro), word(check))
    }
}

/// The library's ways for such work, in the table's order. Only the smallest chunks, without comparing, have a
/// row of owned spans: their cost shows best there.
fn ways(args: &RecvArgs, work: Work) -> impl Iterator<Item = To> {
    // Where frames do not arrive whole, a packet fills no larger chunk.
    let chunks = if work.load.gro { &args.chunks[..] } else { &[SMALLEST_CHUNK] };
    let areas = chunks.iter().flat_map(move |&bytes| {
        let area = |by| To::Area { chunk: bytes as usize, by, grows: args.grow };
        let owned = !work.check && bytes == SMALLEST_CHUNK;
        iter::once(area(By::Visit)).chain(owned.then(|| area(By::Spans)))
    });
    WAYS.into_iter().chain(areas)
}

/// A way's name in a row's name.
fn name_of(to: To) -> String {
    let engine = to.engine().name();
    match to {
        To::Area { chunk, by, .. } => {
            let owned = if by == By::Spans { " owned" } else { "" };
            format!("{engine} chunk={}{owned}", format_size(chunk as u64))
        }
        _ => engine.to_owned(),
    }
}

/// The numbers of connections by one queue if `--connections` is not given.
const CONNECTIONS: [u32; 1] = [4];

/// The numbers of connections that come by one queue, for this work. By default there are rows of several only
/// where packets fill small chunks: the cost of sharing shows best there.
fn connections(args: &RecvArgs, work: Work) -> impl Iterator<Item = u32> {
    let Work { load, check, placement } = work;
    let counts = match &args.connections[..] {
        _ if check => &[],
        [] if load == LOADS[1] && placement.is_none() => &CONNECTIONS[..],
        told => told,
    };
    // The other rows have one connection already.
    counts.iter().copied().filter(|&count| count > 1)
}

/// The numbers of rings that share the queue of several connections. The second ring's thread runs on another
/// processor, so a placed row has one ring.
fn rings(work: Work) -> &'static [u32] {
    if work.placement.is_none() { &[1, 2] } else { &[1] }
}

/// The name of a row of several connections that this many rings receive.
fn name_by_rings(work: Work, connections: u32, rings: u32) -> String {
    let chunk = format_size(SMALLEST_CHUNK);
    work.name(&format!("sockets={connections} zcrx chunk={chunk} rings={rings}"))
}

/// The name of another program's row.
fn name_of_peer(work: Work, name: &str, connections: u32) -> String {
    match connections {
        1 => work.name(name),
        _ => work.name(&format!("sockets={connections} {name}")),
    }
}

/// The other programs, with the number of connections that each serves: one by default, and also those of
/// `--connections`.
fn peers(args: &RecvArgs, work: Work) -> impl Iterator<Item = (&str, &str, u32)> {
    let several = move || args.connections.iter().copied().filter(|&count| count > 1);
    let peers = if work.check { &[] } else { &args.programs.peer[..] };
    peers.iter().flat_map(move |(name, command)| {
        iter::once(1).chain(several()).map(move |count| (&name[..], &command[..], count))
    })
}

/// How many rows of this load want a queue of their own.
pub(super) fn own_queues(args: &RecvArgs, load: Load) -> usize {
    let rows = Work::all(args, load).flat_map(|work| {
        let areas = ways(args, work).filter(|to| matches!(to, To::Area { .. }));
        let shared = connections(args, work).flat_map(move |count| {
            rings(work).iter().map(move |&rings| name_by_rings(work, count, rings))
        });
        let peers = peers(args, work).map(move |(name, _, count)| name_of_peer(work, name, count));
        areas.map(move |to| work.name(&name_of(to))).chain(shared).chain(peers)
    });
    rows.filter(|name| args.run.wants(name)).count()
}

/// All rows that match `--only`, and their baselines, in the table's order. Other programs run on processor `cpu`.
pub(super) fn subjects<'a, N: Network>(
    args: &'a RecvArgs,
    networks: &'a [N],
    cpu: usize,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let works = networks
        .iter()
        .flat_map(|network| Work::all(args, network.load()).map(move |work| (network, work)));
    let mut subjects: Vec<_> = works
        .flat_map(|(network, work)| {
            let made = received(network, work, || Epoll::new(network));
            let epoll = subject(network, work, "epoll", made);
            let ours = ways(args, work).map(move |to| {
                let made = received(network, work, move || Handoff::new(network, to));
                let subject = subject(network, work, to.engine().name(), made);
                let To::Area { chunk, by, .. } = to else { return subject };
                let name = work.name(&name_of(to));
                let (chunk, api) = (Some(chunk as u64), Some(by.name().to_owned()));
                let config = Config { chunk, api, ..subject.config };
                Subject { name, config, ..subject }
            });
            let one = iter::once(epoll.baseline()).chain(ours);
            let several = connections(args, work)
                .flat_map(move |it| of_several(network, work, it, args.grow));
            one.chain(several).chain(of_programs(args, network, work, cpu, stop))
        })
        .collect();
    args.run.keep_wanted(&mut subjects);
    subjects
}

/// The rows of other programs, which do not show what they received.
fn of_programs<'a>(
    args: &'a RecvArgs,
    network: &'a impl Network,
    work: Work,
    cpu: usize,
    stop: &'a AtomicBool,
) -> impl Iterator<Item = Subject<'a>> {
    peers(args, work).map(move |(name, command, connections)| {
        let serving = Serving { command, connections, cpu, placement: work.placement };
        let made = move || Served::new(network, serving, stop);
        let subject = subject(network, work, name, made);
        let sockets = (connections > 1).then_some(connections);
        let config = Config { sockets, ..subject.config };
        Subject { name: name_of_peer(work, name, connections), config, peer: true, ..subject }
    })
}

/// The rows of several connections.
fn of_several<'a>(
    network: &'a impl Network,
    work: Work,
    connections: u32,
    grows: bool,
) -> impl Iterator<Item = Subject<'a>> {
    let sockets = Some(connections);
    let Work { check, placement, .. } = work;
    let several = Several { connections, check, placement };
    let by_rings = move |&rings: &u32| {
        let chunk = SMALLEST_CHUNK as usize;
        let memory = Memory { chunk, connections: connections as usize, grows };
        let made = move || several.by_rings(network, memory, rings);
        let subject = subject(network, work, "zcrx", made);
        let (chunk, api) = (Some(SMALLEST_CHUNK), Some(By::Visit.name().to_owned()));
        let config = Config { sockets, rings: Some(rings), chunk, api, ..subject.config };
        Subject { name: name_by_rings(work, connections, rings), config, ..subject }
    };
    let epoll = subject(network, work, "epoll", move || several.by_epoll(network));
    let name = work.name(&format!("sockets={connections} epoll"));
    let config = Config { sockets, ..epoll.config };
    let epoll = Subject { name, config, baseline: true, ..epoll };
    iter::once(epoll).chain(rings(work).iter().map(by_rings))
}

/// Returns what makes the engine of a row that one of our receivers works for.
fn received<'a, R: Receive + 'a>(
    network: &'a impl Network,
    work: Work,
    make: impl Fn() -> Result<(R, Box<dyn FarEnd>), String> + 'a,
) -> impl Fn() -> Result<Reception<'a, R>, String> + 'a {
    move || Reception::new(network, make()?, work.check, work.placement)
}

fn subject<'a, E: Engine + 'a>(
    network: &impl Network,
    work: Work,
    engine: &str,
    make: impl Fn() -> Result<E, String> + 'a,
) -> Subject<'a> {
    let Work { load, check, placement } = work;
    let config = Config {
        op: Some("recv".to_owned()),
        proto: Some("tcp".to_owned()),
        target: Some(network.kind().to_owned()),
        mtu: Some(load.mtu),
        gro: Some(load.gro),
        check: Some(check),
        placement: placement.map(|it| it.name().to_owned()),
        ..Config::default()
    };
    Subject::new(work.name(engine), engine, config, make)
}
