//! `handoff meter` as a program of its own, and how a program mounts it.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use handoff_meter::command::{self, Context, MeterArgs, MeterError};
use signal_hook::consts::{SIGINT, SIGTERM};

#[derive(Parser)]
struct Cli {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    meter: MeterArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("meter: signal handler: {error}");
            return ExitCode::FAILURE;
        }
    }
    let mut out = std::io::stdout().lock();
    let mut context = Context { json: cli.json, stop: &stop, out: &mut out };
    let Err(error) = command::run(&cli.meter, &mut context) else { return ExitCode::SUCCESS };
    let code = match error {
        MeterError::Usage(_) => 2,
        MeterError::NotPossible(_) => 3,
        MeterError::Ended(code) => code,
        MeterError::Read(_) | MeterError::AboveLimit(_) | MeterError::Output(_) => 1,
    };
    if !matches!(error, MeterError::Ended(_)) {
        eprintln!("meter: {error}");
    }
    ExitCode::from(code)
}
