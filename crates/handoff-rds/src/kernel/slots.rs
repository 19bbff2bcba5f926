//! Payloads on loan to the kernel, each under its number.

use crate::completion::Completion;

/// A message whose payload the kernel may read.
struct Lent<P> {
    completion: Completion<P>,
    /// Still inside the system call that sends it.
    sending: bool,
    /// The kernel has reported its completion.
    completed: bool,
}

/// A number names a place, and is used again once its payload is back. So the kernel never has a number
/// twice, whatever cookies the application chooses.
pub(super) struct Slots<P> {
    places: Vec<Option<Lent<P>>>,
    free: Vec<u32>,
}

impl<P> Slots<P> {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(super) fn lent(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Keeps a message that is about to be sent.
    pub(super) fn begin(&mut self, completion: Completion<P>) -> u32 {
        let lent = Some(Lent { completion, sending: true, completed: false });
        match self.free.pop() {
            Some(slot) => {
                self.places[slot as usize] = lent;
                slot
            }
            None => {
                self.places.push(lent);
                u32::try_from(self.places.len() - 1).expect("send buffers end long before")
            }
        }
    }

    /// The system call has returned. The message is back already if its completion came first, or if it was
    /// refused.
    pub(super) fn sent(&mut self, slot: u32, accepted: bool) -> Option<Completion<P>> {
        let lent = self.places[slot as usize].as_mut().expect("stays while it is being sent");
        lent.sending = false;
        let back = lent.completed || !accepted;
        back.then(|| self.take(slot))
    }

    /// The kernel reports a completion. `None` if the sender will find it, and for a number that is not on
    /// loan, which would be a kernel bug.
    pub(super) fn complete(&mut self, slot: u32) -> Option<Completion<P>> {
        let lent = self.places.get_mut(slot as usize)?.as_mut()?;
        lent.completed = true;
        let back = !lent.sending;
        back.then(|| self.take(slot))
    }

    fn take(&mut self, slot: u32) -> Completion<P> {
        self.free.push(slot);
        self.places[slot as usize].take().expect("looked at before").completion
    }

    /// Leaks all payloads on loan.
    pub(super) fn leak(&mut self) {
        self.places.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use handoff::Tally;

    use super::*;
    use crate::End;

    fn message(cookie: u32) -> Completion<u32> {
        let to = ([10, 0, 0, 1], 1).into();
        Completion { payload: cookie, cookie, to, end: End::Acknowledged, tally: Tally::default() }
    }

    #[test]
    fn a_payload_is_back_once_and_not_while_it_is_being_sent() {
        let mut slots = Slots::new();
        let [first, second, third] = [7, 7, 9].map(|cookie| slots.begin(message(cookie)));
        assert!(slots.sent(first, true).is_none());
        assert!(slots.complete(second).is_none(), "it is being sent");
        assert_eq!(slots.sent(second, true).unwrap().payload, 7);
        assert_eq!(slots.sent(third, false).unwrap().payload, 9);
        assert!(slots.complete(third).is_none(), "it was refused");
        assert_eq!(slots.complete(first).unwrap().payload, 7);
        assert!(slots.complete(first).is_none());
        assert!(slots.complete(400).is_none());
        assert_eq!(slots.lent(), 0);
        assert!([first, second, third].contains(&slots.begin(message(1))));
    }
}
