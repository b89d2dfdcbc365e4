//! Arguments that several subcommands share, and the limits of what a kernel can be asked for.

use clap::Args;
use nvkv_generator::{HEAD_DIMS, MAX_GROUP, MAX_Q_LEN, PAGE_SIZES, Preset};
use nvkv_spec::{Dtype, KvFormat, Lengths, Numerics, Operation, Target, UnknownTarget, VScaleOrder};
use std::path::PathBuf;
use std::str::FromStr;

/// Options that do not go together, or are used by nothing that was asked for.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadArguments(pub String);

/// Parses one element of a list: spaces around it, as in `--op 'decode, append'`, mean nothing.
pub fn named<T: FromStr>(text: &str) -> Result<T, T::Err> {
    text.trim().parse()
}

/// The value of `--arch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// The GPU that is there.
    Native,
    /// A named target.
    Named(Target),
}

/// Parses `native` or the name of a target, with or without its suffix.
pub fn arch(text: &str) -> Result<Arch, UnknownTarget> {
    if text == "native" { Ok(Arch::Native) } else { text.parse().map(Arch::Named) }
}

/// Parses the name of a preset.
pub fn preset(text: &str) -> Result<Preset, String> {
    match text {
        "quick" => Ok(Preset::Quick),
        "standard" => Ok(Preset::Standard),
        "full" => Ok(Preset::Full),
        _ => Err(format!("unknown preset `{text}`; known: quick, standard, full")),
    }
}

fn one_of(text: &str, known: &[u32]) -> Result<u32, String> {
    text.trim().parse().ok().filter(|value| known.contains(value)).ok_or_else(|| {
        let known: Vec<_> = known.iter().map(u32::to_string).collect();
        format!("must be one of {}", known.join(", "))
    })
}

/// Parses a head dimension that kernels exist for.
pub fn head_dim(text: &str) -> Result<u32, String> {
    one_of(text, &HEAD_DIMS)
}

/// Parses a page size that kernels exist for, tokens.
pub fn page_size(text: &str) -> Result<u32, String> {
    one_of(text, &PAGE_SIZES)
}

/// Parses a number of query heads a KV head.
pub fn group(text: &str) -> Result<u32, String> {
    in_range(text, 1, MAX_GROUP)
}

/// Parses a number of new tokens a request.
pub fn q_len(text: &str) -> Result<u32, String> {
    in_range(text, 1, MAX_Q_LEN)
}

/// Parses a window's length, tokens; `none` is a window over all tokens.
pub fn window_or_none(text: &str) -> Result<Option<u32>, String> {
    let text = text.trim();
    if text == "none" { Ok(None) } else { size(text).map(Some).map_err(|error| format!("{error}, or none")) }
}

/// Parses whether a problem has a feature.
pub fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.trim() {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("must be yes or no".into()),
    }
}

fn in_range(text: &str, low: u32, high: u32) -> Result<u32, String> {
    text.trim()
        .parse()
        .ok()
        .filter(|value| (low..=high).contains(value))
        .ok_or_else(|| format!("must be a whole number from {low} to {high}"))
}

/// Parses a run-time size: requests, tokens or heads.
pub fn size(text: &str) -> Result<u32, String> {
    in_range(text, 1, 1 << 26)
}

/// What narrows or widens a preset. An option that is left out keeps the preset's values; one that
/// is given replaces them. Lists are comma-separated.
#[derive(Args, Clone, Debug, Default)]
pub struct Lists {
    /// Operations: decode, fused, append
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<Operation>, help_heading = "Problems")]
    pub op: Vec<Operation>,
    /// Storage of the cache: nvfp4, fp8_e4m3, or fp8_e4m3+nvfp4 (K in FP8, V in NVFP4)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<KvFormat>, help_heading = "Problems")]
    pub kv_format: Vec<KvFormat>,
    /// What products are computed from: fp8 (as the NVFP4 cache is defined), exact
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<Numerics>, help_heading = "Problems")]
    pub numerics: Vec<Numerics>,
    /// Elements of a head: 64, 128, 256
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = head_dim, allow_negative_numbers = true, help_heading = "Problems")]
    pub head_dim: Vec<u32>,
    /// Query heads a KV head, 1 to 16
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = group, allow_negative_numbers = true, help_heading = "Problems")]
    pub group: Vec<u32>,
    /// Tokens a page: 8, 16, 32, 64, 128
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = page_size, allow_negative_numbers = true, help_heading = "Problems")]
    pub page_size: Vec<u32>,
    /// New tokens a request, 1 to 8
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = q_len, allow_negative_numbers = true, help_heading = "Problems")]
    pub q_len: Vec<u32>,
    /// Type of Q, the output and new K and V: f16, bf16
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<Dtype>, help_heading = "Problems")]
    pub dtype: Vec<Dtype>,
    /// Order of the V block scales: linear, interleaved4
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<VScaleOrder>, help_heading = "Problems")]
    pub v_scale_order: Vec<VScaleOrder>,
    /// Sliding window, the newest tokens that a query sees: a number, or none
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = window_or_none, allow_negative_numbers = true, help_heading = "Problems")]
    pub window: Vec<Option<u32>>,
    /// A logit of each query head joins its softmax's denominator: yes (the option alone), no, or both
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = yes_or_no, num_args = 0..=1, require_equals = true, default_missing_value = "yes", help_heading = "Problems")]
    pub sinks: Vec<bool>,
    /// Scores are bounded, s = cap * tanh(s / cap): yes (the option alone), no, or both
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = yes_or_no, num_args = 0..=1, require_equals = true, default_missing_value = "yes", help_heading = "Problems")]
    pub soft_cap: Vec<bool>,
    /// Requests; for append, new tokens
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size, allow_negative_numbers = true, help_heading = "Shapes")]
    pub batch: Vec<u32>,
    /// Cached tokens a request
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = size, allow_negative_numbers = true, help_heading = "Shapes")]
    pub context: Vec<u32>,
    /// How the lengths of a batch are distributed up to the context: equal, log-uniform [default: equal]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = named::<Lengths>, help_heading = "Shapes")]
    pub lengths: Vec<Lengths>,
    /// KV heads [default: the preset's, or 8 where --batch or --context is given]
    #[arg(long, value_name = "N", value_parser = size, allow_negative_numbers = true, help_heading = "Shapes")]
    pub kv_heads: Option<u32>,
}

/// Which part of the space, on which target.
#[derive(Args, Clone, Debug)]
pub struct Scope {
    /// Target such as sm_90, or `native`: the GPU that is there
    #[arg(long, value_name = "ARCH", value_parser = arch, default_value = "native")]
    pub arch: Arch,
    /// How much to cover: quick (minutes), standard (a server's shapes), full (every axis)
    #[arg(long, value_name = "NAME", value_parser = preset, default_value = "quick")]
    pub preset: Preset,
    /// Problems and shapes that an engine asked for, most often first, instead of the preset's and the lists': the
    /// runtime's shape_histogram()
    #[arg(long, value_name = "FILE")]
    pub shapes: Option<PathBuf>,
    /// What a model asks for, instead of the preset's heads, windows, sinks and caps: `nvkv-tune models` lists them
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub model: Vec<String>,
    /// GPUs that share the heads of --model: KV heads are divided, and replicated where there are too few [default: 1]
    #[arg(long, value_name = "N", value_parser = size, allow_negative_numbers = true)]
    pub tp: Option<u32>,
    /// A list of problems of the configuration file: models, and what they are served with
    #[arg(long, value_name = "NAME")]
    pub problems: Option<String>,
    /// Models and lists of problems of your own [default: nvkv.toml, where it is]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Problems and shapes
    #[command(flatten)]
    pub lists: Lists,
}

/// Which rows of a database are asked for.
#[derive(Args, Clone, Debug)]
pub struct RowArgs {
    /// Target such as sm_90, or `native`: the GPU that is there [default: all in the database]
    #[arg(long, value_name = "ARCH", value_parser = arch)]
    arch: Option<Arch>,
    /// Only rows whose name, such as `decode-nvfp4-exact-d128-g8-q1-p16-bf16-linear at b64-c16384-h8`, contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

impl RowArgs {
    /// The target; none where all are asked for.
    pub fn target(&self) -> anyhow::Result<Option<Target>> {
        match self.arch {
            None => Ok(None),
            Some(Arch::Named(target)) => Ok(Some(target)),
            Some(Arch::Native) => Ok(Some(super::tune::machine(Arch::Native)?.target)),
        }
    }
}

/// Which rows, after a noun: nothing, ` for sm_90a`, ` whose name contains ...`, or both.
pub fn asked_for(target: Option<Target>, only: &str) -> String {
    let target = target.map_or(String::new(), |target| format!(" for {target}"));
    if only.is_empty() { target } else { format!("{target} whose name contains `{only}`") }
}

/// Where trials are kept.
#[derive(Args, Clone, Debug)]
pub struct DbArgs {
    /// Database of trials
    #[arg(long, value_name = "FILE", default_value = "db/nvkv.sqlite")]
    pub db: PathBuf,
}
