//! Random bits, for names that must not collide.

/// 128 bits of the kernel's generator.
pub(crate) fn bits() -> u128 {
    let mut bytes = [0; 16];
    // Before the kernel's generator is seeded nobody else is running.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u128::from_ne_bytes(bytes)
}
