//! State shared by all connections of a server.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use handoff::Driver;

use crate::answered::Observer;
use crate::date::Dates;
use crate::limits::Limits;
use crate::registry::Registry;
use crate::served::Counters;
use crate::who::Who;

/// Operations of the driver that each connection may always have: a receive, and a send.
const SHARE: usize = 2;

pub(crate) struct Common {
    pub(crate) driver: Driver,
    pub(crate) limits: Limits,
    pub(crate) dates: Dates,
    pub(crate) counters: Rc<Counters>,
    /// How many connections each client has.
    pub(crate) clients: RefCell<HashMap<Who, usize>>,
    /// Their places.
    pub(crate) registry: Rc<Registry>,
    /// Who hears of answers.
    pub(crate) observer: OnceCell<Observer>,
    /// Why files cannot be lent from the page cache, if so: then splice is tried first.
    pub(crate) unlent: Option<String>,
    /// The device that lends them: open as long as the server is, so that no answer has to open it.
    #[cfg(feature = "getbuf")]
    _getbuf: Option<handoff::GetBuf>,
    /// Connections served at once.
    pub(crate) most: usize,
    /// Operations of the driver beyond each connection's [`SHARE`].
    spare: usize,
    /// Answers under way.
    pub(crate) answering: Cell<u64>,
    /// Begins TLS on each connection.
    #[cfg(feature = "tls")]
    pub(crate) acceptor: OnceCell<handoff::tls::TlsAcceptor>,
    /// Who ciphers, each with a reason.
    #[cfg(feature = "tls")]
    pub(crate) ciphers: RefCell<Vec<(handoff::Engine, String)>>,
}

impl Common {
    pub(crate) fn new(driver: &Driver, limits: Limits) -> Self {
        let limit = driver.in_flight_limit();
        #[cfg(feature = "getbuf")]
        let getbuf = open(driver);
        let most = limits.connections.min(limit / SHARE).max(1);
        Self {
            driver: driver.clone(),
            most,
            spare: limit.saturating_sub(most * SHARE),
            limits,
            dates: Dates::new(),
            counters: Rc::default(),
            clients: RefCell::default(),
            registry: Rc::default(),
            observer: OnceCell::new(),
            #[cfg(feature = "getbuf")]
            unlent: getbuf.as_ref().err().cloned(),
            #[cfg(feature = "getbuf")]
            _getbuf: getbuf.ok(),
            #[cfg(not(feature = "getbuf"))]
            unlent: Some("it was built without (feature getbuf)".to_owned()),
            answering: Cell::new(0),
            #[cfg(feature = "tls")]
            acceptor: OnceCell::new(),
            #[cfg(feature = "tls")]
            ciphers: RefCell::default(),
        }
    }

    /// Whether a connection may have more than its share. Operations within shares count here too, so
    /// whatever goes beyond them leaves each connection its own.
    pub(crate) fn has_spare(&self) -> bool {
        self.driver.in_flight() - self.driver.loan_stats().unclaimed < self.spare
    }
}

/// The device that lends files, or why none does.
#[cfg(feature = "getbuf")]
fn open(driver: &Driver) -> Result<handoff::GetBuf, String> {
    use handoff::Error;
    driver.get_buf().map_err(|error| match error {
        Error::EngineUnavailable { reason, .. } | Error::NoRing { reason, .. } => reason,
        error => error.to_string(),
    })
}
