//! The manifest of a bundle: everything that an engine needs to choose, load and launch a kernel.

use super::LaunchRule;
use nvkv_spec::{
    CompileFacts, Evidence, KernelId, Numerics, Problem, Shape, SplitPolicy, Target, Toolchain, Variant,
    abi::{AppendParams, DecodeParams, Field},
};
use serde::{Deserialize, Serialize, Serializer, ser::Error};
use serde_json::value::{RawValue, to_raw_value};

/// Version of the manifest's schema. A reader refuses a newer one. Since 2, evidence may be `emulated`; since 3, splits are
/// the grid's last dimension and may taper; since 4, selections stand in their kernel's entry, without what follows from that
/// or from their split.
pub const SCHEMA: u32 = 4;

/// The oldest schema that is read: older bundles have their selections in another place.
pub const OLDEST_SCHEMA: u32 = 4;

/// Name of the manifest in a bundle's folder.
pub const FILE_NAME: &str = "manifest.json";

/// The manifest's BLAKE3 beside it, as `b3sum` writes it: what no recomputation can tell (times, evidence) is covered too.
pub const DIGEST_NAME: &str = "manifest.b3";

/// The contents of [`DIGEST_NAME`] for a manifest of these bytes.
pub fn digest(manifest: &[u8]) -> String {
    format!("{}  {FILE_NAME}\n", blake3::hash(manifest).to_hex())
}

/// All kernels of one target, and which of them serves which shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// What the cubins are compiled for.
    pub target: Target,
    /// Compiler and generator of the newest kernels.
    pub toolchain: Toolchain,
    /// Date of writing, RFC 3339.
    pub created_at: String,
    /// The kernels, by id.
    pub kernels: Vec<Kernel>,
}

impl Manifest {
    /// The manifest as it is written: for people, with a selection a line.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// All selections, each with its kernel.
    pub fn selections(&self) -> impl Iterator<Item = (&Kernel, &Selection)> {
        self.kernels.iter().flat_map(|kernel| kernel.selections.iter().map(move |selection| (kernel, selection)))
    }
}

/// Each of `selections` without spaces, so that a line holds it where the rest is pretty.
fn a_line_each<S: Serializer>(selections: &[Selection], serializer: S) -> Result<S::Ok, S::Error> {
    let lines: Result<Vec<Box<RawValue>>, _> = selections.iter().map(to_raw_value).collect();
    lines.map_err(S::Error::custom)?.serialize(serializer)
}

/// One compiled kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its name, and its folder in the bundle.
    pub id: KernelId,
    /// Its entry point in the cubin.
    pub symbol: String,
    /// What it solves.
    pub problem: Problem,
    /// What was chosen at compile time.
    pub variant: Variant,
    /// What products are computed from; absent for append, which is exact to the bit.
    pub numerics: Option<Numerics>,
    /// How to launch it.
    pub launch: LaunchRule,
    /// The fields of the one struct it takes by value.
    pub parameters: Vec<Parameter>,
    /// Size of that struct, bytes.
    pub parameter_bytes: usize,
    /// BLAKE3 of the source, the name under which results are stored.
    pub source_hash: String,
    /// Files and their hashes.
    pub files: Files,
    /// Registers, spills, shared memory.
    pub compile: CompileFacts,
    /// What compiled it.
    pub toolchain: Toolchain,
    /// Why it may be trusted.
    pub evidence: Evidence,
    /// Whether it is the default variant: with [`LaunchRule::default_max_splits`], the fallback for shapes that no
    /// selection is near to. Every problem has one, unless that kernel failed.
    pub is_default: bool,
    /// The shapes at which it is the one to take, of all kernels of its problem.
    #[serde(serialize_with = "a_line_each")]
    pub selections: Vec<Selection>,
}

/// One field of the parameter struct.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Name.
    pub name: String,
    /// CUDA type.
    #[serde(rename = "type")]
    pub cuda_type: String,
    /// Byte offset in the struct.
    pub offset: usize,
    /// Meaning, shape and unit.
    pub doc: String,
}

/// The files of a kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Files {
    /// CUDA source.
    pub cu: FileEntry,
    /// PTX, for drivers that cannot load the cubin.
    pub ptx: FileEntry,
    /// Machine code.
    pub cubin: FileEntry,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path from the manifest's folder.
    pub path: String,
    /// BLAKE3 of its bytes, hex.
    pub blake3: String,
    /// Its size.
    pub bytes: u64,
}

/// Where a choice comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Verified and timed at this shape.
    Timed,
    /// Ordered by a model; nothing was run.
    Predicted,
}

/// A shape that a kernel is chosen for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// The shape; of which operation, the kernel's problem says.
    #[serde(serialize_with = "Shape::serialize_sizes")]
    pub shape: Shape,
    /// Split policy of the launch, from which [`SplitPolicy::launch`] makes its parameters; none for append.
    pub split: Option<SplitPolicy>,
    /// Workspace that the launch needs at this shape, bytes.
    pub workspace_bytes: u64,
    /// Where the choice comes from.
    pub trust: Trust,
    /// Median time of one call, µs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub median_us: Option<f64>,
    /// Bytes moved at least, over the median, GB/s.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gbps: Option<f64>,
    /// The same over the read ceiling of the same run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub share_of_read_ceiling: Option<f64>,
    /// Median of the default variant at this shape, µs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub default_median_us: Option<f64>,
    /// How many other kernels and splits another tune might find to be the best here.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub near_ties: Option<usize>,
    /// How much slower than the best kernel there this one is at other shapes that it serves, as a share of the best's
    /// time; absent where nobody measured that.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub regret: Option<f64>,
    /// The model's time, µs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub predicted_us: Option<f64>,
}

/// The parameter struct of `problem`: its fields and its size in bytes.
pub fn parameters(problem: &Problem) -> (Vec<Parameter>, usize) {
    let of = |field: &Field| Parameter {
        name: field.name.into(),
        cuda_type: field.cuda_type.into(),
        offset: field.offset,
        doc: field.doc.into(),
    };
    match problem {
        Problem::Decode(_) => (DecodeParams::FIELDS.iter().map(of).collect(), size_of::<DecodeParams>()),
        Problem::Append(_) => (AppendParams::FIELDS.iter().map(of).collect(), size_of::<AppendParams>()),
    }
}

/// What the products of `problem` are computed from; none for append.
pub fn numerics(problem: &Problem) -> Option<Numerics> {
    match problem {
        Problem::Decode(p) => Some(p.numerics),
        Problem::Append(_) => None,
    }
}
