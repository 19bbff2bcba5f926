//! Zero-copy receive on the lab's software NIC: what arrives, what is copied, and what happens to chunks,
//! queues and receivers when things go wrong.

mod receiving;
mod testbed;

mod guest {
    mod arriving;
    mod copied;
    mod dma_buf;
    mod endings;
    mod fixture;
    mod refused;
    mod send_spans;
    mod sharing;
    mod spans;
}

mod linux73 {
    mod growing;
}
