//! Constants of PF_RDS.
//!
//! Kernel interface: `include/uapi/linux/rds.h`.

/// `PF_RDS`.
pub const PF_RDS: i32 = 21;
/// `SOL_RDS`.
pub const SOL_RDS: i32 = 276;
/// `SO_RDS_TRANSPORT`: which transport carries a socket that is not bound yet.
pub const SO_RDS_TRANSPORT: i32 = 8;
/// `RDS_TRANS_TCP`.
pub const TRANS_TCP: i32 = 2;
