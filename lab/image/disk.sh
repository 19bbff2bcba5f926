
# The root file system in $1 becomes the disk image $2.
image=$2

# Every guest writes to a throw-away copy, so a journal would only cost time; the inode tables are
# written here, so that no kernel thread does it while something is measured.
rm -f "$image"
mke2fs -q -t ext4 -L handoff-root -m 0 -i 65536 -O '^has_journal,^resize_inode' \
    -E lazy_itable_init=0,nodiscard -d "$1" "$image" 4G
