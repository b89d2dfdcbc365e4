//! What the file system under a database allows.

use std::path::Path;

/// File systems whose clients share neither memory nor reliable locks: `f_type` of statfs(2) and a name.
const NETWORK: [(u64, &str); 13] = [
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
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
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

/// What is said of the database at `path` on the network file system of this name.
pub(crate) fn notice(path: &Path, name: &str) -> String {
    format!(
        "{} is on {name}, which has no reliable locks: one process at a time may use it. A local --db is faster and can be \
         shared.",
        path.display()
    )
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

    /// The numbers are those of statfs(2) and of the kernel's `linux/magic.h`; those of Lustre, GPFS and BeeGFS, which are
    /// not in the kernel, are those that GNU coreutils' `stat -f` names.
    #[test]
    fn network_file_systems_are_known_by_their_magic_numbers_and_local_ones_are_none() {
        for (magic, expected) in [
            (0x6969, "NFS"),
            (0xFF53_4D42, "CIFS"),
            (0xFE53_4D42, "SMB"),
            (0x517B, "SMB"),
            (0x6573_5546, "FUSE"),
            (0x0102_1997, "9P"),
            (0x00C3_6400, "Ceph"),
            (0x0BD0_0BD0, "Lustre"),
            (0x4750_4653, "GPFS"),
            (0x5346_414F, "AFS"),
            (0x6B41_4653, "AFS"),
            (0x7375_7245, "Coda"),
            (0x1983_0326, "BeeGFS"),
        ] {
            assert_eq!(name(magic), Some(expected), "{magic:#x}");
        }
        let local = [
            ("ext4", 0xEF53),
            ("tmpfs", 0x0102_1994),
            ("xfs", 0x5846_5342),
            ("btrfs", 0x9123_683E),
            ("overlayfs", 0x794C_7630),
            ("f2fs", 0xF2F5_2010),
            ("ZFS", 0x2FC1_2FC1),
        ];
        for (known_as, magic) in local {
            assert_eq!(name(magic), None, "{known_as}");
        }
    }

    #[test]
    fn a_database_on_a_network_file_system_is_said_to_be_for_one_process() {
        let said = notice(Path::new("/mnt/share/nvkv.sqlite"), "NFS");
        assert!(said.contains("/mnt/share/nvkv.sqlite is on NFS") && said.contains("one process"), "{said}");
        assert!(said.contains("--db"), "the next step: {said}");
    }

    #[test]
    fn a_bare_name_lies_in_the_current_folder() {
        assert_eq!(folder(Path::new("a.sqlite")), Path::new("."));
        assert_eq!(folder(Path::new("x/a.sqlite")), Path::new("x"));
    }
}
