struct Mine(Vec<u8>);

impl handoff::IoBuf for Mine {
    fn stable_ptr(&mut self) -> std::ptr::NonNull<u8> {
        std::ptr::NonNull::from(&self.0[..]).cast()
    }

    fn stable_len(&self) -> usize {
        self.0.len()
    }
}

fn main() {}
