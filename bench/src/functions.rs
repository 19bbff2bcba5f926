//! Where a row's work goes, by function: how much of it is the cipher, and what the rest is.
//!
//! Contracts:
//!
//! 1. The samples are of those threads that the row's costs are of, in a slot of its own.
//! 2. A library without names of its functions counts as one function. So all of libcrypto is cipher, which makes the
//!    rest of a program that uses it look smaller than it is.
//! 3. A row whose functions cannot be told has none, and the reason is given.
//!
//! Kernel interface: [`samples`](crate::samples); `/proc/kallsyms`, `/proc/PID/maps`.

mod names;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use handoff_sys::hangup;
use rustix::thread::{CpuSet, sched_getaffinity};

use self::names::Names;
use crate::{
    measure::{Engine, Slot, Subject},
    report::{FunctionShare, Row},
    samples::{Sample, Samples, Whose},
};

/// Some thousand samples.
const SLOT: Duration = Duration::from_millis(300);
/// The most functions of a row that are kept.
const MOST: usize = 24;

/// Parts of the names of functions that cipher: of the kernel's, of aws-lc's and of OpenSSL's.
const CIPHERS: [&str; 9] = [
    "aes_gcm_",
    "aesni_",
    "aes_hw_",
    "aes_ctr",
    "gcm_",
    "ghash",
    "chacha20",
    "poly1305",
    "libcrypto",
];

/// Whether a function is a cipher's.
pub(crate) fn ciphers(name: &str) -> bool {
    CIPHERS.iter().any(|part| name.contains(part))
}

/// Fills in the rows of `subjects`, in order, and says on stderr why some have no functions.
pub(crate) fn attest(subjects: &[Subject<'_>], rows: &mut [Row], stop: &AtomicBool) {
    for (subject, row) in subjects.iter().zip(rows) {
        if row.skipped.is_some() || stop.load(Ordering::Relaxed) {
            continue;
        }
        match (subject.make)().and_then(|mut engine| of(&mut *engine, stop)) {
            Ok(functions) if functions.is_empty() => {}
            Ok(functions) => {
                let cipher = functions.iter().filter(|it| ciphers(&it.function));
                row.cipher_share = Some(cipher.map(|it| it.share).sum());
                row.functions = functions;
                row.functions.truncate(MOST);
            }
            Err(reason) => {
                let name = &row.name;
                hangup::say(format_args!("handoff: no functions beside the row {name}: {reason}"));
            }
        }
    }
}

/// The functions in one slot, most first.
fn of(engine: &mut dyn Engine, stop: &AtomicBool) -> Result<Vec<FunctionShare>, String> {
    engine.run(&Slot::new(SLOT / 20, stop))?;
    // The calling thread is kept on one, and so are the programs that it started.
    let own = sched_getaffinity(None).map_err(|errno| format!("its processors: {errno}"))?;
    let begun = (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu));
    let begun: Result<Vec<_>, _> = begun.map(|cpu| Samples::begin(Whose::Processor(cpu))).collect();
    let begun = begun.map_err(|error| format!("perf_event_open: {error}"))?;
    engine.run(&Slot::new(SLOT, stop))?;
    let taken: Vec<Sample> = begun.iter().flat_map(Samples::taken).collect();
    drop(begun);
    let threads: HashSet<u32> = engine.counted_threads().into_iter().collect();
    let mut names = Names::new()?;
    let mut counts: HashMap<String, u64> = HashMap::new();
    for sample in taken.iter().filter(|sample| threads.contains(&sample.thread)) {
        *counts.entry(names.of(sample)).or_default() += 1;
    }
    let total: u64 = counts.values().sum();
    let share = |(function, count)| FunctionShare { function, share: count as f64 / total as f64 };
    let mut functions: Vec<_> = counts.into_iter().map(share).collect();
    functions.sort_by(|one, other| {
        other.share.total_cmp(&one.share).then_with(|| one.function.cmp(&other.function))
    });
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphers_of_all_libraries_are_told_by_their_names() {
        for name in [
            "aes_gcm_enc_update_vaes_avx2",
            "aws_lc_0_39_0_aes_gcm_encrypt_avx512",
            "aws_lc_0_39_0_aesni_gcm_encrypt",
            "libcrypto.so.3",
        ] {
            assert!(ciphers(name), "{name}");
        }
        for name in ["tls_push_record", "skb_splice_from_iter", "crypto_aead_encrypt", "libc.so.6"]
        {
            assert!(!ciphers(name), "{name}");
        }
    }
}
