//! The open files of a device.
//!
//! Contracts:
//! - they are opened by path once, when a device is made, or when it is taken over with nobody left who has them.
//!   Whoever holds them hands them to each next server, which opens and judges nothing by path. So it does not
//!   matter to a device what becomes of the names, who locks the files, or what they are by now;
//! - they stay open and locked as long as any process has them, also between two servers.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use crate::backing::{self, Backing, Facts};
use crate::control::{Control, DeviceState};
use crate::device::{self, Deadline, Following, recoverable};
use crate::error::Error;
use crate::existing::{existing, laid_out};
use crate::mirror::assembly::{self, Assembly};
use crate::mirror::equal::Watch;
use crate::record::Record;
use crate::spec::{Kind, MirrorStart, Spec};
use crate::state::{self, Directory, Held, Rooms, State};

/// The open files of a device: the driver's, that of its state, and its backings.
#[derive(Debug)]
pub struct Files {
    pub(crate) control: OwnedFd,
    pub(crate) state: File,
    pub(crate) backings: Vec<Backing>,
    /// Of a device that exists.
    pub(crate) record: Option<Record>,
    /// Of a new mirror whose legs have records.
    pub(crate) assembly: Option<Assembly>,
}

/// [`Files`] that a process inherits, by their numbers there, with what is known of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Inherited {
    control: RawFd,
    state: RawFd,
    backings: Vec<(RawFd, Facts)>,
    record: Option<Record>,
    assembly: Option<Assembly>,
}

impl Files {
    /// Opens, locks and judges the files of a new device.
    ///
    /// # Errors
    ///
    /// Errors in the files, and files that something else uses.
    pub fn open(spec: &Spec) -> Result<Self, Error> {
        Self::open_watched(spec, &mut |_, _| true)
    }

    /// The same, and `watch` hears how far a mirror is whose legs are compared or made equal: the bytes done, and of
    /// all. It returns whether to go on. If not, the next start goes on where this one was.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open), and [`Error::Stopped`].
    pub fn open_watched(
        spec: &Spec,
        watch: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Self, Error> {
        crate::target::check(spec)?;
        Self::of_new(spec, &mut Control::open()?, watch)
    }

    pub(crate) fn of_new(
        spec: &Spec,
        control: &mut Control,
        watch: &mut Watch<'_>,
    ) -> Result<Self, Error> {
        let (assembly, backings) = match &spec.record {
            None => {
                let backings = backing::open_new(spec, control)?;
                if spec.target == Kind::Mirror {
                    assembly::check_unrecorded(spec, &backings, watch)?;
                }
                (None, backings)
            }
            Some(start) => {
                let named = match start {
                    MirrorStart::Create { .. } => {
                        backing::open_new(spec, control)?.into_iter().map(Ok).collect()
                    }
                    _ => backing::open_legs(spec, control)?,
                };
                let (assembly, backings) = assembly::assemble(spec, start, named, watch)?;
                (Some(assembly), backings)
            }
        };
        let state = state::anonymous()
            .map_err(Error::doing("the state of a device cannot be kept in /run"))?;
        Ok(Self { control: control.file()?, state, backings, record: None, assembly })
    }

    /// Opens the files of a device whose last server is gone, with nobody left who has them. A mirror goes on
    /// without the legs that are not there.
    ///
    /// # Errors
    ///
    /// A device that has a server, or whose files are not those that it was made of.
    pub fn of_device(id: u32) -> Result<Self, Error> {
        let mut control = Control::open()?;
        recoverable(&mut control, id, None)?;
        Self::of_known(&mut control, id, None)
    }

    pub(crate) fn of_known(
        control: &mut Control,
        id: u32,
        following: Option<Following<'_>>,
    ) -> Result<Self, Error> {
        let directory = Directory::of(id);
        let record = directory.known()?;
        let found = device::found(control, id)?;
        if found.made != record.made {
            return Err(Error::invalid(format!(
                "device {id} is another than the one that is known here: what it was made of is not known"
            )));
        }
        let stateful = || Error::doing(format!("the state of device {id}"));
        let rooms = Rooms { queues: found.queues, depth: found.depth, chunks: record.chunks() };
        let state = match directory.open_state() {
            // Only of a mirror it has what nothing else tells.
            Err(error) if is_missing(&error) && record.spec.target != Kind::Mirror => {
                let (map, _) = laid_out(&record)?;
                state::anonymous()
                    .and_then(|file| State::begin(file, &map, rooms))
                    .map_err(stateful())?
                    .into()
            }
            Err(error) if is_missing(&error) => {
                let damage = "is gone, and so it is not known which legs of the mirror are good: remove the \
                              device, and make it anew of the good ones";
                return Err(Error::Damaged { id, damage: damage.to_owned() });
            }
            opened => opened.map_err(stateful())?,
        };
        let existing = existing(record, &state, id)?;
        // The last server may let go of them a little later than of the device.
        let mut deadline = Deadline::of_the_last(id, following);
        let mut waits = true;
        let (backings, taken_out) = loop {
            match backing::open_known(&existing, waits) {
                Err(refused) if refused.is_held && waits => {
                    waits = deadline.wait_or_go_on(control, refused.error)?;
                }
                opened => break opened.map_err(|refused| refused.error)?,
            }
        };
        if !taken_out.is_empty() {
            state::take_out(&state, rooms, &taken_out).map_err(stateful())?;
        }
        let record = Some(existing.record);
        Ok(Self { control: control.file()?, state, backings, record, assembly: None })
    }

    /// Says that the device of these files is there. Later servers have its record from here.
    pub fn belong_to(&mut self, record: Record) {
        (self.record, self.assembly) = (Some(record), None);
    }

    /// Whether the backings are all disks or partitions.
    pub(crate) fn are_disks(&self) -> bool {
        !self.backings.is_empty() && self.backings.iter().all(|it| it.facts.part.inode == 0)
    }

    fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let own = [self.control.as_fd(), self.state.as_fd()];
        own.into_iter().chain(self.backings.iter().map(|backing| backing.file.as_fd()))
    }

    /// Hands the files to all processes that this one starts, which have them by the same numbers, and returns
    /// what to tell a server.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn hand_on(&self) -> io::Result<Inherited> {
        for file in self.all() {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        let backings = self.backings.iter();
        Ok(Inherited {
            control: self.control.as_raw_fd(),
            state: self.state.as_raw_fd(),
            backings: backings.map(|it| (it.file.as_raw_fd(), it.facts.clone())).collect(),
            record: self.record.clone(),
            assembly: self.assembly.clone(),
        })
    }

    /// The files that this process has inherited.
    ///
    /// # Safety
    ///
    /// The process that started this one must have handed them on ([`hand_on`](Self::hand_on)), and nobody else in
    /// this process may own them.
    pub unsafe fn inherit(told: Inherited) -> Self {
        let own = |number| {
            // SAFETY: the caller's duty.
            unsafe { OwnedFd::from_raw_fd(number) }
        };
        let backings = told.backings.into_iter();
        let files = Self {
            control: own(told.control),
            state: own(told.state).into(),
            backings: backings.map(|(file, facts)| Backing { file: own(file), facts }).collect(),
            record: told.record,
            assembly: told.assembly,
        };
        // Processes that this one starts have no use for them.
        for file in files.all() {
            let _ = fcntl_setfd(file, FdFlags::CLOEXEC);
        }
        files
    }

    /// Puts back what was removed of the directory of a device that lives on: its record and its policy as they
    /// were held, and its state. Returns whether anything was missing.
    ///
    /// # Errors
    ///
    /// Of writing there.
    pub fn put_back(&self, held: &Held) -> Result<bool, Error> {
        let Some((record, id)) = self.record.as_ref().and_then(|it| Some((it, it.spec.id?))) else {
            return Ok(false);
        };
        let directory = Directory::of(id);
        if directory.is_whole(record.spec.policy.is_some()) {
            return Ok(false);
        }
        let control = self.control.try_clone().map_err(Error::doing("the driver"))?;
        let found = Control::of(control)?.find(id)?;
        // Whoever removes a device stops it first.
        let lives = found
            .is_some_and(|found| found.made == record.made && found.state != DeviceState::Dead);
        if lives {
            directory
                .put_back(record, &self.state, held)
                .map_err(Error::doing(format!("{} is gone", directory.path().display())))?;
        }
        Ok(lives)
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == std::io::ErrorKind::NotFound
}
