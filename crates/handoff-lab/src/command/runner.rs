//! `handoff lab runner`: a target runner for Cargo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::guest_options::GuestOptions;
use super::run::{pass_on, run_once};
use crate::error::Result;
use crate::machine::Put;
use crate::tool::StopFlag;

/// The arguments of `handoff lab runner`.
#[derive(Debug, clap::Args)]
pub struct RunnerArgs {
    /// The guest.
    #[command(flatten)]
    pub guest: GuestOptions,
    /// The program that Cargo has built, and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required = true,
        value_name = "PROGRAM"
    )]
    pub command: Vec<OsString>,
}

/// One boot for one program: Cargo starts this when the lab is its target runner.
pub(super) fn run(args: &RunnerArgs, stop: &StopFlag) -> Result<u8> {
    let mut prepared = args.guest.prepare(stop)?;
    let path = PathBuf::from(&args.command[0]);
    let source = prepared.stripped.of(&path);
    let target = Path::new("/opt/handoff/tests").join(path.file_name().unwrap_or_default());
    let mut words = vec![target.clone().into_os_string().into_vec()];
    words.extend(args.command[1..].iter().map(|word| word.clone().into_vec()));
    prepared.machine.puts.push(Put { source, target });
    run_once(&prepared.machine, words, None, stop, pass_on)
}
