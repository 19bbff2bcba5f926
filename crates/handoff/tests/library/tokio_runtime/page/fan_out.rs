use std::time::Duration;

use futures_util::SinkExt;
use futures_util::future::join_all;
use handoff::tokio::SendSink;
use handoff::{Buffer, Driver, Frozen};

/// Readers that all get the same. Their sinks are made with `SendSink::new(socket, 4).cancel_on_drop()`.
pub struct Readers {
    pub driver: Driver,
    pub sinks: Vec<SendSink<Frozen>>,
}

impl Readers {
    /// Lends a piece to all readers, side by side: no reader waits for another. One that has not made room within a
    /// second is dropped.
    pub async fn tell(&mut self, piece: Buffer) {
        let (driver, piece) = (&self.driver, piece.freeze());
        let fed = std::mem::take(&mut self.sinks).into_iter().map(async |mut sink| {
            let feeding = sink.feed(piece.clone());
            let fed = driver.timeout(Duration::from_secs(1), feeding).await;
            matches!(fed, Ok(Ok(()))).then_some(sink)
        });
        self.sinks = join_all(fed).await.into_iter().flatten().collect();
    }
}
