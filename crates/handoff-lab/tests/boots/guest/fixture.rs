//! What the tests of [`crate::native::lab`] run in a guest or as a process of their own.

/// Prints what a loop of two million instructions costs, without the turns that a timer interrupt
/// came into.
#[test]
#[ignore = "fixture: needs a guest that counts instructions"]
fn counts() {
    // Each is so short that many lie between two interrupts, however many of these a busy host brings.
    let counted = (0..100).map(|_| {
        let turns: u64 = 100_000;
        let before = handoff_testbed::instructions::executed().expect("instructions are counted");
        // SAFETY: changes one register, which it names.
        unsafe {
            std::arch::asm!("2:", "dec {turns}", "jnz 2b", turns = inout(reg) turns => _);
        }
        handoff_testbed::instructions::executed().expect("instructions are counted") - before
    });
    println!("instructions {}", counted.min().expect("a hundred"));
}

/// Boots a guest and runs what `FIXTURE_COMMAND` says; prints the exit code that the lab's command
/// would have.
#[test]
#[ignore = "fixture: boots a guest"]
fn boots() {
    let command = std::env::var("FIXTURE_COMMAND").expect("set by the test");
    let stop = handoff_lab::StopFlag::default();
    let booted = handoff_lab::Guest::boot(&handoff_lab::Machine::default(), &stop);
    match booted {
        Ok(mut guest) => {
            println!("booted {}", guest.release);
            let job = handoff_lab::Job::new(["sh", "-c", &command]);
            let (outcome, ..) = guest.run_captured(&job).expect("runs");
            assert!(outcome.success(), "{outcome:?}");
            println!("ended");
        }
        Err(error) => println!("code {}: {error}", error.code()),
    }
}
