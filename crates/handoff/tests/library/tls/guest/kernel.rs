//! The kernel ciphers.

use handoff::tls::Ciphering;
use handoff::{Driver, Engine, Outcome, RouteEngine, UnixKind};

use crate::tls::exchange::{
    a_cut_send_is_no_end, everything_arrives, keys_change_and_cuts_are_told,
};
use crate::tls::fixture::{Identity, localhost};
use crate::tls::openssl::openssl_understands_us;
use crate::tls::pools::{a_full_pool_makes_a_receiver_wait, everything_comes_in_spans};
use crate::tls::routes::{
    a_file_goes, a_route_given_up_is_no_end, a_stream_becomes_a_file, streams_are_relayed,
};
#[cfg(feature = "tokio")]
use crate::tls::streams::{
    a_cut_is_an_error, a_dropped_half_ends_properly, calls_that_do_not_wait_go_by_the_cipher,
    nothing_is_lost_to_what_is_given_up, tokio_copies_over_tls,
};
use crate::traffic::drivers;

#[test]
fn in_the_kernel_everything_arrives_and_is_ciphered_only() {
    for driver in drivers() {
        everything_arrives(&driver, Ciphering::Auto, (Engine::KernelTls, Outcome::Ciphered));
    }
}

#[test]
fn in_the_kernel_keys_change_and_cuts_are_told() {
    for driver in drivers() {
        keys_change_and_cuts_are_told(&driver, Ciphering::Kernel, Outcome::Ciphered);
    }
}

#[test]
fn openssl_understands_what_the_kernel_ciphers() {
    openssl_understands_us(Ciphering::Kernel, Engine::KernelTls);
}

#[test]
fn in_the_kernel_a_cut_send_is_no_end() {
    for driver in drivers() {
        a_cut_send_is_no_end(&driver, Ciphering::Kernel);
    }
}

#[test]
fn in_the_kernel_everything_comes_in_spans_and_is_not_copied() {
    for driver in drivers() {
        everything_comes_in_spans(&driver, Ciphering::Kernel, |tally, chunk| {
            assert_eq!(tally.copied, 0, "{tally:?}");
            // Short messages fill no long chunk.
            assert!(tally.ciphered > 0 || chunk < 16 << 10, "{tally:?}");
        });
    }
}

#[test]
fn in_the_kernel_a_full_pool_makes_a_receiver_wait() {
    for driver in drivers() {
        a_full_pool_makes_a_receiver_wait(&driver, Ciphering::Kernel);
    }
}

#[test]
fn in_the_kernel_a_file_is_spliced_to_the_cipher() {
    for driver in drivers() {
        a_file_goes(&driver, Ciphering::Kernel, RouteEngine::Splice);
    }
}

#[test]
fn in_the_kernel_a_stream_becomes_a_file() {
    for driver in drivers() {
        a_stream_becomes_a_file(&driver, Ciphering::Kernel);
    }
}

#[test]
fn in_the_kernel_streams_are_relayed() {
    for driver in drivers() {
        streams_are_relayed(&driver, Ciphering::Kernel);
    }
}

#[test]
fn in_the_kernel_a_route_given_up_is_no_end() {
    for driver in drivers() {
        a_route_given_up_is_no_end(&driver, Ciphering::Kernel);
    }
}

#[cfg(feature = "tokio")]
#[test]
fn in_the_kernel_tokio_copies_over_tls() {
    tokio_copies_over_tls(Ciphering::Kernel, Engine::KernelTls);
}

#[cfg(feature = "tokio")]
#[test]
fn in_the_kernel_nothing_is_lost_to_what_is_given_up() {
    nothing_is_lost_to_what_is_given_up(Ciphering::Kernel);
}

#[cfg(feature = "tokio")]
#[test]
fn in_the_kernel_calls_that_do_not_wait_go_by_the_cipher() {
    calls_that_do_not_wait_go_by_the_cipher(Ciphering::Kernel);
}

#[cfg(feature = "tokio")]
#[test]
fn in_the_kernel_a_cut_is_an_error_of_streams() {
    a_cut_is_an_error(Ciphering::Kernel);
}

#[cfg(feature = "tokio")]
#[test]
fn in_the_kernel_a_dropped_half_ends_properly() {
    a_dropped_half_ends_properly(Ciphering::Kernel);
}

/// The kernel takes TCP connections only, so this process ciphers others.
#[test]
fn what_the_kernel_does_not_take_is_ciphered_here() {
    let driver = Driver::new().expect("a driver");
    let identity = Identity::new();
    let (near, far) = driver.unix_pair(UnixKind::Stream).expect("a pair");
    let connector = identity.connector(Ciphering::Auto);
    let acceptor = identity.acceptor(Ciphering::Auto);
    let both = driver.block_on(futures_lite::future::try_zip(
        connector.connect(near, localhost()),
        acceptor.accept(far),
    ));
    let ((_near, ours), (_far, theirs)) = both.expect("driven").expect("a handshake");
    assert_eq!((ours.engine, theirs.engine), (Engine::UserTls, Engine::UserTls));
    assert!(ours.reason.contains("takes no TLS"), "{}", ours.reason);
}
