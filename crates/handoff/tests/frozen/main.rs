//! Frozen buffers: the same bytes to many sockets, of many drivers and threads, by every engine; and when
//! they may be written again.

#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../refusals/mod.rs"]
mod refusals;
#[allow(dead_code, reason = "each test program uses a part")]
#[path = "../traffic/mod.rs"]
mod traffic;

mod fan_out;
mod graph;
mod loans;
mod model;
mod pinning;
mod readers;
mod worker;

use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
