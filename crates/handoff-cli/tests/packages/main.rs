//! What is installed: Debian packages, made of the development build, and the profile for containers.

mod profile;
mod soak;

mod native {
    pub(crate) mod lab {
        pub(crate) mod life;
    }
}
