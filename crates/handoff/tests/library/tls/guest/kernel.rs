//! The kernel ciphers.

use handoff::tls::Ciphering;
use handoff::{Engine, Outcome};

use crate::tls::exchange::{
    a_cut_send_is_no_end, everything_arrives, keys_change_and_cuts_are_told,
};
use crate::tls::openssl::openssl_understands_us;
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
