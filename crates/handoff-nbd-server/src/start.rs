//! Operations on a driver that may be full.

use std::time::Duration;

use handoff::{Driver, Error, FileCall, Refused, Result};

/// How long to wait before the next attempt.
const AGAIN: Duration = Duration::from_millis(5);

/// Starts an operation on a buffer as soon as the driver has room for it.
///
/// # Errors
///
/// Why it cannot start at all.
pub(crate) async fn start<B, T>(
    driver: &Driver,
    mut buffer: B,
    operation: impl Fn(B) -> Result<T, Refused<B>>,
) -> Result<T> {
    loop {
        match operation(buffer) {
            Ok(started) => return Ok(started),
            Err(Refused { buffer: back, error: Error::Busy { .. } }) => buffer = back,
            Err(refused) => return Err(refused.error),
        }
        driver.sleep(AGAIN).await?;
    }
}

/// Makes a call about a file as soon as the driver has room for it.
///
/// # Errors
///
/// The call's.
pub(crate) async fn call<T: 'static>(
    driver: &Driver,
    begin: impl Fn() -> Result<FileCall<T>>,
) -> Result<T> {
    loop {
        match begin() {
            Ok(call) => return call.await,
            Err(Error::Busy { .. }) => driver.sleep(AGAIN).await?,
            Err(error) => return Err(error),
        }
    }
}
