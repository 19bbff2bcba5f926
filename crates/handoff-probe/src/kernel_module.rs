//! Why a kernel module is missing: not built, not installed, not loaded, or blocked.
//!
//! Reads `/sys/module`, `/lib/modules/RELEASE` and the modprobe.d directories, and loads nothing.

use std::fs;
use std::path::Path;

use super::answer::Answer;

/// Where modprobe reads its configuration, see modprobe.d(5).
const CONFIGURATION: &[&str] = &[
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
];

/// The state of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// In the running kernel.
    Present,
    /// On disk, and would be loaded on demand.
    Installed,
    /// On disk, but this rule blocks it.
    KeptOut(String),
    /// Not on disk.
    Absent,
    /// This kernel has no loadable modules; only a trial shows what is built in.
    NoModules,
}

/// Finds out the state of `module`; `alias` is the name by which the kernel asks for it.
pub(super) fn look(module: &str, alias: &str) -> Module {
    if Path::new("/sys/module").join(module).exists() {
        return Module::Present;
    }
    let release = rustix::system::uname();
    let tree = Path::new("/lib/modules").join(release.release().to_string_lossy().as_ref());
    let listed =
        |file: &str| fs::read_to_string(tree.join(file)).is_ok_and(|text| lists(&text, module));
    if listed("modules.builtin") {
        return Module::Present;
    }
    if !Path::new("/proc/modules").exists() {
        return Module::NoModules;
    }
    if !listed("modules.dep") {
        return Module::Absent;
    }
    if fs::read_to_string("/proc/sys/kernel/modules_disabled").is_ok_and(|text| text.trim() == "1")
    {
        return Module::KeptOut("sysctl kernel.modules_disabled=1".to_owned());
    }
    match kept_out(module, alias) {
        Some(rule) => Module::KeptOut(rule),
        None => Module::Installed,
    }
}

/// The answer for a mechanism whose module is not in the running kernel.
pub(super) fn missing(module: &str, standing: &Module, config: &str) -> Answer {
    match standing {
        Module::Installed => Answer::no(format!("module {module} is not loaded"))
            .remedy(format!("modprobe {module}")),
        Module::KeptOut(rule) => Answer::no(format!("module {module} is kept out by {rule}"))
            .remedy(format!("if the reason for that rule allows, lift it and modprobe {module}")),
        Module::Absent => Answer::no(format!("module {module} is not installed for this kernel"))
            .remedy(format!("install the kernel's further modules, or a kernel with {config}")),
        Module::Present | Module::NoModules => {
            Answer::no(format!("this kernel is built without {config}"))
                .remedy(format!("a kernel with {config}; `handoff lab` boots one"))
        }
    }
}

/// Whether the text of `modules.dep` or `modules.builtin` names the module.
fn lists(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        let stem = file.split(".ko").next().unwrap_or_default();
        file.contains(".ko") && same(stem, module)
    })
}

fn kept_out(module: &str, alias: &str) -> Option<String> {
    for directory in CONFIGURATION {
        let Ok(entries) = fs::read_dir(directory) else { continue };
        let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "conf")) {
            let text = fs::read_to_string(file).unwrap_or_default();
            if let Some(rule) = rule_against(&text, module, alias) {
                return Some(format!("{}: {rule}", file.display()));
            }
        }
    }
    None
}

/// The line of a modprobe.d file that keeps a module from being loaded on demand.
fn rule_against<'a>(text: &'a str, module: &str, alias: &str) -> Option<&'a str> {
    text.lines().map(str::trim).find(|line| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            // It stops only who asks by an alias.
            (Some("blacklist"), Some(name), _) => same(name, module) && !same(alias, module),
            (Some("install"), Some(name), Some(command)) => {
                let command = command.rsplit('/').next().unwrap_or_default();
                same(name, module) && matches!(command, "true" | "false" | ":")
            }
            (Some("alias"), Some(name), Some("off")) => same(name, alias),
            _ => false,
        }
    })
}

/// Module names treat `-` and `_` as the same.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .all(|(a, b)| a == b || (b"-_".contains(&a) && b"-_".contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_hardened_systems_are_found() {
        let find = |text| rule_against(text, "rds", "net-pf-21");
        assert_eq!(find("# x\n  install rds /bin/true\n"), Some("install rds /bin/true"));
        assert_eq!(find("install rds /usr/bin/false"), Some("install rds /usr/bin/false"));
        assert_eq!(find("blacklist rds"), Some("blacklist rds"));
        assert_eq!(find("alias net-pf-21 off"), Some("alias net-pf-21 off"));
        assert_eq!(find("# install rds /bin/true"), None);
        assert_eq!(find("install rds_tcp /bin/true"), None);
        let by_its_name = |text| rule_against(text, "rds_tcp", "rds_tcp");
        assert_eq!(by_its_name("blacklist rds_tcp"), None);
        assert_eq!(by_its_name("install rds_tcp /bin/true"), Some("install rds_tcp /bin/true"));
        assert_eq!(find("install rds /sbin/modprobe --ignore-install rds"), None);
        assert_eq!(find("alias net-pf-21 rds"), None);
        assert_eq!(rule_against("blacklist ublk-drv", "ublk_drv", ""), Some("blacklist ublk-drv"));
    }

    #[test]
    fn module_lists_are_read() {
        let dep = "kernel/net/rds/rds_tcp.ko.xz: kernel/net/rds/rds.ko.xz\n\
                   kernel/drivers/block/ublk_drv.ko:\n";
        assert!(lists(dep, "rds_tcp"));
        assert!(lists(dep, "ublk_drv"));
        assert!(!lists(dep, "rds"));
        assert!(lists("kernel/drivers/net/dummy.ko\n", "dummy"));
    }

    #[test]
    fn every_standing_has_a_remedy() {
        let rule = Module::KeptOut("/etc/modprobe.d/a.conf: install rds /bin/true".to_owned());
        for standing in [Module::Installed, rule, Module::Absent, Module::NoModules] {
            let answer = missing("rds", &standing, "CONFIG_RDS");
            assert!(answer.remedy.is_some(), "{standing:?}");
        }
    }
}
