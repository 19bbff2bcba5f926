//! What is installed: Debian packages, made of the development build.

mod maintainer;
mod soak;

#[path = "../product/mod.rs"]
mod product;

mod native {
    pub(crate) mod lab {
        pub(crate) mod lifecycle;
    }
}
