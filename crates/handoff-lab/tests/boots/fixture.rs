//! What the tests of [`crate::lab`] run in a guest or as a process of their own.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

fn shell(script: &str) -> bool {
    Command::new("sh").args(["-c", script]).status().expect("sh is there").success()
}

#[test]
#[ignore = "needs a guest"]
fn a_passes() {
    assert_eq!(std::env::var("HANDOFF_GUEST").as_deref(), Ok("1"));
}

#[test]
#[ignore = "fails on purpose"]
fn b_fails() {
    panic!("the words of a failure");
}

#[test]
#[ignore = "skips on purpose"]
fn c_skips_as_declared() {
    handoff_lab::skip!("no such {}", "device");
}

#[test]
#[ignore = "skips on purpose"]
fn d_skips_undeclared() {
    handoff_lab::skip!("no excuse");
}

#[test]
#[ignore = "fills a disk"]
fn e_fills_its_disk() {
    let mut file = fs::File::create("/tmp/full").expect("creates");
    let block = vec![1u8; 1 << 20];
    let error = loop {
        if let Err(error) = file.write_all(&block) {
            break error;
        }
    };
    fs::remove_file("/tmp/full").expect("removes");
    panic!("as it should: {error}");
}

#[test]
#[ignore = "leaves processes"]
fn f_leaves_processes() {
    assert!(shell("sleep 1000 & setsid sleep 1000 > /dev/null 2>&1 &"));
}

#[test]
#[ignore = "needs the processes of the test before it to be gone"]
fn g_finds_no_processes() {
    assert!(!shell("pidof sleep"));
}

#[test]
#[ignore = "hangs on purpose"]
fn h_hangs() {
    std::thread::sleep(Duration::from_secs(3600));
}

#[test]
#[ignore = "has the kernel warn"]
fn i_warns() {
    assert!(shell("insmod $HANDOFF_MODULES/handoff_warn.ko"));
}

#[test]
#[ignore = "has a task hang"]
fn j_hangs_a_task() {
    shell("echo 2 > /proc/sys/kernel/hung_task_timeout_secs; fsfreeze -f /");
    shell("touch /root/x & sleep 10");
}

#[test]
#[ignore = "panics the kernel"]
fn k_panics_the_kernel() {
    fs::write("/proc/sysrq-trigger", "c").expect("writes");
}

#[test]
#[ignore = "needs a guest after the panic"]
fn l_passes_in_a_new_guest() {}

#[test]
#[ignore = "stops the guest's agent"]
fn m_hangs_the_guest() {
    // The agent is our parent; what is stopped cannot kill us for the host.
    let agent = std::os::unix::process::parent_id();
    assert!(shell(&format!("kill -STOP {agent}")));
    std::thread::sleep(Duration::from_secs(3600));
}

/// Prints what a loop of two million instructions costs, without the turns that a timer interrupt
/// came into.
#[test]
#[ignore = "needs a guest that counts instructions"]
fn counts() {
    let counted = (0..10).map(|_| {
        let turns: u64 = 1_000_000;
        let before = handoff_lab::instructions::executed().expect("instructions are counted");
        // SAFETY: changes one register, which it names.
        unsafe {
            std::arch::asm!("2:", "dec {turns}", "jnz 2b", turns = inout(reg) turns => _);
        }
        handoff_lab::instructions::executed().expect("instructions are counted") - before
    });
    println!("instructions {}", counted.min().expect("ten"));
}

/// Boots a guest and runs what `FIXTURE_COMMAND` says; prints the exit code that the lab's command
/// would have.
#[test]
#[ignore = "boots a guest"]
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
