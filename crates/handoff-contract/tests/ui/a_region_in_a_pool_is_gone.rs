fn cut(driver: &handoff::Driver, mut region: handoff::Region) {
    let _pool = driver.pool(region, 4096);
    let _buffer = region.take(1);
}

fn main() {}
