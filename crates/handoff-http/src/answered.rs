//! What became of a request, for a log.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use handoff::Client;
use http::{Request, StatusCode};

/// A request that is over. [`Server::observing`](crate::Server::observing) hands it out.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// The client.
    pub peer: Client,
    /// The request without its body; `None` for what was no request and was refused.
    pub request: Option<&'a Request<()>>,
    /// The status of the answer; `None` if none had begun.
    pub status: Option<StatusCode>,
    /// Bytes of the body that were given to the kernel.
    pub bytes: u64,
    /// From the end of the request's head until then.
    pub time: Duration,
    /// Why the answer ended early, if it did.
    pub cut: Option<&'a str>,
}

/// Who hears of them.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Rc<dyn Fn(&Answered<'_>)>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
