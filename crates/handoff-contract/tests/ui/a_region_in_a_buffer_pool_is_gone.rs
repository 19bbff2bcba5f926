fn cut(mut region: handoff::Region) {
    let pool = handoff::BufferPool::new(region, 4096).unwrap();
    let buffer = region.take(4096);
    drop((pool, buffer));
}

fn main() {}
