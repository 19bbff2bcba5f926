//! The `handoff` command. All of it is in the library, so that `xtask` sees the same definition.

use std::process::ExitCode;

fn main() -> ExitCode {
    handoff_cli::main()
}
