//! A folder in which an output is made beside the place where it goes. What a killed process leaves of it is removed by the
//! next one.

use crate::filesystem;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// How the folders' names begin.
const PREFIX: &str = ".merge-";
/// The file in it that its owner holds locked: the lock goes with the process, however that ends.
const LOCK: &str = "nvkv.lock";

/// A folder of one process, removed when it is dropped.
pub(crate) struct Aside {
    folder: TempDir,
    _lock: File,
}

impl Aside {
    /// Makes one in `parent`.
    pub(crate) fn new(parent: &Path) -> Result<Self, Error> {
        loop {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let path = folder.path().join(LOCK);
            let lock = File::create_new(&path)?;
            match lock.lock() {
                // Nobody finds it stale then.
                Err(e) if e.kind() == ErrorKind::Unsupported || filesystem::network(parent).is_some() => {}
                locked => locked?,
            }
            // Before it was locked another process may have found it stale.
            if path.exists() {
                return Ok(Self { folder, _lock: lock });
            }
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders in `parent` whose owners are dead. One whose lock cannot be had, or that has none, stays: the first
/// has an owner, and of the second nobody can say. On a network file system all stay: its locks may be those of one host.
pub(crate) fn remove_stale(parent: &Path) {
    if filesystem::network(parent).is_some() {
        return;
    }
    for folder in asides(parent) {
        let Ok(lock) = File::options().write(true).open(folder.join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            // What cannot be removed is in nobody's way.
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

fn asides(parent: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let named = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(PREFIX);
    entries.filter(|entry| named(&entry.file_name())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes one in the folder that the parent names, says so, and waits to be killed.
    #[test]
    #[ignore = "run by its parent"]
    fn child_that_is_killed() {
        let Some(parent) = std::env::var_os("NVKV_TEST_FOLDER") else { return };
        let aside = Aside::new(Path::new(&parent)).unwrap();
        std::fs::write(aside.path().join("merged.sqlite"), "half").unwrap();
        println!("\nmade");
        std::thread::sleep(std::time::Duration::from_secs(60));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_a_live_one_uses_is_not() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let parent = tempfile::tempdir().unwrap();
        let mine = Aside::new(parent.path()).unwrap();
        let test = "aside::tests::child_that_is_killed";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--ignored", "--nocapture"]).env("NVKV_TEST_FOLDER", parent.path());
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "made"));

        remove_stale(parent.path());
        assert_eq!(asides(parent.path()).len(), 2, "both owners live");
        child.kill().unwrap();
        child.wait().unwrap();
        // No owner can be told of these: a folder without a lock, and what is named otherwise.
        let unknown = parent.path().join(format!("{PREFIX}unknown"));
        std::fs::create_dir(&unknown).unwrap();
        std::fs::create_dir(parent.path().join("other")).unwrap();
        std::fs::write(parent.path().join("other").join(LOCK), "").unwrap();
        remove_stale(parent.path());
        let mut left = asides(parent.path());
        left.sort();
        let mut expected = vec![mine.path().to_path_buf(), unknown];
        expected.sort();
        assert_eq!(left, expected);
        assert!(parent.path().join("other").exists());
        let path = mine.path().to_path_buf();
        drop(mine);
        assert!(!path.exists());
    }
}
