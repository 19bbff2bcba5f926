//! The rows of the send table.

use std::{
    cell::RefCell,
    collections::HashMap,
    io,
    rc::{Rc, Weak},
};

use handoff_command::quantity::{format_count, format_size};

use super::{
    DEFAULT_WORKING_SET, SendArgs,
    bulk_rows::Bulk,
    copy::Copy,
    fan_out::{CopyToAll, LendToAll},
    handoff_rows::{self, BATCHES, UringZc, Way},
    msg_zerocopy::{Loop, MsgZerocopy},
    payload::{Pages, Payload},
    segments::{CopySegments, Cut},
    testbed::Testbed,
};
use crate::{
    measure::Subject,
    peer::{Affinity, Figure, Peer, Placeholders, Receiver},
    report::Config,
};

const SEED: &str = "msg-zerocopy-seed";

const IPERF3: &str = "iperf3 -Z";
const IPERF3_PORT: u16 = 5201;
const IPERF3_SERVER: &str = "exec iperf3 -s -p 5201";
const IPERF3_CLIENT: &str = "exec iperf3 -Z -c {addr} -p {port} -l {bytes} -t {seconds} -f m";

/// The baselines' memory. Engines that live at the same time share it.
pub(super) struct Stock {
    working_set: u64,
    payloads: RefCell<HashMap<(u64, bool), Weak<Payload>>>,
}

impl Stock {
    pub(super) fn new(working_set: u64) -> Self {
        Self { working_set, payloads: RefCell::default() }
    }

    fn payload(&self, bytes: u64, pages: Pages) -> Result<Rc<Payload>, String> {
        let key = (bytes, pages == Pages::Huge);
        let mut payloads = self.payloads.borrow_mut();
        if let Some(payload) = payloads.get(&key).and_then(Weak::upgrade) {
            return Ok(payload);
        }
        let payload = Payload::new(bytes, self.working_set, pages)
            .map(Rc::new)
            .map_err(|error| error.to_string())?;
        payloads.insert(key, Rc::downgrade(&payload));
        Ok(payload)
    }
}

fn line(error: io::Error) -> String {
    error.to_string()
}

/// A row's name: the engine, then how it differs from that engine's other rows.
fn name_of(engine: &str, pages: Pages) -> String {
    match pages {
        Pages::Small => engine.to_owned(),
        Pages::Huge => format!("{engine} huge"),
    }
}

fn config(testbed: &Testbed, bytes: u64) -> Config {
    Config {
        bytes: Some(bytes),
        op: Some("send".into()),
        proto: Some(testbed.protocol().name().into()),
        mtu: Some(testbed.mtu()),
        target: Some(testbed.device().into()),
        ..Config::default()
    }
}

/// All rows of all sizes that `--only` wants, in the table's order. A baseline is always among them.
pub(super) fn subjects<'a>(
    args: &SendArgs,
    sizes: &[u64],
    testbed: &'a Testbed,
    stock: &'a Stock,
) -> Vec<Subject<'a>> {
    let wanted = |subject: &Subject<'_>| subject.baseline || args.run.wants(&subject.name);
    let working_set = args.working_set;
    let of_size = |&bytes: &u64| -> Vec<Subject<'a>> {
        if let Some(segment) = args.segment {
            return segmented(testbed, stock, bytes, working_set, segment);
        }
        if !args.fan_out.is_empty() {
            let to_all = |sockets: &u32| fan_out(testbed, stock, bytes, working_set, *sockets);
            return args.fan_out.iter().flat_map(to_all).collect();
        }
        let of_sockets = move |&sockets: &u32| {
            let ways = handoff_rows::ways(sockets);
            let ours = ways.map(move |way| uring_zc(testbed, bytes, working_set, way));
            let bulk = BATCHES.map(move |batch| bulk(testbed, bytes, working_set, batch, sockets));
            ours.chain(bulk)
        };
        let ours = args.sockets.iter().flat_map(of_sockets);
        baselines(testbed, stock, bytes).into_iter().chain(ours).collect()
    };
    // A row of another working set gets another name, so that `--compare` does not compare the two.
    let named = |subject: Subject<'a>| Subject {
        name: match working_set {
            DEFAULT_WORKING_SET => subject.name,
            other => format!("{} ws={}", subject.name, format_size(other)),
        },
        ..subject
    };
    sizes.iter().flat_map(of_size).filter(wanted).map(named).collect()
}

fn baselines<'a>(testbed: &'a Testbed, stock: &'a Stock, bytes: u64) -> Vec<Subject<'a>> {
    let config = Config { batch: Some(1), registered: Some(false), ..config(testbed, bytes) };
    let msg_zerocopy = |engine: &str, kind: Loop, pages: Pages| {
        Subject::new(name_of(engine, pages), engine, config.clone(), move || {
            MsgZerocopy::new(testbed, stock.payload(bytes, pages)?, kind).map_err(line)
        })
    };
    let copy = move || Copy::new(testbed, stock.payload(bytes, Pages::Small)?).map_err(line);
    vec![
        Subject::new("copy".to_owned(), "copy", config.clone(), copy),
        msg_zerocopy(SEED, Loop::Seed, Pages::Small).baseline(),
        msg_zerocopy("msg-zerocopy-tuned", Loop::Tuned, Pages::Small),
        msg_zerocopy("msg-zerocopy-tuned", Loop::Tuned, Pages::Huge),
    ]
}

/// The rows that send each message to this many sockets.
fn fan_out<'a>(
    testbed: &'a Testbed,
    stock: &'a Stock,
    bytes: u64,
    working_set: u64,
    sockets: u32,
) -> Vec<Subject<'a>> {
    let config = |registered| Config {
        fan_out: Some(sockets),
        registered: Some(registered),
        ..config(testbed, bytes)
    };
    let name = |engine: &str| format!("{engine} fan-out={sockets}");
    let copy =
        move || CopyToAll::new(testbed, stock.payload(bytes, Pages::Small)?, sockets).map_err(line);
    let copy = Subject::new(name("copy"), "copy", config(false), copy).baseline();
    let lent = |registered| {
        let engine = if registered { "uring-zc-fixed" } else { "uring-zc" };
        let make = move || LendToAll::new(testbed, bytes, working_set, registered, sockets);
        Subject::new(name(engine), engine, config(registered), make)
    };
    vec![copy, lent(false), lent(true)]
}

/// The rows that send each message as datagrams of `segment` payload bytes.
fn segmented<'a>(
    testbed: &'a Testbed,
    stock: &'a Stock,
    bytes: u64,
    working_set: u64,
    segment: u16,
) -> Vec<Subject<'a>> {
    let config = config(testbed, bytes);
    let config = Config { segment: Some(segment), registered: Some(false), ..config };
    let copy = |how: &str, cut: Cut| {
        let config = Config { batch: Some(1), ..config.clone() };
        Subject::new(format!("copy {how}"), "copy", config, move || {
            let payload = stock.payload(bytes, Pages::Small)?;
            CopySegments::new(testbed, payload, segment, cut).map_err(line)
        })
    };
    let ways = handoff_rows::ways(1).filter(|way| !way.huge && !way.flush);
    let ours = ways.map(|way| {
        let subject = uring_zc(testbed, bytes, working_set, Way { segment: Some(segment), ..way });
        let config = Config { segment: Some(segment), ..subject.config };
        Subject { name: format!("{} gso", subject.name), config, ..subject }
    });
    let copies = [copy("sendmmsg", Cut::ByCaller), copy("gso", Cut::ByKernel).baseline()];
    copies.into_iter().chain(ours).collect()
}

fn uring_zc(testbed: &Testbed, bytes: u64, working_set: u64, way: Way) -> Subject<'_> {
    let Way { registered, flush, batch, huge, sockets, .. } = way;
    let pages = if huge { Pages::Huge } else { Pages::Small };
    let flush_word = if flush { "yes" } else { "no" };
    let engine = way.engine();
    let name = format!("{engine} flush={flush_word} batch={batch}{}", named(sockets));
    let config = Config {
        batch: Some(batch),
        flush: Some(flush),
        registered: Some(registered),
        api: Some("message".into()),
        sockets: (sockets > 1).then_some(sockets),
        ..config(testbed, bytes)
    };
    let make = move || UringZc::new(testbed, bytes, working_set, way);
    Subject::new(name_of(&name, pages), engine, config, make)
}

/// The part of a row's name that says how many sockets it has; empty for one.
fn named(sockets: u32) -> String {
    if sockets == 1 { String::new() } else { format!(" sockets={}", format_count(sockets)) }
}

fn bulk(testbed: &Testbed, bytes: u64, working_set: u64, batch: u32, sockets: u32) -> Subject<'_> {
    let engine = "uring-zc-fixed";
    let name = format!("{engine} bulk batch={batch}{}", named(sockets));
    let config = Config {
        batch: Some(batch),
        flush: Some(true),
        registered: Some(true),
        api: Some("bulk".into()),
        sockets: (sockets > 1).then_some(sockets),
        ..config(testbed, bytes)
    };
    let make = move || Bulk::new(testbed, bytes, working_set, batch, sockets);
    Subject::new(name, engine, config, make)
}

/// The peers of all sizes: the peers of the command line (`figures` belongs to `args.programs.peer`), and
/// `iperf3 -Z`, which sends by sendfile(2), if there is a receiver.
pub(super) fn peers<'a>(
    args: &'a SendArgs,
    sizes: &[u64],
    testbed: &'a Testbed,
    figures: &'a [Figure],
    cpu: usize,
) -> Vec<Subject<'a>> {
    let placeholders = move |bytes: u64, port: u16| {
        Placeholders(vec![
            ("addr", testbed.address().to_string()),
            ("port", port.to_string()),
            ("bytes", bytes.to_string()),
            ("cpu", cpu.to_string()),
        ])
    };
    let subject = |bytes,
                   name: &str,
                   engine: &str,
                   make: Box<dyn Fn() -> Result<Peer, String> + 'a>| Subject {
        peer: true,
        ..Subject::new(name.to_owned(), engine, config(testbed, bytes), make)
    };
    let given = |bytes: u64| {
        args.programs.peer.iter().zip(figures).map(move |((name, command), figure)| {
            let make = move || {
                Ok(Peer {
                    command: command.clone(),
                    figure: figure.clone(),
                    placeholders: placeholders(bytes, testbed.target().port()),
                    namespace: testbed.namespace().clone(),
                    receiver: None,
                })
            };
            subject(bytes, name, name, Box::new(make))
        })
    };
    let iperf3 = |bytes: u64| {
        // iperf3 sends a stream to one receiver, so it is no peer of `--fan-out`.
        let wanted = args.run.wants(IPERF3) && args.fan_out.is_empty();
        testbed.far().filter(|_| wanted).map(move |far| {
            let make = move || {
                let receiver =
                    Receiver::start(IPERF3_SERVER, far, Some(IPERF3_PORT), Affinity::All)?;
                Ok(Peer {
                    command: IPERF3_CLIENT.into(),
                    figure: Figure::new(None, None)?,
                    placeholders: placeholders(bytes, IPERF3_PORT),
                    namespace: testbed.namespace().clone(),
                    receiver: Some(receiver),
                })
            };
            subject(bytes, IPERF3, "sendfile", Box::new(make))
        })
    };
    sizes.iter().flat_map(|&bytes| given(bytes).chain(iperf3(bytes))).collect()
}
