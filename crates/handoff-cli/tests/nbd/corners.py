# Corners of the protocol, by libnbd's shell: the variable `uri` names an export of 1003520 zeroes.
import errno

h.set_strict_mode(0)
h.add_meta_context("base:allocation")
h.connect_uri(uri)
assert h.get_size() == 1003520
h.pwrite(b"a" * 5000, 3)
h.pwrite(b"b" * 3, 1000000, nbd.CMD_FLAG_FUA)

# Chunks, with holes, and one chunk where the client wants that.
chunks = []
seen = lambda buf, offset, kind, error: chunks.append((len(buf), offset, kind))
got = bytes(h.pread_structured(200000, 0, seen))
assert got == b"\0" * 3 + b"a" * 5000 + b"\0" * 194997
assert nbd.READ_HOLE in [kind for _, _, kind in chunks], chunks
chunks.clear()
assert bytes(h.pread_structured(200000, 0, seen, nbd.CMD_FLAG_DF)) == got
assert chunks == [(200000, 0, nbd.READ_DATA)], chunks

# Extents cover the export, or one is enough.
extents = []
told = lambda context, offset, entries, error: extents.append((context, offset, list(entries)))
h.block_status(1003520, 0, told)
(context, offset, entries), = extents
assert (context, offset, sum(entries[::2])) == ("base:allocation", 0, 1003520), extents
assert set(entries[1::2]) == {0, 3}, extents
extents.clear()
h.block_status(1003520, 0, told, nbd.CMD_FLAG_REQ_ONE)
assert len(extents[0][2]) == 2, extents

# Zeroes and trim of parts of blocks.
h.zero(100000, 10, nbd.CMD_FLAG_FAST_ZERO)
h.zero(5, 5, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert bytes(h.pread(6000, 0)) == b"\0" * 3 + b"a" * 2 + b"\0" * 5995
h.trim(900000, 77)
h.flush()

for ask, wanted in (
    (lambda: h.pwrite(b"x" * 10, 1003515), errno.ENOSPC),
    (lambda: h.pread(10, 1003515), errno.EINVAL),
    (lambda: h.cache(10, 0), errno.EINVAL),
    (lambda: h.trim(0, 0), errno.EINVAL),
):
    try:
        ask()
    except nbd.Error as error:
        assert error.errnum == wanted, (error.errnum, error.string)
    else:
        raise AssertionError("is not refused")
assert bytes(h.pread(3, 1000000)) == b"bbb"

# Many at once, each on two blocks that its neighbours write, too.
piece = lambda number: bytes([number]) * 4097
under_way = [
    h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(piece(number))), number * 4097)
    for number in range(64)
]
while under_way:
    h.poll(-1)
    under_way = [cookie for cookie in under_way if not h.aio_command_completed(cookie)]
for number in range(64):
    assert bytes(h.pread(4097, number * 4097)) == piece(number), number
h.shutdown()
print("all corners are as they should be")
