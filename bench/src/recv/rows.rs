//! The rows, in the table's order: what is received over which wire, by which engine, and whether it is
//! looked at.

use std::iter;

use super::{
    RecvArgs, SMALLEST_CHUNK,
    epoll::Epoll,
    handoff_rows::{By, Handoff, To},
    reception::{Receive, Reception},
    several,
};
use crate::{
    measure::{Engine, Subject},
    network::{
        bed::Load,
        far::{FarEnd, Network},
        placement::Placement,
    },
    quantity::format_size,
    report::Config,
};

pub(super) const LOADS: [Load; 3] = [
    Load { mtu: 1_500, gro: false },
    // 4,096 bytes behind the headers of IPv4 and TCP with time stamps.
    Load { mtu: 4_148, gro: false },
    Load { mtu: 1_500, gro: true },
];

/// The library's, on every wire.
const WAYS: [To; 3] = [To::Pool, To::Window, To::AreaWithoutNic];

/// What rows that compare have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    load: Load,
    check: bool,
    placement: Option<Placement>,
}

impl Work {
    /// All that is wanted with this load, in the table's order.
    pub(super) fn all(args: &RecvArgs, load: Load) -> impl Iterator<Item = Self> {
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

/// The library's ways for such work, in the table's order. What owned spans cost shows best where spans are small
/// and nobody looks at them.
fn ways(args: &RecvArgs, work: Work) -> impl Iterator<Item = To> {
    // Packets of the MTU's size fill no larger ones.
    let chunks = if work.load.gro { &args.chunks[..] } else { &[SMALLEST_CHUNK] };
    let areas = chunks.iter().flat_map(move |&bytes| {
        let area = |by| To::Area { chunk: bytes as usize, by };
        let owned = !work.check && bytes == SMALLEST_CHUNK;
        iter::once(area(By::Visit)).chain(owned.then(|| area(By::Spans)))
    });
    WAYS.into_iter().chain(areas)
}

/// A way's name in those of rows.
fn name_of(to: To) -> String {
    let engine = to.engine().name();
    match to {
        To::Area { chunk, by } => {
            let owned = if by == By::Spans { " owned" } else { "" };
            format!("{engine} chunk={}{owned}", format_size(chunk as u64))
        }
        _ => engine.to_owned(),
    }
}

/// Rings that share a queue, where several connections come by one; none where there are no such rows. Small chunks
/// show best what sharing costs.
fn rings(work: Work) -> &'static [u32] {
    let Work { load, check, placement } = work;
    if load == LOADS[1] && !check && placement.is_none() { &[1, 2] } else { &[] }
}

/// The names of rows of several connections, by so many rings.
fn name_by_rings(work: Work, rings: u32) -> String {
    let connections = several::CONNECTIONS;
    let chunk = format_size(SMALLEST_CHUNK);
    work.name(&format!("sockets={connections} zcrx chunk={chunk} rings={rings}"))
}

/// How many rows want a queue of their own, with this load.
pub(super) fn own_queues(args: &RecvArgs, load: Load) -> usize {
    let rows = Work::all(args, load).flat_map(|work| {
        let areas = ways(args, work).filter(|to| matches!(to, To::Area { .. }));
        let shared = rings(work).iter().map(move |&rings| name_by_rings(work, rings));
        areas.map(move |to| work.name(&name_of(to))).chain(shared)
    });
    rows.filter(|name| args.run.wants(name)).count()
}

/// All rows that `--only` lets through, and those that they compare with, in the table's order;
/// `peers` are other programs' of a network.
pub(super) fn subjects<'a, N: Network>(
    args: &'a RecvArgs,
    networks: &'a [N],
    peers: impl Fn(&'a N, Work) -> Vec<Subject<'a>>,
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
                let To::Area { chunk, by } = to else { return subject };
                let name = work.name(&name_of(to));
                let (chunk, api) = (Some(chunk as u64), Some(by.name().to_owned()));
                let config = Config { chunk, api, ..subject.config };
                Subject { name, config, ..subject }
            });
            let others = if work.check { Vec::new() } else { peers(network, work) };
            let one = iter::once(Subject { baseline: true, ..epoll }).chain(ours).chain(others);
            one.chain(of_several(network, work))
        })
        .collect();
    args.run.keep_wanted(&mut subjects);
    subjects
}

/// Rows of several connections.
fn of_several<'a>(network: &'a impl Network, work: Work) -> Vec<Subject<'a>> {
    let Work { check, .. } = work;
    let sockets = Some(several::CONNECTIONS);
    let by_rings = |&rings: &u32| {
        let chunk = SMALLEST_CHUNK as usize;
        let made = move || several::by_rings(network, chunk, rings, check);
        let subject = subject(network, work, "zcrx", made);
        let (chunk, api) = (Some(SMALLEST_CHUNK), Some(By::Visit.name().to_owned()));
        let config = Config { sockets, rings: Some(rings), chunk, api, ..subject.config };
        Subject { name: name_by_rings(work, rings), config, ..subject }
    };
    let ours: Vec<_> = rings(work).iter().map(by_rings).collect();
    if ours.is_empty() {
        return ours;
    }
    let epoll = subject(network, work, "epoll", move || several::by_epoll(network, check));
    let name = work.name(&format!("sockets={} epoll", several::CONNECTIONS));
    let config = Config { sockets, ..epoll.config };
    let epoll = Subject { name, config, baseline: true, ..epoll };
    iter::once(epoll).chain(ours).collect()
}

/// Makes what is received from in a way of ours.
fn received<'a, R: Receive + 'a>(
    network: &'a impl Network,
    work: Work,
    make: impl Fn() -> Result<(R, Box<dyn FarEnd>), String> + 'a,
) -> impl Fn() -> Result<Reception<'a, R>, String> + 'a {
    move || Reception::new(network, make()?, work.check, work.placement)
}

pub(super) fn subject<'a, E: Engine + 'a>(
    network: &impl Network,
    work: Work,
    engine: &str,
    make: impl Fn() -> Result<E, String> + 'a,
) -> Subject<'a> {
    let Work { load, check, placement } = work;
    Subject {
        name: work.name(engine),
        engine: engine.to_owned(),
        config: Config {
            op: Some("recv".to_owned()),
            proto: Some("tcp".to_owned()),
            target: Some(network.kind().to_owned()),
            mtu: Some(load.mtu),
            gro: Some(load.gro),
            check: Some(check),
            placement: placement.map(|it| it.name().to_owned()),
            ..Config::default()
        },
        baseline: false,
        peer: false,
        make: Box::new(move || make().map(|engine| Box::new(engine) as _)),
    }
}
