//! What all connections of a server share.

use std::cell::Cell;
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
            stopping: Cell::new(false),
        }
    }
}
