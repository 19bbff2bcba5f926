//! The program `handoff-workshop`. All of it is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    handoff_workshop::main()
}
