//! What all connections of a server share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use handoff::Driver;

use crate::date::Dates;
use crate::limits::Limits;
use crate::served::Book;

pub(crate) struct Common {
    pub(crate) driver: Driver,
    pub(crate) limits: Limits,
    pub(crate) dates: Dates,
    pub(crate) book: Rc<Book>,
    /// How many connections each client has.
    pub(crate) clients: RefCell<HashMap<IpAddr, usize>>,
    /// Why files are not lent from the page cache, if they can't be: splice is tried first then.
    pub(crate) unlent: Option<String>,
    /// No request follows those that are under way.
    pub(crate) stopping: Cell<bool>,
}

impl Common {
    pub(crate) fn new(driver: &Driver, limits: Limits) -> Self {
        Self {
            driver: driver.clone(),
            limits,
            dates: Dates::new(),
            book: Rc::default(),
            clients: RefCell::default(),
            unlent: why_unlent(driver),
            stopping: Cell::new(false),
        }
    }
}

#[cfg(feature = "getbuf")]
fn why_unlent(driver: &Driver) -> Option<String> {
    use handoff::Error;
    driver.get_buf().err().map(|error| match error {
        Error::EngineUnavailable { reason, .. } | Error::NoRing { reason, .. } => reason,
        error => error.to_string(),
    })
}

#[cfg(not(feature = "getbuf"))]
fn why_unlent(_: &Driver) -> Option<String> {
    Some("it was built without (feature getbuf)".to_owned())
}
