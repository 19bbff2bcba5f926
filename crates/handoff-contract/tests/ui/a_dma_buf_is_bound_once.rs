//! Two queues would each put bytes over what the other's spans hold.

fn bind(driver: &handoff::Driver, memory: handoff::DmaBuf, binding: &handoff::RxBinding) {
    let _first = driver.dma_buf_queue(memory, binding);
    let _second = driver.dma_buf_queue(memory, binding);
}

fn main() {}
