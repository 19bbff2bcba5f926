//! Random bits, for names that must not collide.

/// So many bits of the kernel's.
pub(crate) fn bits() -> u128 {
    let mut bytes = [0; 16];
    // Before the kernel's generator is seeded nobody else is running.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u128::from_ne_bytes(bytes)
}
