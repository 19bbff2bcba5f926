//! Where the receiving thread runs, relative to the processor on which a queue's packets arrive.
//!
//! Contracts:
//!
//! 1. Only the receiving thread moves: before each slot it looks up where packets arrive, which must be one
//!    processor.
//!
//! Kernel interface: the netdev family for a queue's interrupt or thread, `/proc/irq/N`, and
//! `/sys/devices/system/cpu/cpuN/topology`.

use std::{fs, ops::RangeInclusive};

use clap::ValueEnum;
use handoff_nic::Nic;
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity},
};

use super::{far::Network, queues::OwnQueue};
use crate::processor::Pinned;

/// Where the receiving thread runs, relative to the processor of the software interrupts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// On the same one
    Same,
    /// On another thread of the same core
    Sibling,
    /// On another core
    Other,
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Sibling => "sibling",
            Self::Other => "other",
        }
    }

    /// The processor at this place; the last one, if there are several.
    fn beside(self, arrives: usize, usable: &[usize]) -> Result<usize, String> {
        let core = core(arrives)?;
        let fits = |processor: usize| match self {
            Self::Same => processor == arrives,
            Self::Sibling => processor != arrives && core.contains(&processor),
            Self::Other => !core.contains(&processor),
        };
        usable.iter().copied().rfind(|&processor| fits(processor)).ok_or_else(|| match self {
            Self::Same => format!("packets arrive on processor {arrives}, which we may not use"),
            Self::Sibling => {
                format!("packets arrive on processor {arrives}, whose core has no other to be used")
            }
            Self::Other => {
                format!("packets arrive on processor {arrives}, and there is no other core")
            }
        })
    }
}

/// A queue that a thread is placed by.
pub(crate) struct Placed {
    pub(crate) placement: Placement,
    pub(crate) device: String,
    pub(crate) queue: u32,
}

impl Placed {
    /// Takes the queue that connections of this network come by: their own, or the shared one.
    ///
    /// # Errors
    ///
    /// One line that says why there is no such place.
    pub(crate) fn new(
        network: &impl Network,
        own: Option<&OwnQueue<'_>>,
        placement: Placement,
    ) -> Result<Self, String> {
        let queue = network.arrives_by(own)?;
        let placed = Self { placement, device: network.device().to_owned(), queue };
        placed.go().map(|_there| placed)
    }

    /// Pins the calling thread to the place until the returned guard is dropped.
    ///
    /// # Errors
    ///
    /// One line that says why there is no such place.
    pub(crate) fn go(&self) -> Result<Pinned, String> {
        let usable = sched_getaffinity(None)
            .map_err(|errno| format!("the usable processors are unknown: {errno}"))?;
        let arrives = arrives(&self.device, self.queue)?;
        Pinned::to(Some(self.placement.beside(arrives, &of_set(&usable))?))
    }
}

/// The processor on which a queue's packets arrive.
fn arrives(device: &str, queue: u32) -> Result<usize, String> {
    let nic = Nic::look(device).map_err(|error| error.to_string())?;
    let found = nic.queues.iter().flatten().find(|it| it.id == queue);
    let (processors, who) = match found.map(|it| (it.irq, it.thread)) {
        Some((_, Some(thread))) => (of_thread(thread)?, format!("its thread, {thread},")),
        Some((Some(irq), None)) => (of_interrupt(irq)?, format!("its interrupt, {irq},")),
        _ => {
            let cause = "the driver tells no interrupt of it, nor is there a thread";
            return Err(format!("nobody knows where packets of queue {queue} arrive: {cause}"));
        }
    };
    match processors[..] {
        [processor] => Ok(processor),
        _ => Err(format!(
            "packets of queue {queue} arrive on no processor of their own: {who} may be on any of \
             {processors:?}; choose one (/proc/irq/N/smp_affinity_list, or taskset -p)"
        )),
    }
}

fn of_thread(thread: u32) -> Result<Vec<usize>, String> {
    let set = Pid::from_raw(thread as i32).map(|thread| sched_getaffinity(Some(thread)));
    set.and_then(Result::ok)
        .map(|set| of_set(&set))
        .ok_or_else(|| format!("the processors of thread {thread} are not known"))
}

/// The processors of an interrupt: the effective ones, if the kernel says so.
fn of_interrupt(irq: u32) -> Result<Vec<usize>, String> {
    let list = |name: &str| fs::read_to_string(format!("/proc/irq/{irq}/{name}_list"));
    let text = list("effective_affinity").or_else(|_| list("smp_affinity"));
    let text = text.map_err(|error| format!("the processors of interrupt {irq}: {error}"))?;
    parse(&text).ok_or_else(|| format!("the processors of interrupt {irq} are not known"))
}

/// All processors of a processor's core.
fn core(processor: usize) -> Result<Vec<usize>, String> {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    parse(&text).ok_or_else(|| format!("{path} is no list of processors"))
}

fn of_set(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// A list as the kernel writes it, such as `0,4-6`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let range = |text: &str| -> Option<RangeInclusive<usize>> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_understood() {
        assert_eq!(parse("0,4-6\n"), Some(vec![0, 4, 5, 6]));
        assert_eq!(parse("3\n"), Some(vec![3]));
        assert_eq!((parse("\n"), parse("1,x")), (None, None));
    }

    #[test]
    fn places_are_told_apart_by_cores() {
        let Ok(core) = core(0) else { handoff_testbed::skip!("cores are not told") };
        let far = core.iter().max().map_or(1, |last| last + 1);
        let usable: Vec<usize> = (0..=far).collect();
        assert_eq!(Placement::Same.beside(0, &usable), Ok(0));
        assert_eq!(Placement::Other.beside(0, &usable), Ok(far));
        let sibling = Placement::Sibling.beside(0, &usable);
        assert_eq!(sibling.ok(), core.iter().copied().filter(|&it| it != 0).max());
        assert!(Placement::Other.beside(0, &core).unwrap_err().contains("no other core"));
        assert!(Placement::Same.beside(0, &[far]).unwrap_err().contains("may not use"));
    }

    #[test]
    fn interrupts_of_this_machine_have_their_processors() {
        let numbers = fs::read_dir("/proc/irq").into_iter().flatten().flatten();
        let numbers: Vec<u32> = numbers
            .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
            .collect();
        if numbers.is_empty() {
            handoff_testbed::skip!("interrupts are not told");
        }
        let found = numbers.into_iter().filter_map(|irq| of_interrupt(irq).ok());
        assert!(found.flatten().any(|processor| processor < CpuSet::MAX_CPU));
        assert!(of_interrupt(u32::MAX).is_err());
    }

    #[test]
    fn a_device_without_interrupts_places_nobody() {
        let placed = Placed { placement: Placement::Same, device: "lo".into(), queue: 0 };
        let why = placed.go().unwrap_err();
        assert!(why.contains("nobody knows where packets of queue 0 arrive"), "{why}");
    }
}
