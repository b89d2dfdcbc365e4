//! Folders on a disk that may be full, read-only or shared: errors that name the next step, and
//! writing that a crash cannot leave half done.

use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A file or folder that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}; {}", path.display(), next_step(source))]
pub struct FolderError {
    /// What was tried.
    pub action: &'static str,
    /// Where.
    pub path: PathBuf,
    /// What the system says.
    #[source]
    pub source: io::Error,
}

/// Makes an I/O error say what was tried and where.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_path_buf();
    move |source| FolderError { action, path, source }
}

fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk is full: free some space or choose another disk with --out; the same command goes on from here"
        }
        ErrorKind::FileTooLarge => {
            "files may not grow so large here: raise the limit (`ulimit -f`); the same command goes on from here"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "choose a folder that you may write to with --out"
        }
        ErrorKind::IsADirectory => "a folder is in the way: move it or choose another --out",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => "a file is in the way: move it or choose another --out",
        _ => "check the path, or choose another with --out",
    }
}

/// Creates `folder` and shows that files can be made in it, so that a long run does not find out at its end.
pub fn require_writable(folder: &Path) -> Result<(), FolderError> {
    fs::create_dir_all(folder).map_err(failed("create the folder", folder))?;
    tempfile::tempfile_in(folder).map_err(failed("write to the folder", folder)).map(drop)
}

/// Writes a whole file and waits until it is on the disk.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(failed("write", path))
}

/// Writes a whole file in the place of `path`, or leaves what is there: a full disk costs no older file. What is no regular
/// file, such as a pipe, is written to.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), FolderError> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    if path.exists() && !path.is_file() {
        return fs::write(&path, bytes).map_err(failed("write", &path));
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        // As a file that is made without further ado: the umask says who may read it.
        let all = fs::Permissions::from_mode(0o666);
        let mut aside = tempfile::Builder::new().prefix(".nvkv-").permissions(all).tempfile_in(parent)?;
        aside.write_all(bytes)?;
        aside.as_file().sync_all()?;
        Ok(aside.persist(&path).map(drop)?)
    };
    write().map_err(failed("write", &path))
}

/// Waits until the entries of `folder` are on the disk.
pub fn sync(folder: &Path) -> Result<(), FolderError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(failed("sync", folder))
}

/// Puts the folder `new` in the place of `current`, which may be absent; both are in `parent`.
///
/// On file systems that can exchange two names this is one step: a reader sees the old folder or
/// the new one. On others the old one is set aside first, and [`recover`] brings it back if the
/// machine stops between the two steps.
pub fn replace(parent: &Path, new: &Path, current: &Path) -> Result<(), FolderError> {
    let aside = set_aside(current);
    if current.exists() {
        match renameat_with(CWD, new, CWD, current, RenameFlags::EXCHANGE) {
            Ok(()) => fs::rename(new, &aside).map_err(failed("set aside", new))?,
            Err(_) => {
                fs::rename(current, &aside).map_err(failed("set aside", current))?;
                fs::rename(new, current).map_err(failed("put in place", new))?;
            }
        }
    } else {
        fs::rename(new, current).map_err(failed("put in place", new))?;
    }
    sync(parent)?;
    recover(current)
}

/// Ends a replacement of `current` that was cut short: the old folder comes back where the new one
/// is missing, and goes where it is not.
pub fn recover(current: &Path) -> Result<(), FolderError> {
    let aside = set_aside(current);
    match (aside.exists(), current.exists()) {
        (true, false) => fs::rename(&aside, current).map_err(failed("bring back", &aside)),
        (true, true) => fs::remove_dir_all(&aside).map_err(failed("remove", &aside)),
        (false, _) => Ok(()),
    }
}

/// Where the old folder waits: beside the new one, hidden.
fn set_aside(current: &Path) -> PathBuf {
    let name = current.file_name().unwrap_or_default().to_string_lossy();
    current.with_file_name(format!(".{name}.old"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(parent: &Path, name: &str, content: &str) -> PathBuf {
        let path = parent.join(name);
        fs::create_dir(&path).unwrap();
        write_synced(&path.join("file"), content.as_bytes()).unwrap();
        path
    }

    fn content(folder: &Path) -> String {
        fs::read_to_string(folder.join("file")).unwrap()
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.html");
        replace_file(&file, b"old").unwrap();
        replace_file(&file, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(replace_file(&folder.path().join("none/report.html"), b"new").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        replace_file(Path::new("/dev/null"), b"new").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    #[test]
    fn replacing_leaves_the_new_folder_alone() {
        let parent = tempfile::tempdir().unwrap();
        let current = parent.path().join("current");
        for text in ["one", "two"] {
            let new = folder(parent.path(), "new", text);
            replace(parent.path(), &new, &current).unwrap();
            assert_eq!(content(&current), text);
            assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_replacement_cut_short_keeps_the_old_folder() {
        let parent = tempfile::tempdir().unwrap();
        let current = folder(parent.path(), "current", "old");
        fs::rename(&current, set_aside(&current)).unwrap();
        recover(&current).unwrap();
        assert_eq!(content(&current), "old");
    }

    #[test]
    fn a_full_disk_is_named_with_its_next_step() {
        let error = failed("write", Path::new("out/x"))(io::Error::from(ErrorKind::StorageFull)).to_string();
        assert!(error.contains("out/x") && error.contains("disk is full") && error.contains("--out"), "{error}");
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = require_writable(&file.path().join("out")).unwrap_err().to_string();
        assert!(error.contains("--out"), "{error}");
    }

    #[test]
    fn a_folder_that_takes_no_files_is_refused() {
        // Nobody, root included, can make files in /proc.
        require_writable(Path::new("/proc")).unwrap_err();
    }
}
