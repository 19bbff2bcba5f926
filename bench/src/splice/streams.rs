//! The testbed for streams, made once for all their rows: a host between two others, by networks of one kind,
//! and a file. The rows are here, too.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    net::TcpStream,
    os::unix::fs::FileExt as _,
    sync::atomic::AtomicBool,
};

use handoff::RouteEngine;
use handoff_command::Failure;
use rustix::{fs::fstatfs, thread::CpuSet};

use super::{
    FILE_SEND, RELAY,
    file_send::{FileSend, PIECE, Way},
    leased::Leased,
    passed::Passed,
    plain::{Copied, Sendfile, Spliced},
    relay::{self, Relay},
};
use crate::{
    measure::{Engine, Subject},
    network::{
        far::Network as _,
        pattern::Pattern,
        testbed::{Joint, Load, Testbed},
    },
    report::Config,
};

/// Bytes of the file: the most that the module lends at once.
pub(super) const LENGTH: u64 = 4 << 20;
/// A directory whose file system has a page cache and a disk behind it.
const DIRECTORY: &str = "/var/tmp";
const MTU: u32 = 1_500;
/// The number of pairs of virtio-net devices that rows need.
pub(super) const VIRTIO_NET: u8 = 2;

/// The connections of a relay of several streams.
const CONNECTIONS: u32 = 4;

/// The ways to relay over a NIC that has queues for a program's memory. [`RELAYS`] work over any network. Both
/// lists begin with the best way.
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

/// The kind of networks that rows need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    /// Software NICs, or veth where there are none.
    SoftwareNics,
    /// Virtio-net devices.
    VirtioNet,
}

impl Over {
    pub(super) const ALL: [Self; 2] = [Self::SoftwareNics, Self::VirtioNet];

    /// The part of a row's name that tells its networks, behind the operation.
    fn named(self) -> &'static str {
        match self {
            Self::SoftwareNics => "",
            Self::VirtioNet => "virtio-net ",
        }
    }
}

pub(super) struct Streams {
    /// The network that a relay receives from.
    pub(super) source: Testbed,
    /// The network that a relay sends to, or that a file is sent to.
    pub(super) sink: Testbed,
    /// The file, which has no name and whose pages are in the page cache.
    file: File,
}

impl Streams {
    /// Makes the networks and the file, with the far ends on these processors. Where there is a choice, frames
    /// arrive as they were sent.
    ///
    /// # Errors
    ///
    /// One line that says why this machine cannot have them.
    pub(super) fn new(over: Over, others: CpuSet) -> Result<Self, String> {
        let pattern = Pattern::new();
        let line = |failure: Failure| failure.line().unwrap_or_default();
        let source = match over {
            Over::SoftwareNics => Testbed::new(Load { mtu: MTU, gro: true }, &pattern, others),
            Over::VirtioNet => Testbed::virtio_net(MTU, &pattern, others),
        };
        let source = source.map_err(line)?;
        // A relay of one process has both its ends in one namespace.
        let sink = source.onward().map_err(line)?;
        let file = file().map_err(|error| format!("no file in {DIRECTORY}: {error}"))?;
        Ok(Self { source, sink, file })
    }

    /// Another descriptor of the file. All descriptors share one offset.
    ///
    /// # Errors
    ///
    /// One line with the kernel's error.
    pub(super) fn file(&self) -> Result<File, String> {
        self.file.try_clone().map_err(|error| format!("the file: {error}"))
    }
}

/// Makes the file on a disk, so that its pages are written back before anybody sends them.
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

/// All rows of streams over such networks, in the table's order. Without the networks, each row says why.
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
