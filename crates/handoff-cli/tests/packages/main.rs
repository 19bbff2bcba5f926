//! What is installed: Debian packages, made of the development build, and the profile for containers.

mod profile;

mod native {
    pub(crate) mod lab {
        mod life;
    }
}
