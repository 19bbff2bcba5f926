//! What a completion is about, encoded in the user data of its request.

/// Index of a record, and which use of it (24 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

pub(crate) const GENERATIONS: u32 = 1 << 24;

/// Separates generations in user data.
pub(crate) const NEXT_GENERATION: u64 = 1 << 40;

/// What a completion is about: a record and a stage of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    pub(crate) key: Key,
    pub(crate) stage: u8,
}

/// Stage of a readiness event.
pub(crate) const STAGE_READY: u8 = 0xff;
/// Stage of the plain send of a header that goes before a lent payload.
pub(crate) const STAGE_HEADER: u8 = 0xfe;
/// Stage of an event of the error queue.
pub(crate) const STAGE_RETURN: u8 = 0xfd;
/// Stage of a read or write of a file.
pub(crate) const STAGE_TRANSFER: u8 = 0xfc;
/// Stage of a multishot receive.
pub(crate) const STAGE_RECEIVE: u8 = 0xfb;
/// Stage of an event of an rx queue.
pub(crate) const STAGE_RX_EVENT: u8 = 0xfa;
/// Stage of a lend of a buffer of the kernel.
pub(crate) const STAGE_GET: u8 = 0xf9;
/// Stage of the clearing of a slot.
pub(crate) const STAGE_CLEAR: u8 = 0xf8;
/// Stage of a request of a block device.
pub(crate) const STAGE_REQUEST: u8 = 0xf7;
/// Stage of a request of a lane.
pub(crate) const STAGE_LANE: u8 = 0xf6;
/// Stage of a lane's wait for room.
pub(crate) const STAGE_LANE_READY: u8 = 0xf5;
/// Stage of a multishot accept.
pub(crate) const STAGE_ACCEPT: u8 = 0xf4;
/// Stage of the answer to a cancellation.
pub(crate) const STAGE_CANCEL: u8 = 0xf3;
/// Stage of the answer to a lane's cancellation.
pub(crate) const STAGE_LANE_CANCEL: u8 = 0xf2;
/// Stage of a look at a parked connection.
pub(crate) const STAGE_LOOK: u8 = 0xf1;
/// Stages below this one count the zero-copy attempts of a send.
pub(crate) const STAGE_ATTEMPTS: u8 = 0xf0;

/// User data of requests whose completion tells nothing.
pub(crate) const DETACHED: u64 = u64::MAX;
/// User data of the wake-up event.
pub(crate) const WAKE: u64 = u64::MAX - 1;
/// User data of the alarm for deadlines.
pub(crate) const ALARM: u64 = u64::MAX - 2;

impl Token {
    /// User data of events of the driver's rx queue with this number; no record waits for them.
    pub(crate) fn of_rx_queue(number: u32) -> Self {
        Self { key: Key { index: number, generation: 0 }, stage: STAGE_RX_EVENT }
    }

    /// The argument of [`of_rx_queue`](Self::of_rx_queue).
    pub(crate) fn rx_queue(self) -> usize {
        self.key.index as usize
    }

    /// User data of the look with this number at a parked connection; no record waits for it.
    pub(crate) fn of_look(number: u32) -> Self {
        Self { key: Key { index: number, generation: 0 }, stage: STAGE_LOOK }
    }

    /// The argument of [`of_look`](Self::of_look).
    pub(crate) fn look(self) -> usize {
        self.key.index as usize
    }

    /// User data of the clearing of a slot in the table of buffers; no record waits for it.
    pub(crate) fn of_slot(slot: u16) -> Self {
        Self { key: Key { index: slot.into(), generation: 0 }, stage: STAGE_CLEAR }
    }

    /// The argument of [`of_slot`](Self::of_slot).
    pub(crate) fn slot(self) -> u16 {
        self.key.index as u16
    }

    /// User data of a tag of the driver's block queue with this number; no record waits for it.
    pub(crate) fn of_request(queue: u16, tag: u16) -> Self {
        let index = u32::from(queue) << 16 | u32::from(tag);
        Self { key: Key { index, generation: 0 }, stage: STAGE_REQUEST }
    }

    /// The arguments of [`of_request`](Self::of_request).
    pub(crate) fn request(self) -> (u16, u16) {
        ((self.key.index >> 16) as u16, self.key.index as u16)
    }

    /// User data of a place of the driver's lane with this number; no record waits for it.
    pub(crate) fn of_lane(lane: u16, place: u16, generation: u32) -> Self {
        let index = u32::from(lane) << 16 | u32::from(place);
        Self { key: Key { index, generation: generation % GENERATIONS }, stage: STAGE_LANE }
    }

    /// User data of such a place's wait for room.
    pub(crate) fn of_lane_readiness(self) -> Self {
        Self { stage: STAGE_LANE_READY, ..self }
    }

    /// User data of the cancellation of this request.
    pub(crate) fn of_cancel(self) -> Self {
        let stage = match self.stage {
            STAGE_LANE | STAGE_LANE_READY => STAGE_LANE_CANCEL,
            _ => STAGE_CANCEL,
        };
        Self { stage, ..self }
    }

    /// The number given to [`of_lane`](Self::of_lane).
    #[inline]
    pub(crate) fn lane(self) -> usize {
        (self.key.index >> 16) as usize
    }

    /// The place given to [`of_lane`](Self::of_lane).
    #[inline]
    pub(crate) fn place(self) -> u16 {
        self.key.index as u16
    }

    /// Whether user data names another place, or another use of one, of the same lane.
    #[inline]
    pub(crate) fn is_of_same_lane(data: u64, other: u64) -> bool {
        (data ^ other) & 0xff_ffff_0000 == 0
    }

    /// Whether it belongs to a request of a send.
    #[inline]
    pub(crate) fn is_of_send(self) -> bool {
        self.stage < STAGE_ATTEMPTS || self.stage == STAGE_HEADER
    }

    #[inline]
    pub(crate) fn to_user_data(self) -> u64 {
        u64::from(self.key.index)
            | (u64::from(self.stage) << 32)
            | (u64::from(self.key.generation) << 40)
    }

    #[inline]
    pub(crate) fn from_user_data(data: u64) -> Self {
        let key = Key { index: data as u32, generation: (data >> 40) as u32 };
        Self { key, stage: (data >> 32) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_trip_through_user_data() {
        let last = GENERATIONS - 1;
        for (index, generation, stage) in
            [(0, 0, 0), (7, 9, STAGE_READY), (u32::MAX - 3, last, STAGE_READY), (0, last, 0)]
        {
            let token = Token { key: Key { index, generation }, stage };
            assert_eq!(Token::from_user_data(token.to_user_data()), token);
            assert!(![DETACHED, WAKE, ALARM].contains(&token.to_user_data()));
        }
    }
}
