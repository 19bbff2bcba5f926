//! Descriptors that a process has got from the one that started it.
//!
//! Kernel interface: `close_range(2)` with `CLOSE_RANGE_CLOEXEC` (Linux 5.11).

/// Keeps all descriptors that are open now, but for standard input, output and error, from the programs that this process
/// executes. A program that outlives its caller would hold what the caller had open: a device that then cannot be removed,
/// a lock, or the end of a pipe that somebody reads.
///
/// You may call it between fork and exec. Where the kernel cannot do it, nothing happens.
pub fn keep_from_programs() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 1 << 2;
    let (first, last) = (3 as libc::c_uint, libc::c_uint::MAX);
    // SAFETY: flags of descriptors change, and none is closed.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, first, last, CLOSE_RANGE_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_program_has_only_its_three() {
        let (read, _write) = std::io::pipe().expect("a pipe");
        let number = read.as_raw_fd();
        // SAFETY: the descriptor is open, and its flag for programs is cleared.
        assert_eq!(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }, 0);
        for (keeps, has) in [(false, true), (true, false)] {
            let mut command = Command::new("test");
            command.args(["-e", &format!("/proc/self/fd/{number}")]);
            if keeps {
                // SAFETY: one system call.
                unsafe {
                    command.pre_exec(|| {
                        keep_from_programs();
                        Ok(())
                    });
                }
            }
            assert_eq!(command.status().expect("runs").success(), has);
        }
    }
}
