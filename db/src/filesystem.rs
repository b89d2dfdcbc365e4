//! What the file system under a database allows.

use std::path::Path;

/// File systems whose clients share neither memory nor reliable locks: `f_type` of statfs(2) and a name.
const NETWORK: [(u64, &str); 11] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x6573_5546, "FUSE"), // sshfs and its like; statfs does not say which
    (0x0102_1997, "9P"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x1983_0326, "BeeGFS"),
];

/// The network file system that `folder` is on, if it is on one.
#[cfg(target_os = "linux")]
pub(crate) fn network(folder: &Path) -> Option<&'static str> {
    // The kernel's field is signed on some machines: only its low 32 bits are the magic number.
    name(u64::from(rustix::fs::statfs(folder).ok()?.f_type as u32))
}

/// The network file system that `folder` is on: told apart on Linux only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn network(_folder: &Path) -> Option<&'static str> {
    None
}

fn name(f_type: u64) -> Option<&'static str> {
    NETWORK.iter().find(|(magic, _)| *magic == f_type).map(|(_, name)| *name)
}

/// Whether files may be made in `folder`.
pub(crate) fn writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

/// The folder that holds `path`.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magic_numbers_are_those_of_statfs() {
        // From statfs(2); ext4 and tmpfs are local.
        for (magic, expected) in [
            (0x6969, Some("NFS")),
            (0xff53_4d42, Some("CIFS")),
            (0x6573_5546, Some("FUSE")),
            (0xef53, None),
            (0x0102_1994, None),
        ] {
            assert_eq!(name(magic), expected, "{magic:#x}");
        }
    }

    #[test]
    fn a_bare_name_lies_in_the_current_folder() {
        assert_eq!(folder(Path::new("a.sqlite")), Path::new("."));
        assert_eq!(folder(Path::new("x/a.sqlite")), Path::new("x"));
    }
}
