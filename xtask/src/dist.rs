//! `cargo xtask dist`: man pages and completions from the definition of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;

/// Arguments of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Directory that receives man1/, bash/, zsh/ and fish/
    #[arg(long, default_value = "target/dist")]
    out: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    for (name, page) in handoff_cli::man::pages() {
        write(&args.out.join("man1").join(format!("{name}.1")), &page)?;
    }
    for (shell, directory, file) in [
        (Shell::Bash, "bash", "handoff"),
        (Shell::Zsh, "zsh", "_handoff"),
        (Shell::Fish, "fish", "handoff.fish"),
    ] {
        let script = handoff_cli::completions::script(shell);
        write(&args.out.join(directory).join(file), &script)?;
    }
    println!("man pages and completions are in {}", args.out.display());
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}
