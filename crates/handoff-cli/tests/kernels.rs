//! `docs/kernels.md` says what `handoff doctor` finds.

use std::process::Command;

use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../docs/kernels.md");
/// What kernels have as modules.
const MODULES: [&str; 3] = ["getbuf", "rds_tcp", "ublk_drv"];

/// The cells of the first table that has a row of these titles.
fn rows() -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| line.trim_matches('|').split('|').map(str::trim).collect();
    let table = DOCUMENT.lines().skip_while(|line| !line.starts_with("| mechanism"));
    table.take_while(|line| line.starts_with('|')).map(cells).collect()
}

mod native {
    use super::*;

    #[test]
    fn the_table_says_what_doctor_finds() {
        let in_guest = std::env::var_os("HANDOFF_GUEST").is_some();
        if in_guest {
            for module in MODULES {
                // A kernel may lack it, which the table says.
                let _ = Command::new("modprobe").args(["-q", module]).status();
            }
        }
        let output =
            Command::new(env!("CARGO_BIN_EXE_handoff")).args(["doctor", "--json"]).output();
        let found: Value = serde_json::from_slice(&output.expect("runs").stdout).expect("JSON");
        let found = found.as_array().expect("a list").iter().filter(|one| {
            let mechanism = one["mechanism"].as_str().expect("a name");
            !one["needs_kernel"].is_null() && !mechanism.contains(": ")
        });

        let table = rows();
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        // Other machines may have put modules away, and know this kernel by another name.
        let column = table[0].iter().position(|title| {
            let version = title.split(['(', ')']).nth(1);
            in_guest && version.is_some_and(|version| release.starts_with(&format!("{version}.")))
        });
        assert_eq!(column.is_some(), in_guest, "no column for {release}");
        let mut documented = table[2..].iter();
        for one in found {
            let row = documented.next().unwrap_or_else(|| panic!("no row for {one}"));
            assert_eq!(
                (row[0], row[1]),
                (one["mechanism"].as_str().unwrap(), one["needs_kernel"].as_str().unwrap())
            );
            if let Some(column) = column {
                assert_eq!(one["state"], row[column], "on {release}: {one}");
            }
        }
        assert_eq!(documented.next(), None, "no such mechanism");
    }
}
