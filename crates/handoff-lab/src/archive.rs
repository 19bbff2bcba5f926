//! The Debian archive: its address comes from this machine's apt configuration, its packages through
//! apt.
//!
//! Contracts:
//! - the address and the proxy settings are those from which the machine gets its own Debian packages;
//!   none is written here;
//! - everything is verified by apt with Debian's keyring, whatever the machine itself trusts;
//! - the machine's own package lists and packages are not touched.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, Trying};
use crate::progress::Progress;
use crate::tool::{self, StopFlag};

/// Debian's release keys, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// The machine's settings that also apply to the lab's downloads.
const INHERITED: [&str; 6] = [
    "Acquire::http::",
    "Acquire::https::",
    "Acquire::Retries ",
    "Acquire::Check-",
    "Acquire::ForceIPv4 ",
    "Acquire::ForceIPv6 ",
];

/// What becomes of the scripts of packages, which are most of the time that an installation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scripts {
    /// The packages are only extracted.
    Left,
    /// The packages are installed. It starts no service.
    Run,
}

/// Where packages come from.
#[derive(Debug)]
pub(crate) struct Archive {
    /// Base address, as it stands in a sources list.
    address: String,
    /// apt settings, one statement each.
    settings: Vec<String>,
}

impl Archive {
    /// The archive that this machine uses.
    pub(crate) fn of_this_machine(stop: &StopFlag) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            return Err(Error::NotPossible(format!(
                "{KEYRING} is missing; remedy: apt-get install debian-archive-keyring"
            )));
        }
        let mut targets = tool::command("apt-get");
        targets.args(["indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)"]);
        targets.arg("Created-By: Packages");
        let address = debian_address(&tool::run(targets, stop, |_| {})?).ok_or_else(|| {
            Error::NotPossible(
                "apt on this machine has no Debian archive with downloaded lists; \
                 remedy: apt-get update, on Debian or with a Debian source added"
                    .to_owned(),
            )
        })?;
        let mut dump = tool::command("apt-config");
        dump.arg("dump");
        let settings = inherited(&tool::run(dump, stop, |_| {})?);
        Ok(Self { address, settings })
    }

    /// One line of a sources list.
    pub(crate) fn source(&self, suite: &str) -> String {
        format!("deb [signed-by={KEYRING}] {} {suite} main", self.address)
    }

    /// Brings `packages` of `suites`, with all that they depend on, into the directory `target`. The first
    /// suite is the release.
    pub(crate) fn bootstrap(
        &self,
        suites: &[&str],
        packages: &[&str],
        scripts: Scripts,
        target: &Path,
        stop: &StopFlag,
        progress: &Progress,
    ) -> Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::NotPossible(
                "the lab's image is built by root; remedy: run this once as root, with \
                 HANDOFF_LAB_DIR set to a directory that you can read, and set it for yourself too"
                    .to_owned(),
            ));
        }
        let program = "mmdebstrap";
        let mut there = tool::command(program);
        there.arg("--version");
        tool::run(there, stop, |_| {})?;
        // Asked to end, it goes on; killed, it leaves its children and what it has mounted in the tree.
        let mut command = tool::enclosed(program);
        command.args(["--mode=root", "--format=directory"]);
        match scripts {
            // With /proc and /sys mounted in the tree, it could not be copied into an image.
            Scripts::Left => command.args(["--variant=extract", "--skip=chroot/mount"]),
            Scripts::Run => {
                command.args(["--variant=apt", "--aptopt=APT::Install-Recommends \"false\""])
            }
        };
        command.arg(format!("--include={}", packages.join(",")));
        command.args(self.settings.iter().map(|setting| format!("--aptopt={setting}")));
        command.arg(suites[0]).arg(target);
        command.args(suites.iter().map(|suite| self.source(suite)));
        tool::run(command, stop, |line| progress.step(line)).map(drop)
    }

    /// Makes a tree of a compiler and headers in `target`, with a mount point for each build's scratch space.
    pub(crate) fn compiler(
        &self,
        suites: &[&str],
        packages: &[&str],
        target: &Path,
        stop: &StopFlag,
        progress: &Progress,
    ) -> Result<()> {
        self.bootstrap(suites, packages, Scripts::Left, target, stop, progress)?;
        fs::create_dir(target.join("build")).trying("build directory")?;
        // A script of the package would make it, and we run no scripts.
        symlink("gawk", target.join("usr/bin/awk")).trying("awk")
    }

    /// The lists of one suite, fetched into `directory`.
    pub(crate) fn lists(&self, suite: &str, directory: &Path, stop: &StopFlag) -> Result<Lists> {
        let lists = Lists { directory: directory.to_owned() };
        for place in ["state/lists/partial", "cache/archives/partial", "sources"] {
            let path = directory.join(place);
            fs::create_dir_all(&path).trying(path.display())?;
        }
        let sources = directory.join("sources/lab.list");
        fs::write(&sources, self.source(suite) + "\n").trying(sources.display())?;
        fs::write(directory.join("status"), "").trying("package status")?;
        let mut update = lists.apt("apt-get");
        update.args(["-qq", "update"]);
        tool::run(update, stop, |_| {})?;
        Ok(lists)
    }
}

/// Package lists of one suite, apart from those of the machine.
#[derive(Debug)]
pub(crate) struct Lists {
    directory: PathBuf,
}

impl Lists {
    fn apt(&self, program: &str) -> std::process::Command {
        let mut command = tool::command(program);
        let within = |place: &str| self.directory.join(place).display().to_string();
        for (option, value) in [
            ("Dir::Etc::SourceList", "/dev/null".to_owned()),
            ("Dir::Etc::SourceParts", within("sources")),
            ("Dir::Etc::Preferences", "/dev/null".to_owned()),
            ("Dir::Etc::PreferencesParts", "/dev/null".to_owned()),
            ("Dir::State", within("state")),
            ("Dir::State::status", within("status")),
            ("Dir::Cache", within("cache")),
            // The directory is root's own; apt's own user could not read it.
            ("APT::Sandbox::User", "root".to_owned()),
            ("APT::Architecture", "amd64".to_owned()),
            ("APT::Architectures", "amd64".to_owned()),
            // The machine's own hooks after an update do not concern us.
            ("APT::Update::Post-Invoke-Success", String::new()),
            ("APT::Update::Post-Invoke", String::new()),
        ] {
            command.args(["-o", &format!("{option}={value}")]);
        }
        command
    }

    /// Names of the packages that match a regular expression (extended syntax).
    pub(crate) fn names(&self, pattern: &str, stop: &StopFlag) -> Result<Vec<String>> {
        let mut search = self.apt("apt-cache");
        search.args(["search", "--names-only", pattern]);
        let output = tool::run(search, stop, |_| {})?;
        Ok(output
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect())
    }

    /// Downloads `packages` and extracts them below `target`, without running their scripts.
    pub(crate) fn extract(
        &self,
        packages: &[String],
        target: &Path,
        stop: &StopFlag,
        progress: &Progress,
    ) -> Result<()> {
        let line = |line: &str| progress.step(line);
        let store = self.directory.join("packages");
        fs::create_dir_all(&store).trying(store.display())?;
        let mut download = self.apt("apt-get");
        download.arg("download").args(packages).current_dir(&store);
        tool::run(download, stop, line)?;
        for package in fs::read_dir(&store).trying(store.display())? {
            let package = package.trying(store.display())?.path();
            let mut extract = tool::command("dpkg-deb");
            extract.arg("--extract").arg(&package).arg(target);
            tool::run(extract, stop, line)?;
        }
        fs::remove_dir_all(&store).trying(store.display())
    }
}

/// The address of the main Debian archive among apt's index targets.
fn debian_address(targets: &str) -> Option<String> {
    targets
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            Some((fields.next()?, fields.next()?, fields.next()?))
        })
        // Updates, backports and security carry a suffix; security has an address of its own.
        .find(|(origin, codename, _)| *origin == "Debian" && !codename.contains('-'))
        .map(|(_, _, address)| address.trim_end_matches('/').to_owned())
}

/// The statements of `apt-config dump` that say how to fetch.
fn inherited(dump: &str) -> Vec<String> {
    dump.lines()
        .filter(|line| INHERITED.iter().any(|head| line.starts_with(head)))
        .filter(|line| !line.ends_with("\"\";"))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_found_among_others() {
        let targets = "\
Elsewhere sid http://elsewhere.test/apt/
Debian bookworm-security http://mirror.test/debian-security/
Debian bookworm http://mirror.test/debian/
Debian bookworm-updates http://mirror.test/debian/
";
        assert_eq!(debian_address(targets).as_deref(), Some("http://mirror.test/debian"));
        assert_eq!(debian_address("Ubuntu noble http://mirror.test/ubuntu/"), None);
    }

    #[test]
    fn proxies_are_inherited_and_the_rest_is_not() {
        let dump = "Acquire::http::Proxy \"http://proxy.test:3128\";\nAcquire::http \"\";\n\
                    Acquire::Check-Date \"false\";\nDPkg::Pre-Install-Pkgs:: \"x\";\n";
        assert_eq!(
            inherited(dump),
            ["Acquire::http::Proxy \"http://proxy.test:3128\";", "Acquire::Check-Date \"false\";"]
        );
    }
}
