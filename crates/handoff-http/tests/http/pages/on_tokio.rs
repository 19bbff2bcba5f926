use std::net::TcpListener;

use axum::Router;
use handoff::Driver;
use handoff_http::{Limits, Server};

/// Runs in a `LocalSet` of tokio's current-thread runtime; handlers may use tokio's own I/O and timers.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()>,
) -> handoff::Result<()> {
    let driver = Driver::new()?;
    let driving = tokio::task::spawn_local(handoff::tokio::drive(driver.clone()));
    let server = Server::new(&driver, Limits::default());
    server.serve(driver.listen(listener)?, router, stop).await;
    driving.abort();
    Ok(())
}
