//! What the copy meter saw, assigned to the hops of a chain by the callers of the copying function.

use handoff_meter::{Meter, Options, Place, Scope, Totals};

/// A part of the bytes' way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A block device hands out what it has read.
    DeviceRead,
    /// A file's bytes go into the memory of a program, or into its ring.
    FileRead,
    /// A socket takes the bytes.
    Send,
    /// A socket hands out the bytes.
    Receive,
    /// A file takes the bytes.
    FileWrite,
    /// A block device takes what it has to write.
    DeviceWrite,
}

impl Part {
    /// All parts in the order of asking: a block device's server reads and writes files, too.
    const ALL: [Self; 6] = [
        Self::DeviceRead,
        Self::DeviceWrite,
        Self::Send,
        Self::Receive,
        Self::FileRead,
        Self::FileWrite,
    ];

    /// The beginnings of kernel functions' names; one of these functions is on the way to each copy of this part.
    fn functions(self) -> &'static [&'static str] {
        match self {
            // The server's end is a character device.
            Self::DeviceRead => &["ublk_ch_write_iter"],
            Self::DeviceWrite => &["ublk_ch_read_iter"],
            Self::Send => &["tcp_sendmsg", "rds_sendmsg", "skb_copy_ubufs"],
            Self::Receive => &["tcp_recvmsg", "rds_recvmsg", "io_zcrx_", "io_recvzc"],
            // Programs read files with or without a ring. Starting programs, and what they look up, use
            // read(2), which is left out.
            Self::FileRead => &["io_read", "__x64_sys_pread", "filemap_splice_read"],
            Self::FileWrite => &["io_write", "__x64_sys_pwrite"],
        }
    }

    fn is_of(self, place: &Place) -> bool {
        std::iter::once(&place.function).chain(&place.path).any(|function| {
            self.functions().iter().any(|beginning| function.starts_with(beginning))
        })
    }
}

/// The copy meter, which counts the copies of this process and of all that it starts; or why it cannot count.
pub(super) struct Witness(Result<Meter, String>);

/// What a witness saw.
#[derive(Debug)]
pub(super) struct Seen {
    by_part: Vec<(Part, u64)>,
    /// Bytes copied for no hop, such as by starting the programs.
    pub(super) elsewhere: u64,
    /// Bytes that the kernel's own threads copied, for unknown parties.
    pub(super) by_kernel_threads: u64,
}

impl Witness {
    /// Begins to count. Without permission it counts nothing, and gives the reason.
    pub(super) fn new() -> Self {
        let options = Options { scope: Scope::Tree(std::process::id()), paths: true, libc: false };
        Self(Meter::attach_with(options).map_err(|error| error.to_string()))
    }

    /// What was copied since the witness began.
    pub(super) fn read(&self) -> Result<Seen, String> {
        let meter = self.0.as_ref().map_err(String::clone)?;
        let report = meter.read().map_err(|error| error.to_string())?;
        Ok(Seen::new(&report.places, report.totals))
    }
}

impl Seen {
    fn new(places: &[Place], totals: Totals) -> Self {
        let mut by_part = Part::ALL.map(|part| (part, 0)).to_vec();
        let mut elsewhere = 0;
        for place in places {
            match by_part.iter_mut().find(|(part, _)| part.is_of(place)) {
                Some((_, bytes)) => *bytes += place.bytes,
                None => elsewhere += place.bytes,
            }
        }
        Self { by_part, elsewhere, by_kernel_threads: totals.unattributed_bytes }
    }

    /// The bytes copied on this part of the way.
    pub(super) fn on(&self, part: Part) -> u64 {
        self.by_part.iter().find(|(of, _)| *of == part).map_or(0, |(_, bytes)| *bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_dealt_out_by_their_callers() {
        let place = |function: &str, path: &[&str], bytes| Place {
            function: function.to_owned(),
            path: path.iter().map(|caller| (*caller).to_owned()).collect(),
            bytes,
            calls: 1,
        };
        let places = [
            place("_copy_from_iter", &["skb_do_copy_data_nocache", "tcp_sendmsg_locked"], 1),
            place("skb_copy_ubufs", &["skb_orphan_frags_rx"], 2),
            place("_copy_to_iter", &["ublk_copy_user_pages", "ublk_ch_read_iter"], 4),
            place("_copy_to_iter", &["copy_page_to_iter", "filemap_read", "io_read"], 8),
            place("_copy_to_iter", &["copy_page_to_iter", "filemap_read", "ksys_read"], 128),
            place("copy_mc_to_kernel", &["do_wp_page"], 16),
            place("_copy_to_iter", &[], 32),
        ];
        let totals = Totals { unattributed_bytes: 64, ..Totals::default() };
        let seen = Seen::new(&places, totals);
        assert_eq!(seen.on(Part::Send), 3);
        assert_eq!(seen.on(Part::DeviceWrite), 4);
        assert_eq!(seen.on(Part::FileRead), 8);
        assert_eq!(seen.on(Part::FileWrite), 0);
        assert_eq!((seen.elsewhere, seen.by_kernel_threads), (176, 64));
    }
}
