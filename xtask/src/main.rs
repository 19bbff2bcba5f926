//! Maintenance of the tree: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod demo;
mod picture;
mod published;
mod run;
mod sandbox;
mod test;

/// Maintenance of the handoff tree.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show what the command does on this machine
    Demo(demo::Args),
    /// Draw the pictures of the pages
    Picture,
    /// Check what others build on: licences, known faults, the oldest compiler, the public API
    Published(published::Args),
    /// Run test programs on this machine and in guests, and count the results
    RunTests(Box<test_runner::command::Args>),
    /// Run a command so that nothing of it is left on this machine
    Sandbox(sandbox::Args),
    /// Run the checks and the tests, and count them
    Test(test::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().task {
        Task::Demo(args) => demo::run(&args),
        Task::Picture => picture::run(),
        Task::Published(args) => published::run(&args),
        Task::RunTests(args) => run_tests(&args),
        Task::Sandbox(args) => sandbox::task(&args),
        Task::Test(args) => test::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_tests(args: &test_runner::command::Args) -> Result<ExitCode, String> {
    let stop = run::stop_flag().map_err(|error| format!("signal handlers: {error}"))?;
    Ok(ExitCode::from(test_runner::command::run(args, &stop).unwrap_or_else(|error| {
        eprintln!("xtask: {error}");
        error.code()
    })))
}
