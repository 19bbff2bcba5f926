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
    pub(crate) stage: Stage,
}

/// Declares the stages that have a name, each with its bits in user data.
macro_rules! stages {
    ($($(#[$about:meta])* $name:ident = $bits:literal,)*) => {
        /// What a completion is about in an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Stage {
            /// A zero-copy attempt of a send: its number, below [`ATTEMPTS`](Self::ATTEMPTS).
            Attempt(u8),
            $($(#[$about])* $name,)*
        }

        impl Stage {
            #[cfg(test)]
            const NAMED: &'static [Self] = &[$(Self::$name),*];

            #[inline]
            const fn bits(self) -> u8 {
                match self {
                    Self::Attempt(number) => number,
                    $(Self::$name => $bits,)*
                }
            }

            #[inline]
            const fn from_bits(bits: u8) -> Self {
                match bits {
                    $($bits => Self::$name,)*
                    number => Self::Attempt(number),
                }
            }
        }

        $(const _: () = assert!(Stage::$name.bits() >= Stage::ATTEMPTS, "an attempt has them");)*
    };
}

stages! {
    /// A call about a file or a name.
    FileCall = 0xef,
    /// A request that the program made.
    Raw = 0xf0,
    /// A look at a parked connection.
    Look = 0xf1,
    /// The answer to a lane's cancellation.
    LaneCancel = 0xf2,
    /// The answer to a cancellation.
    Cancel = 0xf3,
    /// A multishot accept.
    Accept = 0xf4,
    /// A lane's wait for room.
    LaneReady = 0xf5,
    /// A request of a lane.
    Lane = 0xf6,
    /// A request of a block device.
    Request = 0xf7,
    /// The clearing of a slot.
    Clear = 0xf8,
    /// A lend of a buffer of the kernel.
    Get = 0xf9,
    /// An event of an rx queue.
    RxEvent = 0xfa,
    /// A multishot receive.
    Receive = 0xfb,
    /// A read or write of a file.
    Transfer = 0xfc,
    /// An event of the error queue.
    Return = 0xfd,
    /// The plain send of a header that goes before a lent payload.
    Header = 0xfe,
    /// A readiness event.
    Ready = 0xff,
}

impl Stage {
    /// Attempts of a send have the numbers below this one.
    pub(crate) const ATTEMPTS: u8 = 0xef;
}

/// User data of requests whose completion tells nothing.
pub(crate) const DETACHED: u64 = u64::MAX;
/// User data of the wake-up event.
pub(crate) const WAKE: u64 = u64::MAX - 1;
/// User data of the alarm for deadlines.
pub(crate) const ALARM: u64 = u64::MAX - 2;

impl Token {
    /// User data of events of the driver's rx queue with this number; no record waits for them.
    pub(crate) fn of_rx_queue(number: u32) -> Self {
        Self { key: Key { index: number, generation: 0 }, stage: Stage::RxEvent }
    }

    /// The argument of [`of_rx_queue`](Self::of_rx_queue).
    pub(crate) fn rx_queue(self) -> usize {
        self.key.index as usize
    }

    /// User data of the look with this number at a parked connection; no record waits for it.
    pub(crate) fn of_look(number: u32) -> Self {
        Self { key: Key { index: number, generation: 0 }, stage: Stage::Look }
    }

    /// The argument of [`of_look`](Self::of_look).
    pub(crate) fn look(self) -> usize {
        self.key.index as usize
    }

    /// User data of the clearing of a slot in the table of buffers; no record waits for it.
    pub(crate) fn of_slot(slot: u16) -> Self {
        Self { key: Key { index: slot.into(), generation: 0 }, stage: Stage::Clear }
    }

    /// The argument of [`of_slot`](Self::of_slot).
    pub(crate) fn slot(self) -> u16 {
        self.key.index as u16
    }

    /// User data of a tag of the driver's block queue with this number; no record waits for it.
    pub(crate) fn of_request(queue: u16, tag: u16) -> Self {
        let index = u32::from(queue) << 16 | u32::from(tag);
        Self { key: Key { index, generation: 0 }, stage: Stage::Request }
    }

    /// The arguments of [`of_request`](Self::of_request).
    pub(crate) fn request(self) -> (u16, u16) {
        ((self.key.index >> 16) as u16, self.key.index as u16)
    }

    /// User data of a place of the driver's lane with this number; no record waits for it.
    pub(crate) fn of_lane(lane: u16, place: u16, generation: u32) -> Self {
        let index = u32::from(lane) << 16 | u32::from(place);
        Self { key: Key { index, generation: generation % GENERATIONS }, stage: Stage::Lane }
    }

    /// User data of such a place's wait for room.
    pub(crate) fn of_lane_readiness(self) -> Self {
        Self { stage: Stage::LaneReady, ..self }
    }

    /// User data of the cancellation of this request.
    pub(crate) fn of_cancel(self) -> Self {
        let stage = match self.stage {
            Stage::Lane | Stage::LaneReady => Stage::LaneCancel,
            _ => Stage::Cancel,
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

    #[inline]
    pub(crate) fn to_user_data(self) -> u64 {
        u64::from(self.key.index)
            | (u64::from(self.stage.bits()) << 32)
            | (u64::from(self.key.generation) << 40)
    }

    #[inline]
    pub(crate) fn from_user_data(data: u64) -> Self {
        let key = Key { index: data as u32, generation: (data >> 40) as u32 };
        Self { key, stage: Stage::from_bits((data >> 32) as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_trip_through_user_data() {
        let last = GENERATIONS - 1;
        let attempts = (0..Stage::ATTEMPTS).map(Stage::Attempt);
        for stage in attempts.chain(Stage::NAMED.iter().copied()) {
            for (index, generation) in [(0, 0), (7, 9), (u32::MAX - 3, last), (0, last)] {
                let token = Token { key: Key { index, generation }, stage };
                assert_eq!(Token::from_user_data(token.to_user_data()), token);
                assert!(![DETACHED, WAKE, ALARM].contains(&token.to_user_data()));
            }
        }
    }
}
