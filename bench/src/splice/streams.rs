//! The bed for streams: a host between two others by networks of a kind, and a file, made once for all
//! their rows; and these rows.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    net::TcpStream,
    os::unix::fs::FileExt as _,
    sync::atomic::AtomicBool,
};

use handoff::RouteEngine;
use rustix::{fs::fstatfs, thread::CpuSet};

use super::{
    FILE_SEND, RELAY,
    file_send::{FileSend, PIECE, Way},
    leased::Leased,
    passed::Passed,
    plain::{Copied, Sendfile, Spliced},
    relay::{self, Relay},
};
use handoff_command::Failure;

use crate::{
    measure::{Engine, Subject},
    network::{
        bed::{Bed, Joint, Load},
        far::Network as _,
        pattern::Pattern,
    },
    report::Config,
};

/// Bytes of the file: what the module lends at once.
pub(super) const LENGTH: u64 = 4 << 20;
/// A file system with a page cache and a disk behind it.
const DIRECTORY: &str = "/var/tmp";
const MTU: u32 = 1_500;
/// How many pairs of virtio-net devices rows take.
pub(super) const VIRTIO_NET: u8 = 2;

/// Of a relay of several streams.
const CONNECTIONS: u32 = 4;

/// Of a relay, the best first: where the NIC has queues that take a program's memory, and anywhere.
const RELAYS_OF_NIC: [relay::Way; 3] = [
    relay::Way::Apart { chunk: 64 << 10 },
    relay::Way::Spans { chunk: 64 << 10 },
    relay::Way::Spans { chunk: 4 << 10 },
];
const RELAYS: [relay::Way; 3] = [
    relay::Way::Engine(RouteEngine::GetBuf),
    relay::Way::Engine(RouteEngine::Splice),
    relay::Way::Engine(RouteEngine::Copy),
];

/// What rows need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Software NICs, or veth without them.
    SoftwareNics,
    /// Virtio-net devices.
    VirtioNet,
}

impl Over {
    pub(super) const ALL: [Self; 2] = [Self::SoftwareNics, Self::VirtioNet];

    /// In the name of a row, behind its work.
    fn named(self) -> &'static str {
        match self {
            Self::SoftwareNics => "",
            Self::VirtioNet => "virtio-net ",
        }
    }
}

pub(super) struct Streams {
    /// Where a relay receives from.
    pub(super) source: Bed,
    /// Where it sends to.
    pub(super) sink: Bed,
    /// Without a name, and in the page cache.
    file: File,
}

impl Streams {
    /// Over such networks, with the far ends on these processors. If there is a choice, frames arrive as
    /// they were sent.
    ///
    /// # Errors
    ///
    /// Why this machine cannot have them, in one line.
    pub(super) fn new(over: Over, others: CpuSet) -> Result<Self, String> {
        let pattern = Pattern::new();
        let line = |failure: Failure| failure.line().unwrap_or_default();
        let source = match over {
            Over::SoftwareNics => Bed::new(Load { mtu: MTU, gro: true }, &pattern, others),
            Over::VirtioNet => Bed::virtio_net(MTU, &pattern, others),
        };
        let source = source.map_err(line)?;
        // A relay of one process has both its ends in one namespace.
        let sink = source.onward().map_err(line)?;
        let file = file().map_err(|error| format!("no file in {DIRECTORY}: {error}"))?;
        Ok(Self { source, sink, file })
    }

    /// The file, open once more.
    ///
    /// # Errors
    ///
    /// What the kernel says, in one line.
    pub(super) fn file(&self) -> Result<File, String> {
        self.file.try_clone().map_err(|error| format!("the file: {error}"))
    }
}

/// On a disk, so that its pages are written back before anybody sends them.
fn file() -> io::Result<File> {
    const TMPFS: u64 = 0x0102_1994;

    let mut file = tempfile::tempfile_in(DIRECTORY)?;
    if fstatfs(&file)?.f_type as u64 == TMPFS {
        return Err(io::Error::other("it is in memory, and this bench is of files on a disk"));
    }
    let content: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    file.write_all_at(&content, 0)?;
    file.sync_all()?;
    file.rewind()?;
    file.read_to_end(&mut Vec::new())?;
    Ok(file)
}

/// All rows of streams over such networks, in the table's order; without a network, each says why.
pub(super) fn subjects<'a>(
    over: Over,
    streams: &'a Result<Streams, String>,
    peers: &'a [(String, String)],
    cpu: usize,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let rows = Rows { over, streams };
    let mut subjects = vec![
        rows.sends("sendfile", Sendfile::new).baseline(),
        rows.sends("splice", Spliced::new),
        rows.sends("copy", Copied::new),
        rows.sends("get", |streams, socket| Leased::new(streams, socket, false)),
        rows.sends("get-kept", |streams, socket| Leased::new(streams, socket, true)),
    ];
    let of_nic = match over {
        Over::SoftwareNics => &RELAYS_OF_NIC[..],
        Over::VirtioNet => &[],
    };
    let relay = |way: relay::Way, connections: u32| {
        let relay = rows.subject(RELAY, &way.name(), None, move |streams| {
            Relay::new(streams, way, connections)
        });
        let sockets = (connections > 1).then_some(connections);
        let name = match sockets {
            Some(sockets) => format!("{RELAY} sockets={sockets} {}", way.name()),
            None => relay.name.clone(),
        };
        let config = Config { sockets, ..relay.config.clone() };
        let baseline = way == relay::Way::Engine(RouteEngine::Splice);
        Subject { name, config, baseline, ..relay }
    };
    subjects.extend(of_nic.iter().chain(&RELAYS).map(|&way| relay(way, 1)));
    if over == Over::SoftwareNics {
        subjects.extend(of_nic.iter().chain(&RELAYS).map(|&way| relay(way, CONNECTIONS)));
    }
    subjects.extend(peers.iter().map(|(name, command)| {
        let relay = rows
            .subject(RELAY, name, None, move |streams| Passed::new(streams, command, cpu, stop));
        Subject { peer: true, ..relay }
    }));
    subjects
}

struct Rows<'a> {
    over: Over,
    streams: &'a Result<Streams, String>,
}

impl<'a> Rows<'a> {
    fn sends<W: Way + 'a>(
        &self,
        engine: &str,
        make: impl Fn(&Streams, TcpStream) -> Result<W, String> + 'a,
    ) -> Subject<'a> {
        self.subject(FILE_SEND, engine, Some(PIECE), move |streams| {
            let (socket, drain) = streams.sink.connect_to_drain()?;
            Ok(FileSend::new(make(streams, socket)?, drain, &streams.sink))
        })
    }

    fn subject<E: Engine + 'a>(
        &self,
        operation: &str,
        engine: &str,
        bytes: Option<u64>,
        make: impl Fn(&'a Streams) -> Result<E, String> + 'a,
    ) -> Subject<'a> {
        let streams = self.streams;
        let sink = streams.as_ref().ok().map(|streams| &streams.sink);
        let target = match self.over {
            Over::SoftwareNics => sink.map(|sink| sink.joint().name()),
            Over::VirtioNet => Some(Joint::VirtioNet.name()),
        };
        let config = Config {
            bytes,
            op: Some(operation.to_owned()),
            proto: Some("tcp".to_owned()),
            target: target.map(str::to_owned),
            mtu: Some(MTU),
            gro: sink.map(|sink| sink.load().gro),
            ..Config::default()
        };
        let name = format!("{operation} {}{engine}", self.over.named());
        let make = move || make(streams.as_ref().map_err(String::clone)?);
        Subject::new(name, engine, config, make)
    }
}
