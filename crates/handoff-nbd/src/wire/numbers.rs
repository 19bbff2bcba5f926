//! Numbers with names: options, their replies, information, commands, errors, chunks.

/// An enumeration of known numbers, with one variant that keeps all others.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident: $int:ty { $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
            /// Another number, as it came.
            Other($int),
        }

        impl From<$int> for $name {
            fn from(number: $int) -> Self {
                match number {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }

        impl From<$name> for $int {
            fn from(named: $name) -> Self {
                match named {
                    $($name::$variant => $value,)*
                    $name::Other(other) => other,
                }
            }
        }
    };
}

numbers! {
    /// An option of a client, during negotiation.
    OptionCode: u32 {
        /// Chooses an export; nothing can be refused but by closing the connection.
        ExportName = 1,
        /// Ends the negotiation.
        Abort = 2,
        /// Asks for the names of all exports.
        List = 3,
        /// Starts TLS.
        StartTls = 5,
        /// Asks about an export.
        Info = 6,
        /// Asks about an export, and chooses it.
        Go = 7,
        /// Replies come in chunks.
        StructuredReply = 8,
        /// Asks which metadata contexts an export has.
        ListMetaContext = 9,
        /// Chooses metadata contexts.
        SetMetaContext = 10,
        /// Headers have 64 bits; replies come in chunks.
        ExtendedHeaders = 11,
        /// Names the client's session ([`Session`](super::Session)). It is ours: its number spells "hand", far from those
        /// that the protocol gives out in order, and other servers answer that they do not know it.
        Session = 0x6861_6e64,
    }
}

numbers! {
    /// A server's reply to an option. Errors have bit 31.
    OptionReply: u32 {
        /// The option is accepted, and this was its last reply.
        Ack = 1,
        /// The name of an export.
        Server = 2,
        /// Information about an export.
        Info = 3,
        /// A metadata context.
        MetaContext = 4,
        /// The server's instance, the reply to [`OptionCode::Session`].
        Session = 0x6861_6e64,
        /// The option is not known.
        ErrUnsup = 0x8000_0001,
        /// The server's policy forbids it.
        ErrPolicy = 0x8000_0002,
        /// The option breaks the protocol.
        ErrInvalid = 0x8000_0003,
        /// The server's platform cannot.
        ErrPlatform = 0x8000_0004,
        /// TLS must come first.
        ErrTlsReqd = 0x8000_0005,
        /// There is no such export.
        ErrUnknown = 0x8000_0006,
        /// The server is about to end.
        ErrShutdown = 0x8000_0007,
        /// The client must ask for the block sizes first.
        ErrBlockSizeReqd = 0x8000_0008,
        /// The option or its reply is too large.
        ErrTooBig = 0x8000_0009,
        /// Extended headers must come first.
        ErrExtHeaderReqd = 0x8000_000a,
    }
}

impl OptionReply {
    /// Whether the reply refuses its option.
    pub fn is_error(self) -> bool {
        u32::from(self) >> 31 != 0
    }
}

numbers! {
    /// What is told about an export.
    InfoType: u16 {
        /// Size and flags.
        Export = 0,
        /// The name that the server has for it.
        Name = 1,
        /// A text for people.
        Description = 2,
        /// Block sizes.
        BlockSize = 3,
    }
}

numbers! {
    /// What a request asks for.
    Command: u16 {
        /// Bytes.
        Read = 0,
        /// The bytes behind the header are to be stored.
        Write = 1,
        /// The end of the connection.
        Disconnect = 2,
        /// All answered writes are to be on stable storage.
        Flush = 3,
        /// Bytes are no longer needed.
        Trim = 4,
        /// Bytes will be read soon.
        Cache = 5,
        /// Zeroes are to be stored.
        WriteZeroes = 6,
        /// Which extents are allocated.
        BlockStatus = 7,
    }
}

numbers! {
    /// What a chunk of a reply brings. Errors have bit 15.
    ChunkType: u16 {
        /// Nothing: the end of a reply.
        None = 0,
        /// Bytes, at an offset.
        OffsetData = 1,
        /// Zeroes, at an offset.
        OffsetHole = 2,
        /// Extents of a context, in 32 bits.
        BlockStatus = 5,
        /// Extents of a context, in 64 bits.
        BlockStatusExt = 6,
        /// An error.
        Error = 0x8001,
        /// An error, at an offset.
        ErrorOffset = 0x8002,
    }
}

impl ChunkType {
    /// Whether the chunk says that its request failed.
    pub fn is_error(self) -> bool {
        u16::from(self) >> 15 != 0
    }
}

numbers! {
    /// The errors that a reply can carry. Their numbers are those of Linux's errno.
    ErrorCode: u32 {
        /// Not permitted.
        Perm = 1,
        /// The disk failed.
        Io = 5,
        /// No memory.
        NoMem = 12,
        /// The request is wrong.
        Inval = 22,
        /// No space, or beyond the export's end.
        NoSpc = 28,
        /// Too large.
        Overflow = 75,
        /// Not supported.
        NotSup = 95,
        /// The server is about to end.
        Shutdown = 108,
    }
}

impl ErrorCode {
    /// As an errno of Linux. What the protocol does not name counts as `EINVAL`.
    pub fn errno(self) -> i32 {
        match self {
            Self::Perm => 1,
            Self::Io => 5,
            Self::NoMem => 12,
            Self::Inval | Self::Other(_) => 22,
            Self::NoSpc => 28,
            Self::Overflow => 75,
            Self::NotSup => 95,
            Self::Shutdown => 108,
        }
    }

    /// The error that tells a client of an errno of Linux. `EDQUOT` and `EFBIG` are a lack of space, `EACCES` and `EROFS`
    /// of permission, and what the protocol has no number for is [`ErrorCode::Io`].
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            1 | 13 | 30 => Self::Perm,
            12 => Self::NoMem,
            22 => Self::Inval,
            27 | 28 | 122 => Self::NoSpc,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Io,
        }
    }
}
