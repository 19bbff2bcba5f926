//! Groups: sends that are told of together.

use std::cell::RefCell;
use std::ffi::c_int;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};

use handoff::{Engine, Tally};

use crate::boundary::{Failure, enter};
use crate::driver::{self, State};
use crate::event::{HANDOFF_EVENT_RETURNED, engine_number, handoff_event};
use crate::handles::{self, Kind, handoff_driver, handoff_group};

/// What became of a send, or of several.
pub(crate) struct Over {
    pub(crate) bytes: u64,
    pub(crate) tally: Tally,
    /// The engine, if it was one and the same throughout.
    pub(crate) engine: Option<Engine>,
    /// Of the first that failed.
    pub(crate) failure: Option<Failure>,
}

impl Over {
    /// As an event that tells of it.
    pub(crate) fn tell(self, state: &Weak<State>, mut event: handoff_event) {
        event.kind = HANDOFF_EVENT_RETURNED;
        event.bytes = self.bytes;
        event.tally = self.tally.into();
        event.engine = engine_number(self.engine);
        driver::tell(state, event, self.failure);
    }
}

/// A send of a group: it is over when its payload is back.
pub(crate) type Member = Pin<Box<dyn Future<Output = Over>>>;

/// Sends that nobody was told of.
pub(crate) struct Group {
    members: RefCell<Vec<Member>>,
    state: Rc<State>,
}

impl Kind for Rc<Group> {
    const NAME: &'static str = "a group";
}

impl Group {
    pub(crate) fn check_is_of(&self, state: &Rc<State>) -> Result<(), Failure> {
        if !Rc::ptr_eq(&self.state, state) {
            return Err(Failure::invalid("the group belongs to another driver than the socket"));
        }
        Ok(())
    }

    pub(crate) fn join(&self, member: Member) {
        self.members.borrow_mut().push(member);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let members = mem::take(self.members.get_mut());
        if !members.is_empty() {
            // The handles of what is on loan have it back all the same.
            self.state.begin(async { drop(all(members).await) });
        }
    }
}

async fn all(members: Vec<Member>) -> Over {
    let mut joint = Over { bytes: 0, tally: Tally::default(), engine: None, failure: None };
    for (number, member) in members.into_iter().enumerate() {
        let Over { bytes, tally, engine, failure } = member.await;
        joint.bytes += bytes;
        joint.tally += tally;
        joint.engine =
            if number == 0 { engine } else { joint.engine.filter(|it| engine == Some(*it)) };
        joint.failure = joint.failure.or(failure);
    }
    joint
}

/// Makes a group: sends that join it (`group` of `struct handoff_send_options`) are told of by one event.
///
/// Returns 0, or a negative error number.
///
/// # Safety
///
/// `group` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handoff_group_new(
    driver: handoff_driver,
    group: *mut handoff_group,
) -> c_int {
    enter(|| {
        let make = || {
            let state = handles::get::<Rc<State>>(driver)?;
            Ok(Rc::new(Group { members: RefCell::default(), state }))
        };
        // SAFETY: the caller vouches for it.
        unsafe { handles::give(group, make) }
    })
}

/// Has one `HANDOFF_EVENT_RETURNED` tell when all sends that have joined a group are over: with the sum of their bytes
/// and of what became of these, and with the error of the first that failed. Their buffers stay on loan until then.
/// Sends that join later are told of by the next flush. A group that is closed tells nothing of the rest.
///
/// Returns how many sends they are, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn handoff_group_flush(group: handoff_group, user_data: u64) -> c_int {
    enter(|| {
        let group = handles::get::<Rc<Group>>(group)?;
        let members = group.members.take();
        let count = members.len() as c_int;
        let state = Rc::downgrade(&group.state);
        group.state.begin(async move {
            all(members).await.tell(&state, handoff_event::new(HANDOFF_EVENT_RETURNED, user_data));
        });
        Ok(count)
    })
}
