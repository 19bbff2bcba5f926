//! `handoff rds` as a user meets it, between two network namespaces.

mod session;

mod native {
    mod own;
}

mod guest {
    mod kernel;
}
