//! `handoff serve` as a user meets it: files and what is asked of them, limits, signals, mistakes.

mod ends;
mod files;
mod guest;
mod refused;
mod service;
mod session;
