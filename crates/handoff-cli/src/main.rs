//! The `handoff` command. All of it is in the library, so that tests and fuzzing reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    handoff_cli::main()
}
