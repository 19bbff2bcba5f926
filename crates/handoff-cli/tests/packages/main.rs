//! What is installed: Debian packages, made of the development build, and the profile for containers.

mod maintainer;
mod profile;
mod soak;

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../running/mod.rs"]
mod running;

mod native {
    pub(crate) mod lab {
        pub(crate) mod life;
    }
}
