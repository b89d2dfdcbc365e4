//! `nvkv-tune query`: the winner for one problem and shape, its numbers, where they come from.

use super::args::{self, Arch, DbArgs};
use super::{Done, NOTHING, print, print_json, tune};
use crate::pipeline::headline;
use nvkv_db::{Answer, Db, KernelRecord, PredictedWinner, Query, Winner};
use nvkv_spec::{
    AppendMode, AppendProblem, DecodeProblem, Dtype, KvFormat, Numerics, Operation, Problem, Shape, SplitPolicy,
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
    /// nvfp4 or fp8_e4m3
    #[arg(long, default_value = "nvfp4")]
    kv_format: KvFormat,
    /// fp8 or exact
    #[arg(long, default_value = "fp8")]
    numerics: Numerics,
    /// 64, 128 or 256
    #[arg(long, value_parser = args::head_dim)]
    head_dim: u32,
    /// Query heads a KV head, 1 to 16; not for append
    #[arg(long, value_parser = args::group, required_unless_present_any = ["tokens"])]
    group: Option<u32>,
    /// 8, 16, 32, 64 or 128
    #[arg(long, value_parser = args::page_size)]
    page_size: u32,
    /// New tokens a request, 1 to 8
    #[arg(long, value_parser = args::q_len, default_value = "1")]
    q_len: u32,
    /// f16 or bf16
    #[arg(long, default_value = "bf16")]
    dtype: Dtype,
    /// linear or interleaved4: must be that of your cache
    #[arg(long, default_value = "linear")]
    v_scale_order: VScaleOrder,
    /// Requests
    #[arg(long, value_parser = args::size, required_unless_present = "tokens")]
    batch: Option<u32>,
    /// Cached tokens a request; not for append
    #[arg(long, value_parser = args::size, required_unless_present = "tokens")]
    context: Option<u32>,
    /// New tokens, for append
    #[arg(long, value_parser = args::size, conflicts_with_all = ["batch", "context"])]
    tokens: Option<u32>,
    /// KV heads
    #[arg(long, value_parser = args::size, default_value = "8")]
    kv_heads: u32,
    #[command(flatten)]
    db: DbArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let target = match args.arch {
        Arch::Named(target) => target,
        Arch::Native => tune::machine(Arch::Native)?.target,
    };
    eprintln!("{}", headline(target));
    let (problem, shape) = args.question()?;
    let answer = Db::open_read_only(&args.db.db)?.query(&Query { target, problem, shape, environment: None })?;
    if args.json { print_json(&answer) } else { print(&describe(&problem, shape, &answer)) }?;
    Ok(if matches!(answer, Answer::Miss { .. }) { ExitCode::from(NOTHING) } else { ExitCode::SUCCESS })
}

impl Args {
    fn question(&self) -> anyhow::Result<(Problem, Shape)> {
        let Self { kv_format, head_dim, page_size, dtype, v_scale_order, kv_heads, .. } = *self;
        if self.op == Operation::Append {
            let problem = AppendProblem { kv_format, head_dim, page_size, dtype, v_scale_order };
            let tokens = self.tokens.or(self.batch);
            let tokens = tokens.ok_or_else(|| anyhow::anyhow!("--op append asks for --tokens"))?;
            return Ok((Problem::Append(problem), Shape::Append { tokens, kv_heads }));
        }
        let (Some(group), Some(batch), Some(context)) = (self.group, self.batch, self.context) else {
            anyhow::bail!("--op {} asks for --group, --batch and --context", self.op);
        };
        let append = if self.op == Operation::Fused { AppendMode::Fused } else { AppendMode::Separate };
        let (numerics, q_len) = (self.numerics, self.q_len);
        let problem =
            DecodeProblem { kv_format, numerics, head_dim, group, q_len, page_size, dtype, v_scale_order, append };
        Ok((Problem::Decode(problem), Shape::Decode { batch, context, kv_heads }))
    }
}

fn describe(problem: &Problem, shape: Shape, answer: &Answer) -> String {
    let asked = format!("asked      {} at {}\n", problem.key(), shape.key());
    let body = match answer {
        Answer::Exact { winner } => timed("timed at this shape", winner),
        Answer::Bucket { winner, distance } => {
            timed(&format!("timed at {}, the nearest shape ({distance:.2} doublings away)", winner.shape.key()), winner)
        }
        Answer::Predicted { winner, .. } => predicted(winner),
        Answer::Miss { why, nearest } => {
            let nearest = nearest.map_or(String::new(), |p| format!("nearest    {}\n", p.key()));
            format!("miss       {why}\n{nearest}")
        }
    };
    asked + &body
}

fn kernel(record: &KernelRecord, split: Option<SplitPolicy>) -> String {
    let split = split.map_or("-".into(), |split| split.to_string());
    format!("kernel     {}\nsplit      {split}\n", record.key().kernel_id)
}

fn timed(trust: &str, winner: &Winner) -> String {
    let share = winner.ceiling_share().map_or(String::new(), |s| format!(", {:.0} % of the read ceiling", 100.0 * s));
    let default = winner.default.map_or("not timed".into(), |d| {
        let verdict = if d.beaten { "" } else { ", within noise" };
        format!("{:.1} µs ({:.2}×{verdict})", d.median_us, d.median_us / winner.times.median_us)
    });
    let times = &winner.times;
    let gpu = &winner.environment;
    kernel(&winner.kernel, winner.split)
        + &format!(
            "trust      {trust}\ntime       {:.1} µs median of {} (iqr {:.1}), {:.0} GB/s{share}\ndefault    {default}\n\
             error      {:.1e} relative, the largest of the verification\n\
             measured   {} on {}, driver {}, NVRTC {}\n",
            times.median_us,
            times.samples,
            times.iqr_us,
            winner.gbps(),
            winner.error,
            winner.created_at,
            gpu.name,
            gpu.driver,
            winner.kernel.nvrtc,
        )
}

fn predicted(winner: &PredictedWinner) -> String {
    kernel(&winner.kernel, winner.split)
        + &format!(
            "trust      PREDICTED for {}: compiled only, never run\ntime       {:.1} µs by the model, not a measurement\n\
             compiled   {}, NVRTC {}\n",
            winner.shape.key(),
            winner.predicted_us,
            winner.created_at,
            winner.kernel.nvrtc,
        )
}
