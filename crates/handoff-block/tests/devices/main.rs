//! Devices on the lab's kernel: written bytes come back, lie where they should, and nothing stays behind.
//!
//! They need root and the module `ublk_drv`; elsewhere they skip.

mod guest {
    mod contents;
    mod control;
    mod device;
    mod exchange;
    mod file_systems;
    mod fixture;
    mod leases;
    mod policies;
    mod ranges;
    mod recovery;
    mod shapes;
}
