//! Bodies that are lent.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use handoff::Frozen;

/// A lent body: put it into a response's extensions, and it is sent instead of the response's own body.
///
/// Layers between the service and the connection do not see it: a layer that compresses or counts bodies
/// sees the response's own, which you should leave empty. `Content-Length` is set to the lent length.
///
/// In axum `Extension` puts it there:
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use handoff::Buffer;
/// use handoff_http::LentBody;
///
/// let page = Buffer::from(b"hello".to_vec()).freeze();
/// let router: Router = Router::new().route("/", get(async move || Extension(LentBody::from(page.clone()))));
/// ```
#[derive(Clone)]
pub struct LentBody {
    pub(crate) lent: Lent,
    /// Behind what is lent, so that it is dropped after that.
    pub(crate) guard: Option<Arc<dyn Any + Send + Sync>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Lent {
    Frozen(Frozen),
    File(Arc<File>, Range<u64>),
}

impl LentBody {
    /// A range of a file. If the file turns out to be shorter, the connection ends where the file does, so
    /// that the client notices.
    pub fn file(file: impl Into<Arc<File>>, range: Range<u64>) -> Self {
        Self { lent: Lent::File(file.into(), range), guard: None }
    }

    /// Drops `guard` when the body has been sent and a file is closed, or the answer ends early: a permit, or the place
    /// that the file has among others. It replaces an earlier guard.
    pub fn guarded_by(self, guard: impl Any + Send + Sync) -> Self {
        Self { guard: Some(Arc::new(guard)), ..self }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match &self.lent {
            Lent::Frozen(frozen) => frozen.len() as u64,
            Lent::File(_, range) => range.end.saturating_sub(range.start),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Frozen> for LentBody {
    fn from(frozen: Frozen) -> Self {
        Self { lent: Lent::Frozen(frozen), guard: None }
    }
}

impl fmt::Debug for LentBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LentBody").field(&self.lent).finish()
    }
}
