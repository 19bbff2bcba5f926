//! `handoff rds` as a user meets it, between two network namespaces.

mod copy;
mod session;

mod native {
    mod copied;
    mod crowd;
    mod own;
}

mod guest {
    mod copied;
    mod kernel;
    mod seed;
}
