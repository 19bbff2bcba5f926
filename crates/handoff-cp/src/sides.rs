//! Both sides of a copy, and whether the options make sense for them.

use handoff_command::Failure;
use handoff_net::address::Address;
use handoff_net::rds;

use crate::args::{Args, EngineName, Lend, is_output};

/// Source and destination.
///
/// # Errors
///
/// [`Failure::Usage`] for something that is no address, or does not fit the others.
pub(crate) fn of(args: &Args) -> Result<(Address, Address), Failure> {
    let address = |text| Address::parse(text).map_err(Failure::usage);
    let source = address(&args.source)?;
    let destination = match is_output(&args.destination) {
        true => Address::Pipe,
        false => address(&args.destination)?,
    };
    let is_rds = |address: &Address| matches!(address, Address::Rds(_));
    let is_peer = |address: &Address| address.endpoint().is_some() || is_rds(address);
    if is_peer(&source) && is_peer(&destination) {
        return Err(Failure::usage(
            "one of SRC and DST is a file or -, the other may be a connection",
        ));
    }
    if is_rds(&source) || is_rds(&destination) {
        refuse_by_messages(args, is_rds(&source))?;
    } else if args.rds != rds::EngineName::Auto {
        return Err(Failure::usage("--rds needs rds:// as SRC or DST"));
    }
    if args.raw && !is_peer(&source) && !is_peer(&destination) {
        return Err(Failure::usage("--raw needs a connection as SRC or DST"));
    }
    let listens = Address::listens;
    match [&source, &destination].into_iter().find(|side| side.is_tls()) {
        Some(side) => refuse_by_tls(args, side)?,
        None => {
            if let Some(option) = of_tls(args) {
                let needs = "needs tls:// or tls-listen:// as SRC or DST";
                return Err(Failure::usage(format!("{option} {needs}")));
            }
        }
    }
    if !args.addresses.from().is_empty()
        && !listens(&source)
        && !listens(&destination)
        && !is_rds(&source)
    {
        return Err(Failure::usage("--from limits who connects, and this side does not listen"));
    }
    if args.max_size.is_some() && !is_peer(&source) {
        return Err(Failure::usage("--max-size needs a connection as SRC"));
    }
    if args.idle().is_some() && !is_peer(&source) && !is_peer(&destination) {
        return Err(Failure::usage("--idle needs a connection as SRC or DST"));
    }
    if args.raw && args.preserve {
        return Err(Failure::usage(
            "--raw carries bare bytes only, and cannot --preserve anything",
        ));
    }
    if args.raw && args.streams > 1 {
        return Err(Failure::usage("--raw cannot put several --streams in order: use one"));
    }
    if args.nic.is_some() && !is_peer(&source) {
        return Err(Failure::usage("--nic needs a connection as SRC"));
    }
    if args.threads.is_some() && !is_peer(&source) {
        return Err(Failure::usage("--threads needs a connection as SRC"));
    }
    if args.threads.is_some_and(|threads| threads < args.queues) {
        return Err(Failure::usage("--queues is above --threads: each queue needs a thread"));
    }
    // A sender that connects decides how many streams there are.
    if !listens(&source) || args.raw {
        let refused = [(args.threads, "thread"), (Some(args.queues), "queue")];
        let refused = refused.iter().find(|(count, _)| *count > Some(args.streams));
        if let Some((_, one)) = refused {
            return Err(Failure::usage(format!(
                "--{one}s is above --streams: each {one} needs a stream"
            )));
        }
    }
    if args.lend == Lend::Always {
        if !matches!(source, Address::File(_)) || destination == Address::Pipe {
            return Err(Failure::usage(
                "--lend always needs a file as SRC, and a file or a connection as DST",
            ));
        }
        if args.verify {
            return Err(Failure::usage(
                "--lend always does not read the bytes, and --verify must read them",
            ));
        }
        if args.engine == EngineName::MsgZerocopy {
            return Err(Failure::usage(
                "--lend always needs --engine uring-zc or copy: MSG_ZEROCOPY sends memory only",
            ));
        }
    }
    Ok((source, destination))
}

/// An option that is of use over TLS only.
fn of_tls(args: &Args) -> Option<&'static str> {
    args.key_file.is_some().then_some("--key-file").or_else(|| of_certificates(args))
}

/// An option about certificates.
fn of_certificates(args: &Args) -> Option<&'static str> {
    let given = [
        (args.certificate.cert.is_some(), "--cert"),
        (args.ca.is_some(), "--ca"),
        (args.name.is_some(), "--name"),
    ];
    given.into_iter().find_map(|(given, option)| given.then_some(option))
}

/// Options that a copy over TLS cannot use, at the end that this is.
fn refuse_by_tls(args: &Args, side: &Address) -> Result<(), Failure> {
    if let Some(option) = of_certificates(args).filter(|_| !args.raw) {
        return Err(Failure::usage(format!(
            "{option} is for --raw: between two `handoff cp` a KEY does it, without certificates"
        )));
    }
    let (by_listener, by_caller) =
        (args.certificate.cert.is_some(), args.ca.is_some() || args.name.is_some());
    match side.listens() {
        true if by_caller => {
            let what = "--ca and --name are for tls://, the end that connects: a listener asks for no certificate";
            return Err(Failure::usage(what));
        }
        true if args.raw && !by_listener => {
            let what = "--raw with tls-listen:// needs --cert FILE and --cert-key FILE";
            return Err(Failure::usage(what));
        }
        false if by_listener => {
            let what = "--cert is for tls-listen://: the end that connects shows no certificate";
            return Err(Failure::usage(what));
        }
        _ => {}
    }
    let refused = [
        (args.raw && args.key_file.is_some(), "--key-file beside --raw, which has no KEY"),
        (args.nic.is_some(), "--nic: the card would deliver what is still ciphered"),
        (args.threads.is_some(), "--threads: one thread deciphers all streams"),
        (args.lend == Lend::Always, "--lend always: what is ciphered is read"),
        (args.engine != EngineName::Auto, "--engine: the kernel ciphers where it can"),
    ];
    match refused.into_iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(Failure::usage(format!("with tls:// there is no {what}"))),
        None => Ok(()),
    }
}

/// Options that messages cannot use.
fn refuse_by_messages(args: &Args, receives: bool) -> Result<(), Failure> {
    let refused = [
        (args.raw, "--raw: messages are no stream of bare bytes"),
        (args.streams > 1, "--streams: one port sends all messages, in order"),
        (args.preserve, "--preserve: messages carry the bytes only"),
        (args.threads.is_some(), "--threads: one port receives all messages, in order"),
        (args.nic.is_some(), "--nic: messages are received by copying"),
        (args.lend == Lend::Always, "--lend always: messages are sent from memory"),
        (args.engine == EngineName::MsgZerocopy, "--engine msg-zerocopy: there are auto and copy"),
        (args.engine == EngineName::UringZc, "--engine uring-zc: there are auto and copy"),
        (
            receives && args.direct,
            "--direct on the receiving side: messages lie anywhere in memory",
        ),
    ];
    match refused.into_iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(Failure::usage(format!("with rds:// there is no {what}"))),
        None => Ok(()),
    }
}
