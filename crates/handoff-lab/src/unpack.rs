//! The kernel out of its compressed image, as the ELF file that it was linked as.
//!
//! A compressed image unpacks itself as it boots, which takes an emulator up to a second. QEMU boots the ELF file
//! as well, if it has the entry of `CONFIG_PVH`. Format: `Documentation/arch/x86/boot.rst`, of the kernel.

use std::fs;
use std::path::Path;

use crate::error::{Result, Trying};
use crate::tool::{self, StopFlag};

/// Puts the ELF file beside the image, at `to`, if the image is packed by xz or zstd.
///
/// # Errors
///
/// If the image is damaged, or the program that unpacks it is missing.
pub(crate) fn unpack(image: &Path, to: &Path, stop: &StopFlag) -> Result<()> {
    let bytes = fs::read(image).trying(image.display())?;
    let Some((packed, program, suffix)) = payload(&bytes) else { return Ok(()) };
    let file = to.with_extension(suffix);
    fs::write(&file, packed).trying(file.display())?;
    let mut unpack = tool::command(program);
    unpack.args(["--decompress", "--quiet", "--"]).arg(&file);
    tool::run(unpack, stop, |_| {})?;
    // zstd keeps it.
    match fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).trying(file.display())
        }
        _ => Ok(()),
    }
}

/// The compressed kernel in an image, what unpacks it, and the end of such a file's name.
fn payload(image: &[u8]) -> Option<(&[u8], &'static str, &'static str)> {
    let word = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    // The real-mode code comes first: a boot sector and so many more.
    let code = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let (offset, length) = (word(0x248)?, word(0x24c)?);
    // Its size unpacked, in four bytes, comes last.
    let payload = image.get(code + offset..code + offset + length.checked_sub(4)?)?;
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some((payload, "xz", "xz")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some((payload, "zstd", "zst")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image with these bytes in place of the compressed kernel, and of what follows it.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 2 * 512 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(payload);
        image.extend([0; 100]);
        image
    }

    #[test]
    fn what_was_packed_comes_out() {
        let place = tempfile::tempdir().expect("a directory");
        let place = place.path();
        fs::write(place.join("kernel"), b"a kernel").expect("is written");
        let mut pack = tool::command("xz");
        pack.arg("--keep").arg(place.join("kernel"));
        tool::run(pack, &StopFlag::default(), |_| {}).expect("packs");
        let packed = fs::read(place.join("kernel.xz")).expect("is there");
        fs::write(place.join("vmlinuz"), image(&[&packed[..], &[8, 0, 0, 0]].concat())).unwrap();

        let to = place.join("vmlinux");
        unpack(&place.join("vmlinuz"), &to, &StopFlag::default()).expect("unpacks");
        assert_eq!(fs::read(to).expect("is there"), b"a kernel");
        let mut left: Vec<_> =
            fs::read_dir(place).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["kernel", "kernel.xz", "vmlinux", "vmlinuz"]);
    }

    #[test]
    fn what_is_no_image_is_none() {
        let good = image(b"\x28\xb5\x2f\xfd and more");
        assert_eq!(payload(&good), Some((&b"\x28\xb5\x2f\xfd and "[..], "zstd", "zst")));
        assert_eq!(payload(&image(b"another way to pack")), None);
        assert_eq!(payload(&image(b"")), None);
        for end in [0, 0x205, 0x24e, 2 * 512 + 20] {
            assert_eq!(payload(&good[..end]), None, "{end}");
        }
        let mut other = good;
        other[0x202] = 0;
        assert_eq!(payload(&other), None);
    }
}
