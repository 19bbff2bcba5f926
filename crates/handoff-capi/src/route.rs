//! Routes: all bytes of a source to a sink.

use std::ffi::c_int;
use std::fmt::Write as _;
use std::ops::Range;
use std::rc::{Rc, Weak};

use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use handoff::{Error, Route, RouteEngine, RouteSink, RouteSource};

use crate::boundary::{Failure, enter};
use crate::driver::{State, sized};
use crate::event::{
    HANDOFF_ENGINE_AUTO, HANDOFF_ENGINE_COPY, HANDOFF_ENGINE_GET_BUF, HANDOFF_ENGINE_MEMORY,
    HANDOFF_ENGINE_NONE, HANDOFF_ENGINE_SPLICE, HANDOFF_EVENT_CARRIED, handoff_event,
};
use crate::file::OpenFile;
use crate::handles::{self, handoff_handle, handoff_operation, handoff_pool};
use crate::operation::{self, Cancels};
use crate::receive::Drawn;
use crate::socket::Socket;

/// The offset of what has none.
const PIPE: u64 = u64::MAX;

/// From where to where. Fill with zeroes, set `size`, `source` and `sink`, and then what differs from the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct handoff_route_options {
    /// `sizeof(struct handoff_route_options)`.
    pub size: u32,
    /// The only engine that may serve: `HANDOFF_ENGINE_GET_BUF`, `..._SPLICE`, `..._MEMORY` or `..._COPY`. 0: the best
    /// that works, for a stream to a socket after its first small pieces, which are copied.
    pub engine: u32,
    /// A file, or a socket, whose stream is carried to its end.
    pub source: handoff_handle,
    /// Where in a file to begin. `UINT64_MAX`: it is a pipe, or begins at its own position, and is carried to its end.
    pub source_offset: u64,
    /// How many bytes of a file at most; 0: all that follow.
    pub source_length: u64,
    /// What a stream is received by, where an engine receives it. 0: memory of the route's own. With an rx queue its
    /// spans come before all other engines.
    pub pool: handoff_pool,
    /// A socket, or a file, which was not opened for appending.
    pub sink: handoff_handle,
    /// Where in a file to begin. `UINT64_MAX`: it is a pipe, or begins at its own position.
    pub sink_offset: u64,
}

/// Begins to carry all bytes of a source to a sink, by the best engine that works. `HANDOFF_EVENT_CARRIED` tells the end.
/// Send and receive nothing there meanwhile. `operation` may be NULL; else it is a handle for `handoff_cancel`: bytes that
/// were on the way then may arrive or not, and those that were taken from a stream are gone.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `options` points to as many bytes as its `size` says; `operation` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_route(
    options: *const handoff_route_options,
    user_data: u64,
    operation: *mut handoff_operation,
) -> c_int {
    enter(|| {
        if options.is_null() {
            return Err(Failure::invalid(
                "the route's options are NULL: they name source and sink",
            ));
        }
        // SAFETY: the caller vouches for it.
        let options = unsafe { sized(options, |options| options.size) }?;
        let (source, state) = source(&options)?;
        let (sink, sinks) = sink(&options)?;
        if !Rc::ptr_eq(&state, &sinks) {
            return Err(Failure::invalid("source and sink belong to different drivers"));
        }
        let mut route = Route::new(&state.driver, source, sink);
        if let Some(engine) = engine(options.engine)? {
            route = route.only(engine);
        }
        let begin = || {
            let (abort, registration) = AbortHandle::new_pair();
            let abort = Rc::new(abort);
            let cancels = Rc::downgrade(&abort);
            state.begin(follow(Rc::downgrade(&state), route, user_data, abort, registration));
            Ok(cancels as Weak<dyn Cancels>)
        };
        // SAFETY: the caller vouches for it.
        unsafe { operation::begin(operation, begin) }
    })
}

fn source(options: &handoff_route_options) -> Result<(RouteSource, Rc<State>), Failure> {
    let handoff_route_options { source, source_offset, source_length, pool, .. } = *options;
    if let Some(file) = handles::get_if::<Rc<OpenFile>>(source)? {
        if pool != 0 {
            return Err(Failure::invalid("a pool is for a route that begins at a socket"));
        }
        if source_offset == PIPE {
            if source_length != 0 {
                return Err(Failure::invalid(
                    "a pipe is carried to its end: the length is for files",
                ));
            }
            return Ok(((&file.file).into(), Rc::clone(&file.state)));
        }
        let end = if source_length == 0 {
            u64::MAX
        } else {
            source_offset
                .checked_add(source_length)
                .ok_or_else(|| Failure::invalid("no file has so many bytes"))?
        };
        let range = Range { start: source_offset, end };
        return Ok(((&file.file, range).into(), Rc::clone(&file.state)));
    }
    if let Some(socket) = handles::get_if::<Rc<Socket>>(source)? {
        if source_offset != 0 || source_length != 0 {
            return Err(Failure::invalid(
                "a stream is carried whole: offset and length are for files",
            ));
        }
        let source = if pool == 0 {
            (&socket.socket).into()
        } else {
            (&socket.socket, handles::get::<Rc<Drawn>>(pool)?.intake()).into()
        };
        return Ok((source, Rc::clone(&socket.state)));
    }
    Err(neither("source"))
}

fn sink(options: &handoff_route_options) -> Result<(RouteSink, Rc<State>), Failure> {
    if let Some(file) = handles::get_if::<Rc<OpenFile>>(options.sink)? {
        let sink = match options.sink_offset {
            PIPE => (&file.file).into(),
            offset => (&file.file, offset).into(),
        };
        return Ok((sink, Rc::clone(&file.state)));
    }
    if let Some(socket) = handles::get_if::<Rc<Socket>>(options.sink)? {
        if options.sink_offset != 0 {
            return Err(Failure::invalid("a socket has no offset: sink_offset is for files"));
        }
        return Ok(((&socket.socket).into(), Rc::clone(&socket.state)));
    }
    Err(neither("sink"))
}

fn neither(end: &str) -> Failure {
    Failure::new(
        libc::EBADF,
        format!("the {end} is neither a file nor a socket, and one is wanted"),
    )
}

fn engine_of(engine: RouteEngine) -> u32 {
    match engine {
        RouteEngine::GetBuf => HANDOFF_ENGINE_GET_BUF,
        RouteEngine::Splice => HANDOFF_ENGINE_SPLICE,
        RouteEngine::Memory => HANDOFF_ENGINE_MEMORY,
        RouteEngine::Copy => HANDOFF_ENGINE_COPY,
    }
}

fn engine(number: u32) -> Result<Option<RouteEngine>, Failure> {
    Ok(Some(match number {
        HANDOFF_ENGINE_NONE | HANDOFF_ENGINE_AUTO => return Ok(None),
        HANDOFF_ENGINE_GET_BUF => RouteEngine::GetBuf,
        HANDOFF_ENGINE_SPLICE => RouteEngine::Splice,
        HANDOFF_ENGINE_MEMORY => RouteEngine::Memory,
        HANDOFF_ENGINE_COPY => RouteEngine::Copy,
        _ => return Err(Failure::invalid("engine is none of those that routes have")),
    }))
}

async fn follow(
    state: Weak<State>,
    mut route: Route,
    user_data: u64,
    _abort: Rc<AbortHandle>,
    registration: AbortRegistration,
) {
    let progress = route.progress();
    let carried = Abortable::new(route.run(), registration).await;
    let result = match carried {
        Ok(carried) => carried.result,
        Err(_) => Err(Error::Canceled { done: progress.get() as usize }),
    };
    let mut event = handoff_event::new(HANDOFF_EVENT_CARRIED, user_data);
    event.bytes = progress.get();
    event.tally = route.given().into();
    event.taken = route.taken().into();
    event.engine = engine_of(route.engine());
    let mut text = String::new();
    if let Err(error) = result {
        let failure = Failure::from(error);
        event.error = -failure.errno;
        text = failure.into_text();
    }
    for (engine, reason) in route.passed_over() {
        let parted = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{parted}{engine} did not serve: {reason}");
    }
    if let Some(state) = state.upgrade() {
        state.tell_in_words(event, (!text.is_empty()).then_some(text));
    }
}
