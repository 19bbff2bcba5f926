//! Keeps a log as storage engines do: it has room before it needs it, a record is on the disk before anybody is told, and
//! nobody finds half of a checkpoint, also after a crash. `keep_log DIRECTORY`

use std::error::Error;

use handoff::{Allocation, Buffer, Driver, OpenOptions, Renaming, RwFlags};

/// Returns the length of the log.
pub async fn keep(driver: &Driver, path: &str) -> Result<u64, Box<dyn Error>> {
    let working = driver.working_directory()?;
    let directory = working.open_dir(path, OpenOptions::new().read(true))?.await?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).beneath(true);

    let log = directory.open("log", &options)?.await?;
    log.allocate(0, 1 << 20, Allocation::KeepSize)?.await?;
    for record in ["begin\n", "end\n"] {
        let head = Buffer::from((record.len() as u32).to_le_bytes().to_vec());
        let pieces = vec![head, Buffer::from(record.as_bytes().to_vec())];
        let written = log.write_at_with(pieces, 0, RwFlags::APPEND | RwFlags::DSYNC)?.await?;
        println!("{} bytes are safe", written.result?);
    }

    let new = directory.open("checkpoint.new", options.truncate(true))?.await?;
    new.write_at(Buffer::from(b"2 records\n".to_vec()), 0)?.await?.result?;
    new.sync_data()?.await?;
    directory.rename("checkpoint.new", &directory, "checkpoint", Renaming::Replace)?.await?;
    directory.sync_all()?.await?;
    Ok(log.metadata()?.await?.len())
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: keep_log DIRECTORY")?;
    let driver = Driver::new()?;
    println!("the log has {} bytes", driver.block_on(keep(&driver, &path))??);
    Ok(())
}
