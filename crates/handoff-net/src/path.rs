//! Whether the path to a peer still carries anything, also while neither side has something to say.
//!
//! Contract: a host that answers is there, however long its program takes; the kernel asks it by itself (keepalive,
//! retransmissions, probes of a closed window).
//!
//! Kernel interface: getsockopt(2) `TCP_INFO`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// So many unanswered questions are no chance: one may be on its way.
const UNANSWERED: u8 = 2;

/// How long the peer's host has answered nothing that it was asked; `None` if it has answered all, or is not TCP's.
pub fn silence(socket: impl AsFd) -> Option<Duration> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which the structure has.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if answer < 0 {
        return None;
    }
    // SAFETY: all of it is integers, and was 0 where the kernel has written nothing.
    let info = unsafe { info.assume_init() };
    let heard = info.tcpi_last_data_recv.min(info.tcpi_last_ack_recv);
    let is_asked = info.tcpi_probes.max(info.tcpi_retransmits) >= UNANSWERED;
    is_asked.then(|| Duration::from_millis(heard.into()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use handoff_testbed::Pair;
    use handoff_testbed::helpers::eventually;
    use handoff_testbed::topology_or_skip;

    use super::*;

    #[test]
    fn a_host_that_answers_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        assert_eq!(silence(&peer), None);
        assert_eq!(silence(std::io::stdin()), None);
    }

    #[test]
    fn needs_root_a_host_that_is_cut_off_is_silent() {
        let pair = topology_or_skip!(Pair::new(1500));
        let (mut near, far) = pair.connection().expect("connects");
        let down = format!("ip link set {} down", pair.right.device());
        pair.right.shell(&down).expect("takes the cable out");
        near.write_all(b"is anybody there?").expect("the kernel takes it");
        let long = Duration::from_millis(700);
        eventually("nobody answers", || silence(&near).filter(|silence| *silence > long));
        drop(far);
    }
}
