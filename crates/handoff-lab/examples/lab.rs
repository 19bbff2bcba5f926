//! `handoff lab` as a program of its own, and how a program mounts it.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use handoff_lab::{StopFlag, command};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lab: command::Args,
}

fn main() -> ExitCode {
    let stop = StopFlag::default();
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("lab: signal handler: {error}");
            return ExitCode::FAILURE;
        }
    }
    match command::run(&Cli::parse().lab, &stop) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::from(error.code())
        }
    }
}
