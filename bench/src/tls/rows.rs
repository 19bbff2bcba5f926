//! The rows: what is done, and by whom.

use std::{net::TcpStream, sync::atomic::AtomicBool};

use handoff::tls::Ciphering;

use super::{
    TlsArgs,
    far::{Far, Part},
    measured::{Counted, Measured, Works},
    ours::{Accepting, Connecting, Ours, Serving, Use},
    programs::{self, Living, STime},
    testbed::{self, Testbed},
};
use crate::{
    measure::Subject,
    network::{
        account::Account,
        far::Network as _,
        program::{Program, installed},
        testbed::SHARED,
    },
    report::Config,
};

/// Bytes of a ping.
const PING: u64 = 64;
/// More handshakes than anybody makes.
const ALL: u64 = 1 << 40;

/// What rows do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    SendFile,
    Receive,
    ReceiveFile,
    Serve,
    Ping,
    Accept,
    Connect,
}

impl Operation {
    const BULK: [Self; 5] =
        [Self::Send, Self::SendFile, Self::Receive, Self::ReceiveFile, Self::Serve];
    const OTHERS: [Self; 3] = [Self::Ping, Self::Accept, Self::Connect];

    fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::SendFile => "send-file",
            Self::Receive => "receive",
            Self::ReceiveFile => "receive-file",
            Self::Serve => "serve",
            Self::Ping => "ping",
            Self::Accept => "accept",
            Self::Connect => "connect",
        }
    }

    /// Whether an operation of this name moves many bytes.
    pub(super) fn is_bulk(name: Option<&str>) -> bool {
        Self::BULK.iter().any(|it| Some(it.name()) == name)
    }

    fn programs(self) -> &'static [Who] {
        match self {
            Self::Send | Self::Receive => &[Who::Socat],
            Self::Serve | Self::Accept => &[Who::Nginx, Who::NginxKtls],
            Self::Connect => &[Who::STime],
            Self::SendFile | Self::ReceiveFile | Self::Ping => &[],
        }
    }

    /// Whom the others are compared with.
    fn baseline(self) -> Who {
        let program = match self {
            Self::Send | Self::Receive => Some((Who::Socat, "socat")),
            Self::Serve => Some((Who::NginxKtls, "nginx")),
            Self::Accept => Some((Who::Nginx, "nginx")),
            Self::Connect => Some((Who::STime, "openssl")),
            Self::SendFile | Self::ReceiveFile | Self::Ping => None,
        };
        let there = program.filter(|(_, package)| installed(package).is_ok());
        there.map_or(Who::User, |(who, _)| who)
    }

    /// Whether handshakes are made while the clock runs.
    fn makes_connections(self) -> bool {
        matches!(self, Self::Serve | Self::Accept | Self::Connect)
    }

    /// Whether the measured end is the one that accepts connections.
    fn accepts(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveFile | Self::Serve | Self::Accept)
    }
}

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Kernel,
    User,
    Socat,
    Nginx,
    NginxKtls,
    STime,
}

impl Who {
    fn engine(self) -> &'static str {
        match self {
            Self::Kernel => "kernel-tls",
            Self::User => "user-tls",
            Self::Socat => "socat",
            Self::Nginx => "nginx",
            Self::NginxKtls => "nginx-ktls",
            Self::STime => "s_time",
        }
    }
}

/// All rows that match `--only`, and their baselines, in the table's order.
pub(super) fn subjects<'a>(
    args: &TlsArgs,
    sizes: &[u64],
    testbed: &'a Testbed,
    stop: &'a AtomicBool,
) -> Vec<Subject<'a>> {
    let mut subjects = Vec::new();
    let mut add = |operation: Operation, bytes: u64| {
        let baseline = operation.baseline();
        for &who in operation.programs().iter().chain(&[Who::Kernel, Who::User]) {
            let row = Row { operation, who, bytes, testbed, stop };
            let subject = row.subject();
            subjects.push(if who == baseline { subject.baseline() } else { subject });
        }
    };
    for operation in Operation::BULK {
        for &bytes in sizes {
            add(operation, bytes);
        }
    }
    for operation in Operation::OTHERS {
        add(operation, if operation == Operation::Ping { PING } else { 1 });
    }
    args.run.keep_wanted(&mut subjects);
    subjects
}

#[derive(Clone, Copy)]
struct Row<'a> {
    operation: Operation,
    who: Who,
    bytes: u64,
    testbed: &'a Testbed,
    stop: &'a AtomicBool,
}

impl<'a> Row<'a> {
    fn subject(self) -> Subject<'a> {
        let network = self.testbed.network();
        let bulk = Operation::is_bulk(Some(self.operation.name()));
        let config = Config {
            bytes: (bulk || self.operation == Operation::Ping).then_some(self.bytes),
            op: Some(self.operation.name().to_owned()),
            proto: Some("tcp".to_owned()),
            target: Some(network.joint().name().to_owned()),
            mtu: Some(testbed::MTU),
            gro: Some(network.load().gro),
            ..Config::default()
        };
        let engine = self.who.engine();
        let name = format!("{} {engine}", self.operation.name());
        Subject::new(name, engine, config, move || self.make())
    }

    fn make(self) -> Result<Measured<'a>, String> {
        match self.who {
            Who::Kernel => self.ours(Ciphering::Kernel),
            Who::User => self.ours(Ciphering::User),
            Who::Socat | Who::Nginx | Who::NginxKtls => self.program(),
            Who::STime => self.s_time(),
        }
    }

    fn account(self) -> Account<'a> {
        let network = self.testbed.network();
        let napi = match self.operation.accepts() {
            true => network.napi_of_connected(),
            false => network.napi_of_connecting(),
        };
        Account::new(napi.to_vec(), vec![network])
    }

    fn far(self, part: Part) -> Result<Far, String> {
        Far::new(part, self.bytes, &self.testbed.identity, self.testbed.others())
    }

    fn measured(self, works: Box<dyn Works + 'a>, far: Far, account: Account<'a>) -> Measured<'a> {
        let counted = match self.operation {
            _ if self.who == Who::STime => Counted::Uncounted,
            Operation::Ping | Operation::Accept | Operation::Connect => Counted::Pieces,
            _ => Counted::Bytes(self.bytes),
        };
        let unreported = self.testbed.network().joint().copies_of_sent();
        Measured::new(works, far, account, counted, unreported)
    }

    /// A row of the library.
    fn ours(self, ciphering: Ciphering) -> Result<Measured<'a>, String> {
        let Self { operation, bytes, testbed, .. } = self;
        let (network, identity) = (testbed.network(), &testbed.identity);
        let established = |used: Use| -> Result<Measured<'a>, String> {
            let (connecting, connected) = network.connection()?;
            let (near, part): (TcpStream, Part) = match used {
                Use::Send | Use::SendFile => (connecting, Part::Sink(connected)),
                Use::Ping => (connecting, Part::Echo(connected)),
                Use::Receive | Use::ReceiveFile => (connected, Part::Source(connecting)),
            };
            let far = self.far(part)?;
            let (path, pieces) = (testbed.path(testbed::LENGTH), (bytes, testbed::LENGTH));
            let works = Ours::new(near, used, pieces, &path, identity, ciphering)?;
            Ok(self.measured(Box::new(works), far, self.account()))
        };
        if ciphering == Ciphering::Kernel && operation.makes_connections() {
            // A kernel that cannot leaves the row out, and is no failure.
            drop(established(Use::Ping)?);
        }
        match operation {
            Operation::Send => established(Use::Send),
            Operation::SendFile => established(Use::SendFile),
            Operation::Receive => established(Use::Receive),
            Operation::ReceiveFile => established(Use::ReceiveFile),
            Operation::Ping => established(Use::Ping),
            Operation::Serve => {
                let listener = network.listen(SHARED)?;
                let connecting = network.reach(SHARED)?.ok_or("nobody listens")?;
                let path = testbed.path(bytes);
                let works = Serving::new(listener, (&path, bytes), identity, ciphering)?;
                let far = self.far(Part::Asks(connecting, bytes))?;
                Ok(self.measured(Box::new(works), far, self.account()))
            }
            Operation::Accept => {
                let works = Accepting::new(network.listen(SHARED)?, identity, ciphering)?;
                let namespace = network.connecting().namespace().clone();
                let far = self.far(Part::Connects(namespace, network.far_address(SHARED)))?;
                Ok(self.measured(Box::new(works), far, self.account()))
            }
            Operation::Connect => {
                let far = self.far(Part::Accepts(network.listen(SHARED)?))?;
                let namespace = network.connecting().namespace().clone();
                let address = network.far_address(SHARED);
                let connect = move || {
                    let connected = namespace.run(|| TcpStream::connect(address));
                    connected.map_err(|it| it.to_string())?.map_err(|it| it.to_string())
                };
                let works = Connecting::new(connect, identity, ciphering)?;
                Ok(self.measured(Box::new(works), far, self.account()))
            }
        }
    }

    /// A row of another program that lives as long as the row.
    fn program(self) -> Result<Measured<'a>, String> {
        let Self { operation, bytes, testbed, stop, .. } = self;
        let network = testbed.network();
        let own = network.own_port()?;
        let placeholders = testbed.placeholders(&own, bytes);
        let start = |command: &str| {
            let end = if operation.accepts() { network.connected() } else { network.connecting() };
            Program::start(command, &placeholders, Some(end.namespace()), stop)
        };
        let reach = || network.reach(own.number());
        let nginx = || {
            let by_kernel = self.who == Who::NginxKtls;
            programs::nginx(&placeholders, testbed.directory(), by_kernel)
        };
        let (program, part) = match operation {
            Operation::Send => {
                let listener = network.listen(own.number())?;
                let mut program = start(&programs::socat_sends()?)?;
                let accepted = program.accept(&listener)?;
                (program, Part::Sink(accepted))
            }
            Operation::Receive => {
                let mut program = start(&programs::socat_receives()?)?;
                let connected = program.connect(reach)?;
                (program, Part::Source(connected))
            }
            Operation::Serve => {
                let mut program = start(&nginx()?)?;
                let connected = program.connect(reach)?;
                (program, Part::Asks(connected, bytes))
            }
            _ => {
                let mut program = start(&nginx()?)?;
                drop(program.connect(reach)?);
                let namespace = network.connecting().namespace().clone();
                (program, Part::Connects(namespace, network.far_address(own.number())))
            }
        };
        let account = self.account().of_program(program.id());
        let far = self.far(part)?;
        let receives = operation == Operation::Receive;
        Ok(self.measured(Box::new(Living { program, receives, _own: own }), far, account))
    }

    fn s_time(self) -> Result<Measured<'a>, String> {
        installed("openssl")?;
        let network = self.testbed.network();
        let mut far = self.far(Part::Accepts(network.listen(SHARED)?))?;
        far.order(ALL, 0);
        let (address, port) = network.far_address(SHARED);
        let namespace = network.connecting().namespace().clone();
        let works = STime { namespace, address: format!("{address}:{port}"), stop: self.stop };
        Ok(self.measured(Box::new(works), far, self.account().of_ended_programs()))
    }
}
