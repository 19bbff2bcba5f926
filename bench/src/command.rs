//! What the `handoff` command mounts as `handoff bench`.

use clap::{Args, Subcommand};
use handoff_command::{Context, Failure};

use crate::{
    block::BlockArgs,
    http::HttpArgs,
    rds::{self, RdsArgs},
    recv::{self, RecvArgs},
    run::{self, Found},
    send::{self, SendArgs},
    splice::SpliceArgs,
    tls::TlsArgs,
};

/// Measures handoff beside its baselines, on this machine
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Which table
    #[command(subcommand)]
    pub bench: Bench,
}

/// The tables.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Sending from user memory: copying, MSG_ZEROCOPY, and io_uring zero copy
    Send(Box<SendArgs>),
    /// Receiving over one connection: by epoll, multishot and zero-copy receive
    Recv(Box<RecvArgs>),
    /// Passing a page on: by splice, and by lending it into a ring
    Splice(Box<SpliceArgs>),
    /// Reliable datagrams: by the kernel and by our own engine, beside framing over TCP
    Rds(Box<RdsArgs>),
    /// Serving block devices: by the loop in the kernel, by one in user space, and by copying
    Block(Box<BlockArgs>),
    /// Serving files and bytes over HTTP, beside hyper and nginx
    Http(Box<HttpArgs>),
    /// Ciphered connections: by the kernel's TLS and by rustls, beside socat, nginx and openssl
    Tls(Box<TlsArgs>),
}

/// Runs one bench, and prints what it has found.
///
/// # Errors
///
/// See [`Failure`].
pub fn run(args: &BenchArgs, context: &Context) -> Result<(), Failure> {
    if let Bench::Recv(args) = &args.bench
        && let Some(target) = &args.send_to
    {
        return recv::send_to::run(target, context);
    }
    measure(args, context)?.print(context)
}

/// Runs one bench.
///
/// # Errors
///
/// See [`Failure`].
pub fn measure(args: &BenchArgs, context: &Context) -> Result<Found, Failure> {
    match &args.bench {
        Bench::Send(args) => send::run(args, context),
        Bench::Recv(args) => recv::run(args, context),
        Bench::Splice(args) => run::run(&**args, context),
        Bench::Rds(args) => rds::run(args, context),
        Bench::Block(args) => run::run(&**args, context),
        Bench::Http(args) => run::run(&**args, context),
        Bench::Tls(args) => run::run(&**args, context),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        bench: BenchArgs,
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_full_command_line_is_understood() {
        let line = "x send --sizes 1k,4k --proto tcp --working-set 1g --only zc --rounds 3 \
                    --time 0.5 --cpu 1 --peer a=b --peer-regex a=(x) --peer-unit a=MiB";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Bench::Send(args) = cli.bench.bench else { panic!("another bench") };
        assert_eq!(args.sizes, [1_024, 4_096]);
        assert_eq!(args.working_set, 1 << 30);
        assert_eq!(args.programs.peer, [("a".to_owned(), "b".to_owned())]);
    }

    #[test]
    fn quick_excludes_the_options_that_it_decides() {
        let line = "x send --quick --rounds 3";
        assert!(Cli::try_parse_from(line.split_whitespace()).is_err());
    }
}
