//! Where NVRTC 13 is: found on the machine as it is, with nothing to configure in the usual places.

use std::path::{Path, PathBuf};

/// The library's file name: the major version is the ABI.
pub const NVRTC: &str = "libnvrtc.so.13";
const BUILTINS: &str = "libnvrtc-builtins.so.13";

/// NVRTC and what must be loaded before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvrtcPath {
    /// The library: a file, or the bare name where the loader finds it by itself.
    pub nvrtc: PathBuf,
    /// The builtins beside it. NVRTC loads them by bare name, so from outside the loader's path they
    /// must be in the process already, or every compile fails.
    pub builtins: Vec<PathBuf>,
}

/// NVRTC is nowhere to be found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcMissing {
    /// The user named a place, and it is not there.
    #[error("$NVKV_NVRTC is `{0}`, which neither is nor holds {NVRTC}: correct or unset it")]
    Named(PathBuf),
    /// None of the usual places holds it.
    #[error(
        "{NVRTC} not found. Looked in $NVKV_NVRTC, $CUDA_HOME, the loader's path, /usr/local/cuda*, Python's \
         site-packages (nvidia/cu13/lib) and .toolchain/ beside the current directory and the executable. \
         Install it with `make toolchain`, or with `pip install 'nvidia-cuda-nvrtc==13.0.*'`"
    )]
    Nowhere,
}

/// What the search depends on, apart from the file system.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// `$NVKV_NVRTC`: a file or a folder; where set, nothing else is tried.
    pub named: Option<PathBuf>,
    /// `$CUDA_HOME` and `$CUDA_PATH`.
    pub cuda_homes: Vec<PathBuf>,
    /// Asks the loader whether it finds the library by its bare name. That loads it for a moment, so it is
    /// asked only when the places before have nothing.
    pub loader_has_it: fn() -> bool,
    /// Parent of the toolkits, `/usr/local`.
    pub toolkits: PathBuf,
    /// Prefixes of Python installations: `$VIRTUAL_ENV`, parents of the `bin` folders on `$PATH`, `~/.local`.
    pub python_prefixes: Vec<PathBuf>,
    /// Folders that may hold `.toolchain/`: the current one, then the executable's ancestors.
    pub project_roots: Vec<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_process(loader_has_it: fn() -> bool) -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut python_prefixes: Vec<PathBuf> = path("VIRTUAL_ENV").into_iter().collect();
        let folders = std::env::var_os("PATH").unwrap_or_default();
        python_prefixes.extend(
            std::env::split_paths(&folders)
                .filter(|bin| bin.join("python3").exists())
                .filter_map(|bin| bin.parent().map(Path::to_path_buf)),
        );
        python_prefixes.extend(path("HOME").map(|home| home.join(".local")));
        let executable = std::env::current_exe().unwrap_or_default();
        let mut project_roots: Vec<PathBuf> = std::env::current_dir().into_iter().collect();
        project_roots.extend(executable.ancestors().skip(1).map(Path::to_path_buf));
        Self {
            named: path("NVKV_NVRTC"),
            cuda_homes: ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect(),
            loader_has_it,
            toolkits: PathBuf::from("/usr/local"),
            python_prefixes,
            project_roots,
        }
    }
}

/// Finds NVRTC: `$NVKV_NVRTC`, `$CUDA_HOME`, the loader's path, `/usr/local/cuda*`, Python's
/// site-packages, `.toolchain/`; the first that holds it.
pub fn find(around: &Surroundings) -> Result<NvrtcPath, NvrtcMissing> {
    if let Some(named) = &around.named {
        return in_named(named).ok_or_else(|| NvrtcMissing::Named(named.clone()));
    }
    let homes = around.cuda_homes.iter().flat_map(|home| toolkit_folders(home));
    if let Some(found) = homes.into_iter().find_map(|folder| in_folder(&folder)) {
        return Ok(found);
    }
    if (around.loader_has_it)() {
        return Ok(NvrtcPath { nvrtc: NVRTC.into(), builtins: Vec::new() });
    }
    let toolkits = children(&around.toolkits, "cuda").into_iter().flat_map(|home| toolkit_folders(&home));
    let pythons = around.python_prefixes.iter().flat_map(|prefix| site_packages(prefix));
    let local = around.project_roots.iter().flat_map(|root| toolchain_folders(&root.join(".toolchain")));
    toolkits.chain(pythons).chain(local).find_map(|folder| in_folder(&folder)).ok_or(NvrtcMissing::Nowhere)
}

fn in_named(named: &Path) -> Option<NvrtcPath> {
    if named.is_dir() {
        return in_folder(named);
    }
    let folder = named.parent()?;
    named.is_file().then(|| NvrtcPath { nvrtc: named.to_path_buf(), builtins: builtins_in(folder) })
}

fn in_folder(folder: &Path) -> Option<NvrtcPath> {
    // An absolute path, because the loader would search its own path for a name without a slash.
    let nvrtc = folder.join(NVRTC).canonicalize().ok()?;
    Some(NvrtcPath { nvrtc, builtins: builtins_in(folder) })
}

fn builtins_in(folder: &Path) -> Vec<PathBuf> {
    children(folder, BUILTINS)
}

fn toolkit_folders(home: &Path) -> Vec<PathBuf> {
    ["lib64", "targets/x86_64-linux/lib", "lib", ""].iter().map(|sub| home.join(sub)).collect()
}

/// Where wheels put the library under a Python prefix.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let pythons = children(&prefix.join("lib"), "python3");
    let packages = pythons.iter().flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]);
    packages.map(|p| p.join("nvidia/cu13/lib")).collect()
}

/// `.toolchain/` flat, as `pip install --target` leaves it, or as a virtual environment.
fn toolchain_folders(toolchain: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<_> = ["", "lib", "nvidia/cu13/lib"].iter().map(|sub| toolchain.join(sub)).collect();
    folders.extend(site_packages(toolchain));
    folders.extend(children(toolchain, "").iter().flat_map(|child| site_packages(child)));
    folders
}

/// Entries of `folder` whose name starts with `prefix`, sorted; none where it cannot be read.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let named = |path: &PathBuf| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix));
    let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(named).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn install(folder: &Path) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(NVRTC), "").unwrap();
        fs::write(folder.join("libnvrtc-builtins.so.13.0"), "").unwrap();
        folder.join(NVRTC).canonicalize().unwrap()
    }

    /// Every usual place below one temporary folder.
    fn surroundings(root: &Path) -> Surroundings {
        Surroundings {
            named: None,
            loader_has_it: || false,
            cuda_homes: vec![root.join("home")],
            toolkits: root.join("local"),
            python_prefixes: vec![root.join("venv")],
            project_roots: vec![root.join("project/sub"), root.join("project")],
        }
    }

    #[test]
    fn each_usual_place_is_searched_and_earlier_ones_win() {
        let dir = tempfile::tempdir().unwrap();
        let around = surroundings(dir.path());
        assert_eq!(find(&around), Err(NvrtcMissing::Nowhere));
        // From the last place to the first: each new one must win over those before.
        for place in [
            "project/.toolchain/v/lib/python3.11/site-packages/nvidia/cu13/lib",
            "project/.toolchain/lib/python3.12/site-packages/nvidia/cu13/lib",
            "project/.toolchain/nvidia/cu13/lib",
            "project/.toolchain",
            "project/sub/.toolchain",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "local/cuda-13.0/targets/x86_64-linux/lib",
            "home/lib64",
        ] {
            let file = install(&dir.path().join(place));
            let found = find(&around).unwrap();
            assert_eq!(found.nvrtc, file, "{place}");
            assert_eq!(found.builtins, [dir.path().join(place).join("libnvrtc-builtins.so.13.0")], "{place}");
        }
    }

    #[test]
    fn the_loader_comes_after_cuda_home_and_before_toolkits() {
        let dir = tempfile::tempdir().unwrap();
        let around = Surroundings { loader_has_it: || true, ..surroundings(dir.path()) };
        install(&dir.path().join("local/cuda/lib64"));
        assert_eq!(find(&around).unwrap().nvrtc, Path::new(NVRTC));
        let file = install(&dir.path().join("home/lib"));
        assert_eq!(find(&around).unwrap().nvrtc, file);
    }

    #[test]
    fn a_named_place_is_taken_or_refused_but_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        install(&dir.path().join("home/lib64"));
        let file = install(&dir.path().join("mine"));
        let named = |path: PathBuf| Surroundings { named: Some(path), ..surroundings(dir.path()) };
        assert_eq!(find(&named(dir.path().join("mine"))).unwrap().nvrtc, file);
        assert_eq!(
            find(&named(dir.path().join("mine").join(NVRTC))).unwrap().nvrtc,
            dir.path().join("mine").join(NVRTC)
        );
        let error = find(&named(dir.path().join("nothing"))).unwrap_err();
        assert!(matches!(&error, NvrtcMissing::Named(_)) && error.to_string().contains("nothing"), "{error}");
    }

    #[test]
    fn the_error_names_the_places_and_the_command() {
        let text = NvrtcMissing::Nowhere.to_string();
        for word in
            ["$NVKV_NVRTC", "$CUDA_HOME", "/usr/local/cuda", "site-packages", ".toolchain", "make toolchain", "pip"]
        {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}
