//! Decides where tests run, on this machine or in guests, by the needs that their modules name.

use super::Tier;

/// Programs, or parts of them, whose tests need nothing that a kernel may lack, but test what kernels do: sending,
/// receiving, waiting. They run on this machine among the hermetic ones, and on the lab's kernels.
const OF_KERNELS: [&str; 31] = [
    "allocations",
    "frozen",
    "handoff_testbed::topology",
    "kernels",
    "library::buffer_pool",
    "library::connections",
    "library::crowd",
    "library::deadlines",
    "library::descriptor",
    "library::files",
    "library::lent_bytes",
    "library::memlock",
    "library::no_ring",
    "library::order",
    "library::overflow",
    "library::own_loop",
    "library::peers",
    "library::receive",
    "library::receive_into",
    "library::registration",
    "library::segments",
    "library::send",
    "library::stages",
    "library::time_outs",
    "library::tokio_runtime",
    "library::unix",
    "library::veth",
    "library::wakers",
    "loans",
    "probe",
    "probe_memlock",
];

/// Tests of the command and of HTTP that depend on what an old kernel lacks.
const OF_OLD_KERNELS: &str = "cp::peers::,cp::refused::needs_root_a_user,http::answers::,http::bodies::,\
                              http::lifecycle::,http::requests::,serve::ends::";

/// Of the tests of kernels, those that no kernel answers in its own way: they are about our tasks, our limits and many
/// connections. In old kernels they run among the long forms.
const ALIKE_IN_OLD_KERNELS: [&str; 9] = [
    "handoff_testbed::",
    "http::lifecycle::",
    "library::crowd::",
    "library::lent_bytes::",
    "library::peers::",
    "library::tokio_runtime::page::",
    "library::tokio_runtime::sockets::",
    "library::tokio_runtime::threads::",
    "library::veth::",
];

/// Of the programs of kernels, those that use what the newest kernel has and this machine's may lack: receiving into
/// registered memory, virtio-net, netem. The others run there among the long forms.
const OF_NEW_KERNELS: [&str; 10] = [
    "allocations",
    "handoff_testbed::topology",
    "kernels",
    "library::files",
    "library::receive_into",
    "library::registration",
    "library::send",
    "library::stages",
    "loans",
    "probe",
];

/// On 7.3 run the tests that need it, which are in modules of this name, and one of whether it boots.
const OF_LINUX_73: &str =
    "kernels::,bench::linux73::,library::rx_queue::linux73::,cp::nic::linux73::";

/// Tests that need guests in which no test has loaded the kernel's RDS over TCP: it takes the port of our RDS engine
/// in every namespace, and unloading it can hang.
const WITHOUT_RDS: [&str; 4] = [
    "own_engine::native::",
    "probe::guest::a_question_about_rds",
    "rds_command::guest::seed::by_our_own_engine",
    "rds_command::native::",
];

/// Tests that show nothing in a guest that this machine, or another test in the guest, does not show.
const ONLY_HERE: [&str; 13] = [
    "bench::native::programs::",
    "cp::native::crowd::",
    "own_engine::native::hardship::",
    "published::native::rds",
    "published::native::recv",
    "published::native::send",
    "published::native::splice",
    "rds_command::native::crowd::",
    "rds_command::native::own::",
    "relay::native::crowd::",
    "sandbox::native::",
    "serve::native::crowd::",
    "tour::native::",
];

/// Tests that take a minute or more to show for another table, or for more rows, what a shorter one shows: they are among
/// the long forms.
const LONG: [&str; 11] = [
    "bench::guest::other_host::several_connections",
    "bench::guest::recv::several_connections",
    "bench::native::lab::block::",
    "bench::native::lab::http::",
    "bench::native::lab::rds::",
    "bench::native::lab::recv::",
    "bench::native::lab::splice::",
    "blk::guest::power::long_form",
    "blk::guest::records::long_form",
    "cp::nic::guest::what_lies_at_odd_places",
    "tour::guest::packets_reach_an_nvme_disk",
];

/// As names that are left out.
fn without<'a>(names: impl IntoIterator<Item = &'a &'static str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("-{name}")).collect();
    names.join(",")
}

/// The stages of these tiers, in the form of `cargo xtask run-tests`; the longest first.
pub(super) fn of(tiers: &[Tier], soak: bool) -> Vec<String> {
    let mut stages = Vec::new();
    let long_forms: &[&str] = if soak { &[] } else { &LONG };
    if tiers.contains(&Tier::Guest) {
        let all_of = |names: &[&str]| {
            names.iter().map(|name| format!("{name}::")).collect::<Vec<_>>().join(",")
        };
        let (alike, new): (&[&str], &[&str]) = match soak {
            true => (&[], &OF_KERNELS),
            false => (&ALIKE_IN_OLD_KERNELS, &OF_NEW_KERNELS),
        };
        let mut old = format!("{},{OF_OLD_KERNELS}", all_of(&OF_KERNELS));
        alike.iter().for_each(|name| old += &format!(",-{name}"));
        let elsewhere = WITHOUT_RDS.iter().chain(&ONLY_HERE).chain(long_forms);
        stages.push(format!("7.2:native,guest:{}", without(elsewhere)));
        stages.push(format!("7.2:native,guest:{},{}", WITHOUT_RDS.join(","), without(&ONLY_HERE)));
        stages.push(format!("bookworm:hermetic,native:{old}"));
        stages.push(format!("7.2:hermetic:{}", all_of(new)));
        stages.push("7.3:native,guest,linux73:".to_owned() + OF_LINUX_73);
    }
    if tiers.contains(&Tier::Native) {
        stages.insert(
            0,
            match soak {
                true => "host:native,lab,soak".to_owned(),
                false => format!("host:native,lab:{}", without(&LONG)),
            },
        );
    }
    if tiers.contains(&Tier::Hermetic) {
        stages.insert(0, "host:hermetic".to_owned());
    }
    stages
}

/// What the guests of these tiers boot, as options of `handoff lab image`.
pub(super) fn images(tiers: &[Tier], soak: bool) -> Vec<&'static str> {
    let mut images = Vec::new();
    if tiers.contains(&Tier::Native) || tiers.contains(&Tier::Guest) {
        images.extend(["--kernel=7.2", "--kernel=bookworm"]);
    }
    if tiers.contains(&Tier::Guest) {
        images.push("--kernel=7.3");
    }
    if tiers.contains(&Tier::Native) && soak {
        images.push("--userland=full");
    }
    images
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::OF_LINUX_73;

    /// Files below the directory in which a module of tests of Linux 7.3 begins.
    fn beginning_modules(directory: &Path) -> usize {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let of_path = |path: &Path| match fs::read_to_string(path) {
            Ok(text) => usize::from(text.lines().any(|line| line.starts_with("mod linux73"))),
            Err(_) => beginning_modules(path),
        };
        entries.map(|entry| of_path(&entry.path())).sum()
    }

    #[test]
    fn every_test_of_linux_7_3_runs_there() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let tests = fs::read_dir(crates).expect("is there").flatten();
        let there: usize = tests.map(|entry| beginning_modules(&entry.path().join("tests"))).sum();
        assert_eq!(OF_LINUX_73.matches("::linux73::").count(), there);
    }
}
