use std::time::Duration;

use futures_util::SinkExt;
use handoff::tokio::SendSink;
use handoff::{Buffer, Driver, Frozen};

/// Readers that all get the same. Their sinks are made with `SendSink::new(socket, 4).cancel_on_drop()`.
pub struct Readers {
    pub driver: Driver,
    pub sinks: Vec<SendSink<Frozen>>,
}

impl Readers {
    /// Lends a piece to all readers. One that has not made room within a second is dropped.
    pub async fn tell(&mut self, piece: Buffer) {
        let piece = piece.freeze();
        for mut sink in std::mem::take(&mut self.sinks) {
            let fed = self.driver.timeout(Duration::from_secs(1), sink.feed(piece.clone()));
            if let Ok(Ok(())) = fed.await {
                self.sinks.push(sink);
            }
        }
    }
}
