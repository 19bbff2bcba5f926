//! The Debian packages, made of the development build.

mod native {
    pub(crate) mod lab {
        mod life;
    }
}
