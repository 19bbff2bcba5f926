//! Runs tests in guests: many in one boot, each as a process of its own.

use std::path::Path;
use std::time::Instant;

use handoff_lab::{
    Disk, DiskContent, Ending, Guest, Job, KernelChoice, Machine, Put, Result, StopFlag, Stripped,
    where_tasks_stood,
};

use crate::libtest;
use crate::plan::Plan;
use crate::report::Ran;
use crate::report::Verdict;
use crate::selection::Program;

/// Where the guest has the test programs.
const DIRECTORY: &str = "/opt/handoff/tests";
/// How many pairs tests and benches use at a time.
const VIRTIO_NET: u8 = 2;
/// Bytes of an NVMe disk that tests may overwrite, `/dev/disk/by-id/nvme-tests`. Only what is written takes
/// memory.
const NVME: u64 = 1536 << 20;

/// What the guests of all stages share.
#[derive(Debug)]
pub(super) struct Guests<'a> {
    plan: &'a Plan,
    stripped: Stripped,
}

impl<'a> Guests<'a> {
    pub(super) fn new(plan: &'a Plan) -> Result<Self> {
        Ok(Self { plan, stripped: Stripped::new()? })
    }

    /// A guest with these test programs, and with all other programs at the paths that tests expect and
    /// on the `PATH`.
    pub(super) fn boot(
        &self,
        programs: &[&Program],
        kernel: &KernelChoice,
        stop: &StopFlag,
    ) -> Result<Guest> {
        let Plan { machine, companions, .. } = self.plan;
        let virtio_net = machine.virtio_net.max(VIRTIO_NET);
        let mut machine = Machine { kernel: kernel.clone(), virtio_net, ..machine.clone() };
        machine.nvme.push(Disk { name: "tests".into(), content: DiskContent::Scratch(NVME) });
        for program in programs {
            let target = Path::new(DIRECTORY).join(&program.name);
            machine.puts.push(Put { source: self.stripped.of(&program.path), target });
        }
        for path in companions {
            let source = self.stripped.of(path);
            machine.puts.push(Put { source, target: path.clone() });
            machine.puts.push(self.stripped.on_path(path, path.file_name().unwrap_or_default()));
        }
        Guest::boot(&machine, stop)
    }

    /// The result of a test, and whether the guest is fit for the next.
    pub(super) fn run_test(
        &self,
        guest: &mut Guest,
        program: &Program,
        test: &str,
    ) -> Result<(Ran, bool)> {
        let timeout = self.plan.timeout;
        let path = format!("{DIRECTORY}/{}", program.name);
        let words = [path.as_str()].into_iter().chain(libtest::arguments(test));
        let job = Job { timeout: Some(timeout), tracks: true, ..Job::new(words) };
        let (begin, before) = (Instant::now(), guest.processor_time());
        let (outcome, output, errors) = guest.run_captured(&job)?;
        let took = begin.elapsed();
        let computed = guest.processor_time().saturating_sub(before);
        let (output, errors) = (String::from_utf8_lossy(&output), String::from_utf8_lossy(&errors));
        let printed = format!("{output}\n{errors}");
        let mut tasks = String::new();
        let well = outcome.ending == Ending::Exited(0);
        let (ended, mut alive) = match outcome.ending {
            Ending::Exited(code) => (format!("ended with exit code {code}"), true),
            Ending::Killed(signal) => (format!("was killed by signal {signal}"), true),
            Ending::NotStarted(reason) => (format!("could not be started: {reason}"), true),
            Ending::TimedOut(at) => {
                tasks = at;
                let told = where_tasks_stood(&tasks);
                (format!("was ended after {} s:\n{told}", timeout.as_secs()), true)
            }
            Ending::Hung(hang) => (format!("hung, with the guest:\n{hang}"), false),
            Ending::GuestDied(lines) => (format!("lost its guest:\n{}", lines.join("\n")), false),
        };
        let verdict = if let Some(fault) = outcome.fault {
            // Whatever the test says, the kernel says otherwise; and a kernel with a fault is not
            // trusted with the next test.
            let mut reason = format!("the kernel reported: {}\n{fault}", fault.headline);
            if !alive || !tasks.is_empty() {
                reason += &format!("\nthe program {ended}");
            }
            alive = false;
            Verdict::Failed { reason }
        } else {
            let verdict = libtest::verdict(test, &printed, well, &ended);
            if outcome.left.is_empty() || matches!(verdict, Verdict::Failed { .. }) {
                verdict
            } else {
                Verdict::Failed { reason: format!("it left behind:\n{}", outcome.left) }
            }
        };
        // Leftovers of one test must not disturb another.
        alive &= outcome.left.is_empty();
        let details = vec![
            ("all that it printed", printed),
            ("where the guest's tasks stood", tasks),
            ("what it left behind", outcome.left),
            ("what the guest's kernel printed meanwhile", outcome.console.join("\n")),
        ];
        Ok((Ran { verdict, took, computed, ran: true, details }, alive))
    }
}
