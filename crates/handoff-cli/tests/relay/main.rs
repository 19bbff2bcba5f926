//! `handoff relay` as a user meets it: real connections, ends, resets, stalls and signals.

mod ends;
mod limits;
mod payload;
mod session;

mod guest {
    mod lent;
}
