//! Problem and variant to one self-contained CUDA source. Text assembles, C++ computes: only constants,
//! includes and the parameter struct are filled in.

use crate::footprint::SharedPlan;
use include_dir::{Dir, DirEntry, include_dir};
use nvkv_spec::abi::{AppendParams, COUNTER_BYTES, DecodeParams};
use nvkv_spec::{
    AppendMode, Dtype, KernelId, KvFormat, Numerics, Operands, Problem, Staging, Target, VScaleOrder, Variant,
};
use std::sync::OnceLock;
use tera::{Context, Delimiters, Tera};

static TEMPLATES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/../templates");

/// A rendered kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The kernel's name.
    pub id: KernelId,
    /// CUDA C++ with no includes left.
    pub text: String,
    /// BLAKE3 of `text`, hex.
    pub hash: String,
}

/// A template could not be rendered: a defect of the templates, not of the user's input.
#[derive(Debug, thiserror::Error)]
#[error("template of {id} cannot be rendered: {source}")]
pub struct RenderError {
    /// The kernel.
    pub id: KernelId,
    /// What Tera says.
    #[source]
    pub source: Box<tera::Error>,
}

/// Renders `variant` of `problem` for `target`.
///
/// # Errors
/// Where a template is broken.
///
/// # Panics
/// Where the variant is of another operation than the problem: a defect of the caller.
pub fn render(problem: &Problem, variant: &Variant, target: Target) -> Result<Source, RenderError> {
    let id = KernelId::new(problem, variant);
    let mut context = Context::new();
    context.insert("id", id.as_str());
    context.insert("symbol", &id.symbol());
    context.insert("target", target.name());
    context.insert("e2m1_convert", &target.facts().e2m1_convert);
    let template = match (problem, variant) {
        (Problem::Decode(_), Variant::Decode(_)) => "decode.cu.tera",
        (Problem::Append(_), Variant::Append(_)) => "append.cu.tera",
        _ => panic!("{} is no variant of {}", variant.key(), problem.key()),
    };
    insert_problem(&mut context, problem);
    insert_variant(&mut context, problem, variant);
    let text = templates()
        .and_then(|tera| tera.render(template, &context))
        .map_err(|source| RenderError { id: id.clone(), source: Box::new(source) })?;
    let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
    Ok(Source { id, text, hash })
}

/// All templates, parsed once. The delimiters are `<{ }>` and `<% %>`, since CUDA has `{%0}` in inline PTX.
fn templates() -> tera::TeraResult<&'static Tera> {
    static PARSED: OnceLock<Result<Tera, String>> = OnceLock::new();
    let parsed = PARSED.get_or_init(|| parse_templates().map_err(|e| e.to_string()));
    parsed.as_ref().map_err(|e| tera::Error::message(e.clone()))
}

fn parse_templates() -> tera::TeraResult<Tera> {
    let mut tera = Tera::new();
    tera.set_delimiters(Delimiters {
        block_start: "<%".into(),
        block_end: "%>".into(),
        variable_start: "<{".into(),
        variable_end: "}>".into(),
        comment_start: "<#".into(),
        comment_end: "#>".into(),
    })?;
    let mut files = Vec::new();
    collect(&TEMPLATES, &mut files);
    tera.add_raw_templates(files)?;
    Ok(tera)
}

fn collect(dir: &'static Dir<'static>, files: &mut Vec<(&'static str, &'static str)>) {
    for entry in dir.entries() {
        match entry {
            DirEntry::Dir(inner) => collect(inner, files),
            DirEntry::File(file) => {
                if let (Some(name), Some(text)) = (file.path().to_str(), file.contents_utf8()) {
                    files.push((name, text));
                }
            }
        }
    }
}

fn insert_problem(context: &mut Context, problem: &Problem) {
    let (dtype, order): (Dtype, VScaleOrder) = match problem {
        Problem::Decode(p) => {
            context.insert("group", &p.group);
            context.insert("q_len", &p.q_len);
            context.insert("page_size", &p.page_size);
            context.insert("exact", &(p.numerics == Numerics::Exact));
            context.insert("fused", &(p.append == AppendMode::Fused));
            context.insert("soft_cap", &p.soft_cap);
            context.insert("sinks", &p.sinks);
            context.insert("window", &p.window.is_some());
            context.insert("params", DecodeParams::FIELDS);
            (p.dtype, p.v_scale_order)
        }
        Problem::Append(p) => {
            context.insert("page_size", &p.page_size);
            context.insert("params", AppendParams::FIELDS);
            (p.dtype, p.v_scale_order)
        }
    };
    let format: KvFormat = problem.kv_format();
    context.insert("head_dim", &problem.head_dim());
    context.insert("kv_format", format.name());
    context.insert("k_format", format.k().name());
    context.insert("v_format", format.v().name());
    context.insert("bf16", &(dtype == Dtype::Bf16));
    context.insert("v_interleaved", &(order == VScaleOrder::Interleaved4));
}

fn insert_variant(context: &mut Context, problem: &Problem, variant: &Variant) {
    match (problem, variant) {
        (Problem::Decode(p), Variant::Decode(v)) => {
            let shared = SharedPlan::new(p, v);
            let stages = match v.staging {
                Staging::Registers => 0,
                Staging::CpAsync { stages } => stages,
            };
            context.insert("k_dequant", v.k_path.dequant.name());
            context.insert("v_dequant", v.v_path.dequant.name());
            context.insert("k_mma", v.k_path.mma.name());
            context.insert("k_f16", &v.k_path.multiplies_f16());
            context.insert("swapped", &(v.operands == Operands::Swapped));
            context.insert("query_tile", &v.query_tile);
            context.insert("warps", &v.warps);
            context.insert("tile_tokens", &v.tile_tokens);
            context.insert("stages", &stages);
            context.insert("blocks_per_sm", &v.blocks_per_sm);
            context.insert("counter_bytes", &COUNTER_BYTES);
            context.insert("table_bytes", &shared.table);
            context.insert("q_bytes", &shared.queries);
        }
        (_, Variant::Append(v)) => {
            context.insert("threads", &v.threads);
            context.insert("blocks_per_thread", &v.blocks_per_thread);
        }
        (Problem::Append(_), Variant::Decode(_)) => {}
    }
}
