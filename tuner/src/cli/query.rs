//! `nvkv-tune query`: the winner for one problem and shape, its numbers, where they come from.

mod answer;

use super::args::{self, Arch, BadArguments, DbArgs};
use super::{Done, NOTHING, print, print_json, tune};
use crate::pipeline::{headline, limits};
use nvkv_db::{Answer, Db, Query};
use nvkv_spec::{
    AppendMode, AppendProblem, DecodeProblem, Dtype, KvFormat, Lengths, Numerics, Operation, Problem, Shape,
    VScaleOrder,
};
use std::process::ExitCode;

/// Arguments of `query`: one problem, one shape.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Target such as sm_90, or `native`: the GPU that is there
    #[arg(long, value_name = "ARCH", value_parser = args::arch, default_value = "native")]
    arch: Arch,
    /// decode, fused or append
    #[arg(long, default_value = "decode")]
    op: Operation,
    /// nvfp4, fp8_e4m3, or fp8_e4m3+nvfp4 (K in FP8, V in NVFP4)
    #[arg(long, default_value = "nvfp4")]
    kv_format: KvFormat,
    /// fp8 or exact; not for append [default: fp8]
    #[arg(long)]
    numerics: Option<Numerics>,
    /// 64, 128 or 256
    #[arg(long, value_parser = args::head_dim, allow_negative_numbers = true)]
    head_dim: u32,
    /// Query heads a KV head, 1 to 16; not for append
    #[arg(long, value_parser = args::group, allow_negative_numbers = true)]
    group: Option<u32>,
    /// 8, 16, 32, 64 or 128
    #[arg(long, value_parser = args::page_size, allow_negative_numbers = true)]
    page_size: u32,
    /// New tokens a request, 1 to 8; not for append [default: 1]
    #[arg(long, value_parser = args::q_len, allow_negative_numbers = true)]
    q_len: Option<u32>,
    /// Sliding window, the newest tokens that a query sees; not for append [default: all]
    #[arg(long, value_name = "N", value_parser = args::size, allow_negative_numbers = true)]
    window: Option<u32>,
    /// With attention sinks; not for append
    #[arg(long)]
    sinks: bool,
    /// With a soft cap of the scores; not for append
    #[arg(long)]
    soft_cap: bool,
    /// f16 or bf16
    #[arg(long, default_value = "bf16")]
    dtype: Dtype,
    /// linear or interleaved4: must be that of your cache
    #[arg(long, default_value = "linear")]
    v_scale_order: VScaleOrder,
    /// Requests; not for append
    #[arg(long, value_parser = args::size, allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Cached tokens a request; not for append
    #[arg(long, value_parser = args::size, allow_negative_numbers = true)]
    context: Option<u32>,
    /// How the batch's lengths are distributed up to the context: equal or log-uniform
    #[arg(long, default_value = "equal")]
    lengths: Lengths,
    /// New tokens; for append only
    #[arg(long, value_parser = args::size, allow_negative_numbers = true)]
    tokens: Option<u32>,
    /// KV heads
    #[arg(long, value_parser = args::size, allow_negative_numbers = true, default_value = "8")]
    kv_heads: u32,
    #[command(flatten)]
    db: DbArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let (problem, shape) = args.question()?;
    limits::check(&[(problem, vec![shape])])?;
    let target = match args.arch {
        Arch::Named(target) => target,
        Arch::Native => tune::machine(Arch::Native)?.target,
    };
    eprintln!("{}", headline(target));
    let query = Query { target, problem, shape, environment: None };
    let answer = Db::open_read_only(&args.db.db)?.query(&query)?;
    if args.json { print_json(&answer::json(&query, &answer)) } else { print(&answer::describe(&query, &answer)) }?;
    Ok(if matches!(answer, Answer::Miss { .. }) { ExitCode::from(NOTHING) } else { ExitCode::SUCCESS })
}

impl Args {
    fn question(&self) -> Result<(Problem, Shape), BadArguments> {
        let Self { kv_format, head_dim, page_size, dtype, v_scale_order, kv_heads, .. } = *self;
        let attends = self.op != Operation::Append;
        // Name, whether it is given, whether it must be; options of one operation mean nothing to the other.
        let of_decode = [
            ("--numerics", self.numerics.is_some(), false),
            ("--q-len", self.q_len.is_some(), false),
            ("--window", self.window.is_some(), false),
            ("--sinks", self.sinks, false),
            ("--soft-cap", self.soft_cap, false),
            ("--group", self.group.is_some(), true),
            ("--batch", self.batch.is_some(), true),
            ("--context", self.context.is_some(), true),
        ];
        let of_append = [("--tokens", self.tokens.is_some(), true)];
        let (own, other) = if attends { (&of_decode[..], &of_append[..]) } else { (&of_append[..], &of_decode[..]) };
        self.refuse("does not take", other.iter().filter(|(_, given, _)| *given))?;
        self.refuse("asks for", own.iter().filter(|(_, given, needed)| *needed && !given))?;
        let (Some(group), Some(batch), Some(context)) = (self.group, self.batch, self.context) else {
            let problem = AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order };
            let tokens = self.tokens.unwrap_or_default();
            return Ok((Problem::Append(problem), Shape::Append { tokens, kv_heads }));
        };
        let append = if self.op == Operation::Fused { AppendMode::Fused } else { AppendMode::Separate };
        let (numerics, q_len) = (self.numerics.unwrap_or(Numerics::Fp8), self.q_len.unwrap_or(1));
        let problem = DecodeProblem {
            kv_format,
            numerics,
            head_dim,
            group,
            q_len,
            page_size,
            dtype,
            v_scale_order,
            append,
            window: self.window,
            sinks: self.sinks,
            soft_cap: self.soft_cap,
        };
        Ok((Problem::Decode(problem), Shape::Decode { batch, context, kv_heads, lengths: self.lengths }))
    }

    fn refuse<'a>(
        &self,
        how: &str,
        options: impl Iterator<Item = &'a (&'a str, bool, bool)>,
    ) -> Result<(), BadArguments> {
        let names: Vec<_> = options.map(|(name, ..)| *name).collect();
        if names.is_empty() {
            Ok(())
        } else {
            Err(BadArguments(format!("--op {} {how} {}", self.op, names.join(", "))))
        }
    }
}
