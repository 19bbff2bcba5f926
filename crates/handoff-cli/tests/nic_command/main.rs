//! `handoff nic` on the lab's kernel, as a user meets it: a pair of software NICs (`kmod/wire`).

mod guest {
    mod ended;
    mod host;
    mod lease;
    mod output;
}
