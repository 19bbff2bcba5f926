//! Where another program of Handoff is: beside this one, or else on `PATH`.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The product.
pub const PRODUCT: &str = "handoff";
/// Benches, the lab, their reports: what measures and tests the product.
pub const WORKSHOP: &str = "handoff-workshop";

/// The program of this name, if it is installed.
pub fn find(name: &str) -> Option<PathBuf> {
    let this = env::current_exe().ok();
    let beside = this.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = beside.into_iter().chain(env::split_paths(&path));
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_beside_this_one_and_on_the_path() {
        let this = env::current_exe().expect("a path");
        let name = this.file_name().expect("a file").to_str().expect("UTF-8");
        assert_eq!(find(name), Some(this.clone()));
        assert!(find("sh").is_some_and(|found| found.ends_with("sh")));
        assert_eq!(find("no-such-program"), None);
        assert_eq!(find("."), None, "a directory");
    }
}
