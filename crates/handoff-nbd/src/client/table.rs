//! Requests under way, by their cookies.
//!
//! A cookie has the number of its place and how often that place was used, so a reply to an earlier request matches no
//! later one, until a place was used 2^32 times.

use super::coverage::Coverage;
use crate::request::Request;
use crate::wire::{ErrorCode, Printable};

/// The client's number for a request under way on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(u64);

impl Cookie {
    /// As it goes over the connection.
    pub fn number(self) -> u64 {
        self.0
    }

    fn new(place: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(place))
    }

    fn place(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// Why a server did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server fails the request with error {}{}", u32::from(*.error), said(.text))]
pub struct Failure {
    /// Its error.
    pub error: ErrorCode,
    /// Where in the export, if it told.
    pub offset: Option<u64>,
    /// What it says; often nothing.
    pub text: Printable,
}

fn said(text: &Printable) -> String {
    if text.as_str().is_empty() { String::new() } else { format!(" ({text})") }
}

/// What has come of a request's reply.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) request: Request,
    pub(super) covered: Coverage,
    /// Content chunks of a read, none or some.
    pub(super) has_content: bool,
    /// Contexts whose extents have come.
    pub(super) contexts: Vec<u32>,
    pub(super) failure: Option<Failure>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    open: Option<Open>,
}

/// The table. It has as many places as requests may be under way.
#[derive(Debug)]
pub(super) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

impl Table {
    pub(super) fn new(places: u32) -> Self {
        Self {
            places: (0..places).map(|_| Place::default()).collect(),
            free: (0..places).rev().collect(),
        }
    }

    pub(super) fn open(&mut self, request: Request) -> Option<Cookie> {
        let place = self.free.pop()?;
        let at = &mut self.places[place as usize];
        let (covered, contexts) = (Coverage::default(), Vec::new());
        at.open = Some(Open { request, covered, has_content: false, contexts, failure: None });
        Some(Cookie::new(place, at.generation))
    }

    /// The request of a cookie that came from the server.
    pub(super) fn get(&mut self, number: u64) -> Option<(Cookie, &mut Open)> {
        let cookie = Cookie(number);
        let place = self.places.get_mut(cookie.place())?;
        if u64::from(place.generation) != number >> 32 {
            return None;
        }
        Some((cookie, place.open.as_mut()?))
    }

    pub(super) fn close(&mut self, cookie: Cookie) -> Option<Open> {
        self.get(cookie.0)?;
        let place = &mut self.places[cookie.place()];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(u32::try_from(cookie.place()).expect("is a place"));
        place.open.take()
    }

    /// All that are under way.
    pub(super) fn cookies(&self) -> impl Iterator<Item = Cookie> {
        let numbered = (0..).zip(&self.places).filter(|(_, place)| place.open.is_some());
        numbered.map(|(number, place)| Cookie::new(number, place.generation))
    }
}
