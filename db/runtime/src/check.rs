//! Whether a call may be launched: pointers, strides and sizes, as the kernels read them (ARCHITECTURE.md, "Contract of
//! the pointers"). A mistake here would be an illegal address or a wrong result there.

use crate::bundle::Kernel;
use nvkv_spec::abi::{AppendParams, DecodeParams, DevicePtr, Field};
use nvkv_spec::layout::Strides;
use nvkv_spec::{AppendMode, DecodeProblem, Launch, Numerics, Problem, VScaleOrder};

/// What a kernel loads and stores at a time, bytes: data, Q, output and new rows.
const VECTOR: u64 = 16;
/// Alignment of the workspace, bytes.
const WORKSPACE: u64 = 256;
/// Bytes of an element of Q, output and new rows.
const ELEMENT: i64 = 2;

type Fields = &'static [Field];

/// Why a call is refused. Names are those of [`DecodeParams`] and [`AppendParams`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// A pointer that the kernel follows is null.
    #[error("{name} is null: pass the device address of {doc}")]
    Null {
        /// The parameter.
        name: &'static str,
        /// What it is, with its shape.
        doc: &'static str,
    },
    /// A pointer or stride is not a multiple of what the kernel loads at a time.
    #[error(
        "{name} is {value}, no multiple of {multiple}: kernels load {multiple} bytes at a time there, so allocate and stride it so"
    )]
    Misaligned {
        /// The parameter.
        name: String,
        /// Its value.
        value: i64,
        /// What it must be a multiple of, bytes.
        multiple: u64,
    },
    /// A page or token stride that 32 bits cannot hold.
    #[error("{name} is {value}: strides of pages and tokens are 0 to 2^32 - 1 bytes")]
    Stride {
        /// The parameter.
        name: String,
        /// Its value.
        value: i64,
    },
    /// Rows would lie over each other.
    #[error(
        "{name}: rows of {row} bytes overlap with strides of {token} (token), {head} (head), {page} (page) bytes at {page_size} \
         tokens a page and {kv_heads} KV heads; check head dim, page size, number of KV heads, and HND against NHD"
    )]
    Overlap {
        /// The tensor.
        name: &'static str,
        /// Bytes of a row.
        row: u32,
        /// Bytes between tokens.
        token: i64,
        /// Bytes between heads.
        head: i64,
        /// Bytes between pages.
        page: i64,
        /// Tokens a page.
        page_size: u32,
        /// KV heads.
        kv_heads: u32,
    },
    /// Rows of Q, output or new K and V would lie over each other.
    #[error(
        "{name}: {heads} rows of {row} bytes overlap with strides of {head} (head) and {token} (token) bytes; check head dim, \
         KV heads and group"
    )]
    Rows {
        /// The tensor.
        name: &'static str,
        /// Heads a token.
        heads: u32,
        /// Bytes of a row.
        row: i64,
        /// Bytes between heads.
        head: i64,
        /// Bytes between tokens.
        token: i64,
    },
    /// The workspace is smaller than the launch needs.
    #[error("the workspace has {have} bytes, this launch needs {need} (`Found::launch.workspace_bytes`)")]
    Workspace {
        /// Bytes there are.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Sizes are not those that the kernel was found for.
    #[error("{name} is {called}, but the kernel was found for {found}: find one for the sizes of this call")]
    Sizes {
        /// The parameter.
        name: &'static str,
        /// In the call.
        called: u32,
        /// When found.
        found: u32,
    },
    /// The kernel found is of the other operation.
    #[error("{0} was found, which is launched by the other operation's call")]
    Operation(String),
    /// A scale that no result survives.
    #[error("{name} is {value:?}: it must be finite and more than 0, and no subnormal number")]
    Scale {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f32,
    },
    /// A window that holds nothing.
    #[error("window is 0: a query sees itself at least; pass how many tokens it sees, its own among them")]
    Window,
    /// A parameter that the kernel does not read: the result would be that without it, and nothing would show it.
    #[error("{0} is set, but the kernel was found for a problem without it: ask for one with it, or leave it 0")]
    Unread(&'static str),
    /// The block table is too narrow to hold a page, or its rows run backwards.
    #[error(
        "block_table_stride is {0}: entries between rows of [batch, pages], at least 0 (0 shares one row) and at most 2^31"
    )]
    BlockTable(i64),
}

/// One of them.
macro_rules! tensor {
    ($p:expr, $name:ident, $page:ident, $head:ident, $token:ident) => {
        Tensor {
            name: stringify!($name),
            pointer: $p.$name,
            strides: Strides { page: $p.$page, head: $p.$head, token: $p.$token },
        }
    };
}

/// The tensors of a cache, from either parameter struct.
macro_rules! tensors {
    ($p:expr) => {
        [
            tensor!($p, k_data, k_data_page, k_data_head, k_data_token),
            tensor!($p, k_scales, k_scales_page, k_scales_head, k_scales_token),
            tensor!($p, v_data, v_data_page, v_data_head, v_data_token),
            tensor!($p, v_scales, v_scales_page, v_scales_head, v_scales_token),
        ]
    };
}

/// Whether `kernel`, found with `launch`, may be launched with `p` and `workspace_bytes` of workspace.
pub(crate) fn decode(
    kernel: &Kernel,
    launch: &Launch,
    p: &DecodeParams,
    workspace_bytes: u64,
) -> Result<(), CallError> {
    let Problem::Decode(problem) = &kernel.problem else { return Err(CallError::Operation(kernel.id.to_string())) };
    same("batch", p.batch, launch.grid[1])?;
    same("kv_heads", p.kv_heads, launch.grid[0] / kernel.launch.row_tiles)?;
    let present = |name, pointer, multiple| present(DecodeParams::FIELDS, name, pointer, multiple);
    let rows =
        |name, pointer, strides, heads| rows(DecodeParams::FIELDS, name, pointer, strides, heads, problem.head_dim);
    let heads = p.kv_heads * problem.group;
    rows("q", p.q, [p.q_stride_token, p.q_stride_head], heads)?;
    rows("out", p.out, [p.out_stride_token, p.out_stride_head], heads)?;
    cache(DecodeParams::FIELDS, &Shared::of(problem, p.kv_heads), &tensors!(p))?;
    present("block_table", p.block_table, 4)?;
    present("kv_len", p.kv_len, 4)?;
    aligned("lse", p.lse as i64, 4)?;
    if !(0..=1 << 31).contains(&p.block_table_stride) {
        return Err(CallError::BlockTable(p.block_table_stride));
    }
    if problem.append == AppendMode::Fused {
        rows("new_k", p.new_k, [p.new_k_stride_token, p.new_k_stride_head], p.kv_heads)?;
        rows("new_v", p.new_v, [p.new_v_stride_token, p.new_v_stride_head], p.kv_heads)?;
        present("status", p.status, 4)?;
    }
    match problem.window {
        None => unset("window", p.window == 0)?,
        Some(_) if p.window == 0 => return Err(CallError::Window),
        Some(_) => {}
    }
    if problem.sinks {
        present("sinks", p.sinks, 4)?
    } else {
        unset("sinks", p.sinks == 0)?
    }
    if problem.soft_cap {
        scale("soft_cap", p.soft_cap)?
    } else {
        unset("soft_cap", p.soft_cap == 0.0)?
    }
    if launch.workspace_bytes > 0 {
        if workspace_bytes < launch.workspace_bytes {
            return Err(CallError::Workspace { have: workspace_bytes, need: launch.workspace_bytes });
        }
        present("workspace", p.workspace, WORKSPACE)?;
    }
    scale("sm_scale", p.sm_scale)?;
    scale("k_scale", p.k_scale)?;
    scale("v_scale", p.v_scale)?;
    if problem.numerics == Numerics::Fp8 { scale("q_scale", p.q_scale) } else { Ok(()) }
}

/// Whether `kernel`, found with `launch` for `tokens`, may be launched with `p`.
pub(crate) fn append(kernel: &Kernel, launch: &Launch, p: &AppendParams) -> Result<(), CallError> {
    let Problem::Append(problem) = &kernel.problem else { return Err(CallError::Operation(kernel.id.to_string())) };
    same("kv_heads", p.kv_heads, launch.grid[1])?;
    // The grid covers the tokens that were asked for; fewer leave blocks idle, and more would be lost.
    let covered = kernel.launch.append(&kernel.problem, p.tokens, p.kv_heads).grid[0];
    if covered > launch.grid[0] {
        return Err(CallError::Sizes { name: "tokens (blocks of the grid)", called: covered, found: launch.grid[0] });
    }
    let present = |name, pointer, multiple| present(AppendParams::FIELDS, name, pointer, multiple);
    let rows =
        |name, pointer, strides| rows(AppendParams::FIELDS, name, pointer, strides, p.kv_heads, problem.head_dim);
    rows("k", p.k, [p.k_stride_token, p.k_stride_head])?;
    rows("v", p.v, [p.v_stride_token, p.v_stride_head])?;
    let shared = Shared {
        format: problem.kv_format,
        order: problem.v_scale_order,
        head_dim: problem.head_dim,
        page_size: problem.page_size,
        kv_heads: p.kv_heads,
    };
    cache(AppendParams::FIELDS, &shared, &tensors!(p))?;
    present("slot_mapping", p.slot_mapping, 8)?;
    present("status", p.status, 4)?;
    scale("k_scale", p.k_scale)?;
    scale("v_scale", p.v_scale)
}

fn same(name: &'static str, called: u32, found: u32) -> Result<(), CallError> {
    if called == found { Ok(()) } else { Err(CallError::Sizes { name, called, found }) }
}

fn scale(name: &'static str, value: f32) -> Result<(), CallError> {
    if value.is_normal() && value > 0.0 { Ok(()) } else { Err(CallError::Scale { name, value }) }
}

fn unset(name: &'static str, unset: bool) -> Result<(), CallError> {
    if unset { Ok(()) } else { Err(CallError::Unread(name)) }
}

fn aligned(name: impl Into<String>, value: i64, multiple: u64) -> Result<(), CallError> {
    if (value as u64).is_multiple_of(multiple) {
        return Ok(());
    }
    Err(CallError::Misaligned { name: name.into(), value, multiple })
}

/// `fields` is the table that spells what each parameter means.
fn present(fields: Fields, name: &'static str, pointer: DevicePtr, multiple: u64) -> Result<(), CallError> {
    if pointer == 0 {
        let doc = fields.iter().find(|field| field.name == name).map_or("", |field| field.doc);
        return Err(CallError::Null { name, doc });
    }
    aligned(name, pointer as i64, multiple)
}

/// Rows of 16-bit elements, `[tokens, heads, dim]`.
fn rows(
    fields: Fields,
    name: &'static str,
    pointer: DevicePtr,
    [token, head]: [i64; 2],
    heads: u32,
    dim: u32,
) -> Result<(), CallError> {
    present(fields, name, pointer, VECTOR)?;
    aligned_stride(name, "_stride_token", token, VECTOR)?;
    aligned_stride(name, "_stride_head", head, VECTOR)?;
    let row = ELEMENT * i64::from(dim);
    // A head stride of one head, and a token stride of one token, is never used: it may be anything.
    let apart = heads == 1 || head >= row;
    if apart { Ok(()) } else { Err(CallError::Rows { name, heads, row, head, token }) }
}

fn aligned_stride(name: &str, suffix: &str, value: i64, multiple: u64) -> Result<(), CallError> {
    if (value as u64).is_multiple_of(multiple) {
        return Ok(());
    }
    aligned(format!("{name}{suffix}"), value, multiple)
}

/// What the four tensors of a cache have in common.
struct Shared {
    format: nvkv_spec::KvFormat,
    order: VScaleOrder,
    head_dim: u32,
    page_size: u32,
    kv_heads: u32,
}

impl Shared {
    fn of(problem: &DecodeProblem, kv_heads: u32) -> Self {
        let DecodeProblem { kv_format: format, v_scale_order: order, head_dim, page_size, .. } = *problem;
        Self { format, order, head_dim, page_size, kv_heads }
    }
}

/// One tensor of a cache.
struct Tensor {
    name: &'static str,
    pointer: DevicePtr,
    strides: Strides,
}

fn cache(fields: Fields, shared: &Shared, [k_data, k_scales, v_data, v_scales]: &[Tensor; 4]) -> Result<(), CallError> {
    let (k, v, dim) = (shared.format.k(), shared.format.v(), shared.head_dim);
    usable(fields, shared, k_data, k.data_row_bytes(dim), VECTOR)?;
    usable(fields, shared, v_data, v.data_row_bytes(dim), VECTOR)?;
    // A row of block scales is loaded at once.
    let row = k.scale_row_bytes(dim);
    usable(fields, shared, k_scales, row, row.into())?;
    let row = v.scale_row_bytes(dim);
    match shared.order {
        VScaleOrder::Linear => usable(fields, shared, v_scales, row, row.into()),
        // The matrix of a head's page is dense: the token stride is not read.
        VScaleOrder::Interleaved4 => {
            let strides = Strides { token: row.into(), ..v_scales.strides };
            usable(fields, shared, &Tensor { strides, ..*v_scales }, row, row.into())
        }
    }
}

fn usable(fields: Fields, shared: &Shared, tensor: &Tensor, row: u32, multiple: u64) -> Result<(), CallError> {
    let &Tensor { name, pointer, strides: Strides { page, head, token } } = tensor;
    if row == 0 {
        return Ok(()); // the format has no block scales
    }
    present(fields, name, pointer, multiple)?;
    for (suffix, stride) in [("_page", page), ("_token", token)] {
        if !(0..1 << 32).contains(&stride) {
            return Err(CallError::Stride { name: format!("{name}{suffix}"), value: stride });
        }
        aligned_stride(name, suffix, stride, multiple)?;
    }
    aligned_stride(name, "_head", head, multiple)?;
    // Tokens and heads, the closer of them first: each holds all of what is inside it. One head's stride is never used.
    let (tokens, heads) = (i64::from(shared.page_size), i64::from(shared.kv_heads));
    let span = if heads == 1 {
        apart(token, row.into()).map(|()| token * (tokens - 1) + i64::from(row))
    } else if token <= head {
        apart(token, row.into())
            .and_then(|()| apart(head, token * (tokens - 1) + i64::from(row)))
            .map(|()| head * (heads - 1) + token * (tokens - 1) + i64::from(row))
    } else {
        apart(head, row.into())
            .and_then(|()| apart(token, head * (heads - 1) + i64::from(row)))
            .map(|()| token * (tokens - 1) + head * (heads - 1) + i64::from(row))
    };
    // Page 0 alone has no page stride.
    if span.is_some_and(|span| page == 0 || page >= span) {
        return Ok(());
    }
    let (page_size, kv_heads) = (shared.page_size, shared.kv_heads);
    Err(CallError::Overlap { name, row, token, head, page, page_size, kv_heads })
}

fn apart(stride: i64, what_is_inside: i64) -> Option<()> {
    (stride >= what_is_inside).then_some(())
}
