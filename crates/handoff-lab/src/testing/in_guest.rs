//! Runs tests in a guest: many in one boot, each as a process of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{Plan, Program, Verdict, libtest, puts_of};
use crate::error::Result;
use crate::guest::Guest;
use crate::job::{self, Ending, Job, Outcome};
use crate::kernel::KernelChoice;
use crate::machine::{Machine, Put};
use crate::strip::Stripped;
use crate::tool::StopFlag;

/// Where test programs are in the guest.
const DIRECTORY: &str = "/opt/handoff/tests";
/// What tests and benches take at a time.
const VIRTIO_NET: u8 = 2;

pub(super) fn run(
    selected: &[(&Program, Vec<&str>)],
    kernel: &KernelChoice,
    plan: &Plan,
    stop: &StopFlag,
    record: &mut impl FnMut(&str, Verdict, Option<Duration>),
) -> Result<()> {
    if selected.is_empty() {
        return Ok(());
    }
    let stripped = Stripped::new()?;
    let virtio_net = plan.machine.virtio_net.max(VIRTIO_NET);
    let mut machine = Machine { kernel: kernel.clone(), virtio_net, ..plan.machine.clone() };
    for (program, _) in selected {
        let target = Path::new(DIRECTORY).join(&program.name);
        machine.puts.push(Put { source: stripped.of(&program.path), target });
    }
    let companions: Vec<_> = puts_of(&plan.companions)
        .into_iter()
        .map(|put| Put { source: stripped.of(&put.source), ..put })
        .collect();
    machine.puts.extend(companions);

    let mut guest = None;
    for (program, tests) in selected {
        for test in tests {
            let mut running = match guest.take() {
                Some(running) => running,
                None => Guest::boot(&machine, stop)?,
            };
            let begin = Instant::now();
            let (verdict, alive) = run_test(&mut running, program, test, plan.timeout)?;
            let took = begin.elapsed();
            if alive {
                guest = Some(running);
            }
            record(&format!("{}::{test}", program.name), verdict, Some(took));
        }
    }
    if let Some(fault) = guest.map(Guest::power_off).transpose()?.flatten() {
        let reason = format!("the kernel reported while switching off:\n{fault}");
        record("lab::power_off", Verdict::Failed { reason }, None);
    }
    Ok(())
}

/// The verdict, and whether the guest is fit for the next test.
fn run_test(
    guest: &mut Guest,
    program: &Program,
    test: &str,
    timeout: Duration,
) -> Result<(Verdict, bool)> {
    let path = format!("{DIRECTORY}/{}", program.name);
    let words = [path.as_str()].into_iter().chain(libtest::arguments(&[test]));
    let job = Job { timeout: Some(timeout), ..Job::new(words) };
    let (Outcome { ending, fault }, output, errors) = guest.run_captured(&job)?;
    let printed =
        format!("{}\n{}", String::from_utf8_lossy(&output), String::from_utf8_lossy(&errors));
    let (ended, alive) = match &ending {
        Ending::Exited(code) => (format!("ended with exit code {code}"), true),
        Ending::Killed(signal) => (format!("was killed by signal {signal}"), true),
        Ending::NotStarted(reason) => (format!("could not be started: {reason}"), true),
        Ending::TimedOut(tasks) => {
            (format!("was ended after {} s:\n{}", timeout.as_secs(), job::told(tasks)), true)
        }
        Ending::Hung(hang) => (format!("hung, with the guest:\n{hang}"), false),
        Ending::GuestDied(lines) => (format!("lost its guest:\n{}", lines.join("\n")), false),
    };
    let verdict = match fault {
        Some(fault) => {
            // Whatever the test says: the kernel says otherwise. A kernel that has stumbled once
            // is not trusted with the next test.
            let mut reason = format!("the kernel reported: {}\n{fault}", fault.headline);
            if matches!(ending, Ending::TimedOut(_) | Ending::Hung(_)) {
                reason += &format!("\nthe program {ended}");
            }
            return Ok((Verdict::Failed { reason }, false));
        }
        None => libtest::verdicts(&[test], &printed, &ended).remove(0),
    };
    Ok((verdict, alive))
}
