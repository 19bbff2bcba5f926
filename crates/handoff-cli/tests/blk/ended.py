# In a guest that is ended at any moment: starts a mirror of two disks from its records, or makes it, compares the legs,
# and what was written and flushed before; then writes on, while fio writes and checks the rest of the device. The arguments
# are the engine and the last number that the guest before told ("none" makes the mirror).
import mmap, os, subprocess, sys

BLOCK, BLOCKS = 4096, 256
engine, last = sys.argv[1:]
legs = [os.path.realpath(f"/dev/disk/by-id/virtio-{name}") for name in ("one", "two")]
subprocess.run(["modprobe", "ublk_drv"], check=True)
create = ["--create"] if last == "none" else []
subprocess.run(["handoff", "blk", "add", "mirror", *create, *legs, "--id", "0", "--engine", engine],
    check=True, stdout=subprocess.DEVNULL)
disk = os.open("/dev/ublkb0", os.O_RDWR | os.O_DIRECT)
size = os.lseek(disk, 0, os.SEEK_END)
subprocess.run(["handoff", "blk", "show", "0"], check=True, stdout=subprocess.DEVNULL)
subprocess.run(["cmp", "-n", str(size), *legs], check=True)
buffer = mmap.mmap(-1, BLOCK)
next = 1
if last != "none":
    last = int(last)
    for block in range(BLOCKS):
        os.preadv(disk, [buffer], block * BLOCK)
        number = int.from_bytes(buffer[:8], "little")
        told = last - (last - block) % BLOCKS
        # What was under way may be there, or not.
        if number != max(told, 0) and number <= last:
            sys.exit(f"block {block} has {number}, and {told} was written and flushed")
        next = max(next, number + 1, last + 1)
load = subprocess.Popen([
    "fio", "--name=load", f"--filename=/dev/ublkb0", "--allow_file_create=0", "--ioengine=libaio", "--direct=1",
    "--rw=randrw", "--bsrange=4k-256k", "--iodepth=8", "--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1",
    "--offset=1m", "--time_based", "--runtime=600", "--rate_iops=150",
], stdout=sys.stderr)
print("begins", flush=True)
while load.poll() is None:
    buffer[:8] = next.to_bytes(8, "little")
    os.pwritev(disk, [buffer], next % BLOCKS * BLOCK)
    os.fdatasync(disk)
    print(next, flush=True)
    next += 1
sys.exit("fio ended")
