//! The command line as a user meets it, on a machine without a GPU: every promise and every error.
//!
//! The tunes here need NVRTC, found as always (`make toolchain` puts it where it is found).

#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected is")]

use assert_cmd::Command;
use nvkv_db::{Db, KernelRecord, NewRun, RunId, TrialRecord};
use nvkv_generator::{Preset, render, variants};
use nvkv_spec::{AppendProblem, Dtype, GpuEnvironment, KvFormat, Outcome, Problem, Target, VScaleOrder};
use nvkv_tuner::gpu;
use predicates::prelude::*;
use predicates::str::{contains, is_match};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// One problem with few variants: a tune of seconds.
const TINY: [&str; 14] = [
    "--arch",
    "sm_100",
    "--op",
    "append",
    "--kv-format",
    "nvfp4",
    "--head-dim",
    "64",
    "--page-size",
    "16",
    "--dtype",
    "f16",
    "--v-scale-order",
    "linear",
];

/// An empty folder to run in.
struct Place(tempfile::TempDir);

impl Place {
    /// The tiny tune as a process of its own, to be spawned.
    fn process(&self) -> std::process::Command {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("nvkv-tune"));
        command.current_dir(self.0.path()).env("CUDA_VISIBLE_DEVICES", "-1").args(TINY);
        command
    }

    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The binary in this folder. No GPU is visible, so that every machine answers alike.
    fn nvkv(&self) -> Command {
        let mut command = Command::cargo_bin("nvkv-tune").unwrap();
        command.current_dir(self.0.path()).env("CUDA_VISIBLE_DEVICES", "-1");
        command
    }

    fn tune(&self) -> Command {
        let mut command = self.nvkv();
        command.args(TINY).args(["--batch", "64"]);
        command
    }

    /// The manifest of the bundle for sm_100a.
    fn manifest(&self) -> Value {
        serde_json::from_slice(&fs::read(self.path("kernels-out/sm_100a/manifest.json")).unwrap()).unwrap()
    }

    /// Trials in the database over all runs, what the emulator said aside.
    fn trials(&self) -> u64 {
        trials_of(&self.path("db/nvkv.sqlite"))
    }

    /// Kernels that agreed with the reference in the emulator, over all runs.
    fn emulated(&self) -> u64 {
        outcomes_of(&self.path("db/nvkv.sqlite")).filter(|(kind, _)| kind == "emulated").map(|(_, n)| n).sum()
    }

    /// Kernels in the cache.
    fn cached(&self) -> usize {
        let nvrtc = fs::read_dir(self.path("kernels-out/.cache/sm_100a")).into_iter().flatten().flatten();
        let entries = nvrtc.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
        entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
    }

    /// Everything under this folder.
    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(self.0.path()).unwrap().flatten().map(|entry| entry.path()).collect()
    }
}

/// Trials in the database at `path` over all runs, what the emulator said aside.
fn trials_of(path: &Path) -> u64 {
    outcomes_of(path).filter(|(kind, _)| kind != "emulated").map(|(_, n)| n).sum()
}

fn outcomes_of(path: &Path) -> impl Iterator<Item = (String, u64)> {
    let db = Db::open_read_only(path).unwrap();
    (1..20).flat_map(move |run| db.outcomes(RunId(run)).unwrap())
}

/// Feasible variants of the tiny problem.
fn feasible(place: &Place) -> u64 {
    let output = place.nvkv().arg("space").args(TINY).arg("--json").output().unwrap();
    let space: Value = serde_json::from_slice(&output.stdout).unwrap();
    space["problems"][0]["feasible"].as_array().unwrap().len() as u64
}

#[test]
fn bad_arguments_name_what_is_known() {
    let place = Place::new();
    for (arguments, expected) in [
        (["--arch", "sm_75"], "sm_121"),
        (["--preset", "huge"], "quick, standard, full"),
        (["--op", "prefill"], "decode, fused, append"),
        (["--head-dim", "96"], "64, 128, 256"),
        (["--group", "17"], "from 1 to 16"),
        (["--page-size", "12"], "8, 16, 32, 64, 128"),
        (["--q-len", "0"], "from 1 to 8"),
        (["--window", "0"], "from 1"),
        (["--window", "wide"], "or none"),
        (["--numerics", "fp4"], "fp8, exact"),
        (["--kv-format", "int4"], "nvfp4"),
        (["--v-scale-order", "random"], "interleaved4"),
        (["--batch", "0"], "from 1"),
        (["--time-limit", "soon"], "minutes"),
        (["--time-limit", "0"], "more than 0"),
        (["--group", "-1"], "from 1 to 16"),
        (["--batch", "-4"], "from 1"),
    ] {
        place.nvkv().args(arguments).assert().code(2).stderr(contains(arguments[1]).and(contains(expected)));
    }
    place.nvkv().arg("--frobnicate").assert().code(2);
    place.nvkv().arg("--sinks=maybe").assert().code(2).stderr(contains("maybe").and(contains("yes or no")));
    let extra = place.nvkv().args(["--arch", "sm_100", "extra"]).assert();
    extra.code(2).stderr(contains("unexpected argument 'extra'"));
    let late = place.nvkv().args(["--arch", "sm_100", "query"]).assert();
    late.code(2).stderr(contains("`nvkv-tune query ...`"));
    assert!(place.files().is_empty());
}

#[test]
fn every_command_has_examples_completions_and_a_page() {
    let place = Place::new();
    let help = |arguments: &[&str]| {
        let assert = place.nvkv().args(arguments).assert().code(0);
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    let listed = help(&["-h"]);
    let commands: Vec<&str> = listed
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    assert!(
        commands.contains(&"tune") && commands.contains(&"report") && !commands.contains(&"worker"),
        "{commands:?}"
    );
    let scripts = ["bash", "zsh", "fish"].map(|shell| help(&["completions", shell]));
    for command in commands {
        let said = help(&[command, "--help"]);
        let example = format!("nvkv-tune {command}");
        assert!(said.contains("Examples:") && (command == "tune" || said.contains(&example)), "{said}");
        assert!(scripts.iter().all(|script| script.contains(command)), "{command}");
        assert!(help(&["man", command]).contains(&format!(".TH nvkv-tune-{command} 1")), "{command}");
    }
    assert!(help(&["man"]).contains(".TH nvkv-tune 1"));
    place.nvkv().args(["man", "worker"]).assert().code(2).stderr(contains("worker"));
    place.nvkv().args(["completions", "csh"]).assert().code(2).stderr(contains("bash"));
}

#[cfg(unix)]
#[test]
fn the_completion_script_is_valid_bash() {
    let place = Place::new();
    let script = place.path("nvkv-tune.bash");
    fs::write(&script, place.nvkv().args(["completions", "bash"]).output().unwrap().stdout).unwrap();
    let completes = format!(
        "source {}; function=$(complete -p nvkv-tune | sed 's/.*-F \\([^ ]*\\).*/\\1/'); COMP_WORDS=(nvkv-tune repo) COMP_CWORD=1; \
         $function nvkv-tune repo nvkv-tune; echo ${{COMPREPLY[0]}}",
        script.display()
    );
    Command::new("bash").args(["-c", &completes]).assert().code(0).stdout("report\n");
}

/// The problems of `space` with these arguments.
fn problems_of(place: &Place, arguments: &[&str]) -> Vec<String> {
    let assert = place.nvkv().args(["space", "--arch", "sm_90", "--json"]).args(arguments).assert().code(0);
    let space: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    space["problems"].as_array().unwrap().iter().map(|p| p["problem"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_model_of_the_users_file_is_tuned_like_a_built_in_one() {
    let place = Place::new();
    let mine = "[model.mine]\nnum_attention_heads = 16\nnum_key_value_heads = 4\nhead_dim = 64\n\
                [problems.fleet]\nmodels = [\"mine\", \"gpt-oss-20b\"]\ntp = 2\nop = [\"decode\"]\nnumerics = [\"exact\"]\n\
                kv_format = [\"nvfp4\"]\nbatch = [7]\n";
    let op = ["--op", "decode", "--numerics", "exact", "--kv-format", "nvfp4"];
    fs::write(place.path("nvkv.toml"), mine).unwrap();
    let plain = "decode-nvfp4-exact-d64-g4-q1-p16-bf16-linear";
    let oss = "decode-nvfp4-exact-d64-g8-q1-p16-bf16-linear";
    let fleet = [plain.into(), format!("{oss}-sinks"), format!("{oss}-w128-sinks")];
    assert_eq!(problems_of(&place, &[&["--model", "mine"], &op[..]].concat()), [plain]);
    assert_eq!(problems_of(&place, &[&["--model", "mine,gpt-oss-20b"], &op[..]].concat()), fleet);
    assert_eq!(problems_of(&place, &["--problems", "fleet"]), fleet);
    fs::rename(place.path("nvkv.toml"), place.path("other.toml")).unwrap();
    assert_eq!(problems_of(&place, &["--problems", "fleet", "--config", "other.toml"]), fleet);
    place.nvkv().args(["models", "--config", "other.toml"]).assert().code(0).stdout(contains("mine"));
    for (arguments, expected) in [
        ("--model mine", "unknown model `mine`; known: "),
        ("--problems fleet", "nvkv.toml has none"),
        ("--model qwen3-8b --head-dim 64", "--head-dim"),
        ("--problems fleet --config other.toml --batch 8", "leave the lists out"),
        ("--model qwen3-8b --problems fleet", "--model and --problems"),
        ("--tp 2", "--model"),
        ("--config other.toml", "--problems"),
        ("--model qwen3-8b --tp 3", "32 query heads cannot be divided by 3"),
        ("--model qwen3-8b --config none.toml", "none.toml"),
    ] {
        let assert = place.nvkv().args(["--arch", "sm_90", "--plan"]).args(arguments.split(' ')).assert();
        assert.code(2).stderr(contains(expected));
    }
    fs::write(place.path("nvkv.toml"), mine.replace("head_dim = 64", "head_dim = 65")).unwrap();
    let wrong = place.nvkv().args(["models"]).assert().code(2);
    wrong.stderr(contains("nvkv.toml: model.mine.head_dim: 65 is none of 64, 128, 256"));
}

#[test]
fn options_that_nothing_uses_are_refused() {
    let place = Place::new();
    for (option, value) in
        [("--context", "4096"), ("--group", "4"), ("--q-len", "2"), ("--window", "64"), ("--numerics", "exact")]
    {
        for command in [["space"].as_slice(), &["tune", "--plan"]] {
            let append =
                place.nvkv().args(command).args(["--arch", "sm_100", "--op", "append", option, value]).assert();
            append.code(2).stderr(contains(option).and(contains("append")));
        }
        let both = place.nvkv().args(["space", "--arch", "sm_100", "--op", "append, decode", option, value]).assert();
        both.code(0).stdout(contains("append-").and(contains("decode-")));
    }
    place.tune().arg("--plan").assert().code(0).stderr(contains("libcuda").not());
}

#[test]
fn arguments_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"out-\xff");
    let place = Place::new();
    place.tune().arg("--out").arg(odd).arg("--plan").assert().code(0);
}

#[test]
fn impossible_sizes_name_the_option_to_lower() {
    let place = Place::new();
    for (sizes, option) in [
        (&["--op", "decode", "--batch", "100000", "--context", "64"][..], "lower --batch"),
        (&["--op", "fused", "--batch", "1", "--context", "4096", "--kv-heads", "67108864"], "or --kv-heads"),
        (&["--op", "append", "--batch", "67108864", "--kv-heads", "60000"], "--tokens of a query"),
    ] {
        for plan in [&["--plan"][..], &[]] {
            place.nvkv().args(["--arch", "sm_90"]).args(sizes).args(plan).assert().code(2).stderr(contains(option));
        }
    }
    assert!(place.files().is_empty());
}

#[test]
fn native_without_a_gpu_says_to_name_the_target() {
    Place::new().nvkv().assert().code(2).stderr(contains("--arch sm_100"));
}

#[test]
fn buckets_are_measured_on_a_gpu_only() {
    let place = Place::new();
    let held_out = |arguments: &[&str]| place.tune().arg("--held-out").args(arguments).assert().code(2);
    held_out(&[]).stderr(contains("--held-out").and(contains("a GPU of sm_100a")));
    // A plan needs no GPU; between 64 and 256 tokens is 128.
    let plan = |shapes: &str| {
        let arguments = ["--batch", shapes, "--held-out", "--plan"];
        place.nvkv().args(TINY).args(arguments).assert().code(0).stderr(contains("and what comes of these decides"))
    };
    plan("64,256").stdout(contains("at 2 shapes, and about 1 between them"));
    plan("64").stdout(contains("at 1 shape\n"));
    // What contradicts itself is told first, whether a GPU is here or not.
    for target in [&TINY[..2], &[]] {
        let shard = place.nvkv().args(target).args(["--held-out", "--shard", "0/2"]).assert().code(2);
        shard.stderr(contains("a shard has a part of them").and(contains("GPU").not()));
    }
    assert!(place.files().is_empty(), "found out before anything is written");
}

#[test]
fn a_regret_without_rows_says_why_and_what_would_give_some() {
    let place = Place::new();
    place.nvkv().arg("regret").assert().code(1).stderr(contains("no database at db/nvkv.sqlite"));
    timed_database(&place, "timed.sqlite", 10.0);
    drop(Db::open(&place.path("empty.sqlite")).unwrap());
    let regret =
        |db: &str, arguments: &[&str]| place.nvkv().args(["regret", "--db", db]).args(arguments).assert().code(1);
    regret("timed.sqlite", &[])
        .stdout(contains("none of 1 buckets was measured"))
        .stderr(contains("`nvkv-tune --held-out` measures buckets between the tuned shapes"));
    regret("timed.sqlite", &["--only", "b64"])
        .stdout("")
        .stderr("timed.sqlite has no timed winner whose name contains `b64`; without --only it has 1\n");
    for (db, arguments, words) in
        [("timed.sqlite", &["--arch", "sm_100"][..], " for sm_100a"), ("empty.sqlite", &["--only", "b64"], "")]
    {
        let said = format!("{db} has no timed winner{words}; `nvkv-tune --held-out` times kernels, where a GPU is\n");
        regret(db, arguments).stdout("").stderr(said);
    }
    regret("empty.sqlite", &["--csv"]).stdout(is_match("^target,gpu,driver,.*,verdict\n$").unwrap());
    let none = place.nvkv().args(["report", "--db", "timed.sqlite", "--only", "b64"]).assert().code(1);
    none.stderr(contains("timed.sqlite has no trial whose name contains `b64`: "));
}

/// What a full disk leaves of a database is none, and a report is not written over one.
#[test]
fn an_empty_file_is_no_database_and_a_database_no_place_for_a_report() {
    let place = Place::new();
    timed_database(&place, "timed.sqlite", 10.0);
    fs::write(place.path("empty.sqlite"), "").unwrap();
    let merge = ["merge", "timed.sqlite", "empty.sqlite", "-o", "merged.sqlite"];
    place.nvkv().args(merge).assert().code(1).stderr(contains("empty.sqlite").and(contains("it is empty")));
    assert!(!place.path("merged.sqlite").exists());
    let trials = trials_of(&place.path("timed.sqlite"));
    for format in ["html", "csv", "json", "t4"] {
        let report = ["report", "--db", "timed.sqlite", "--format", format, "-o", "./timed.sqlite"];
        place.nvkv().args(report).assert().code(2).stderr(contains("./timed.sqlite is a database: name another file"));
    }
    assert_eq!(trials_of(&place.path("timed.sqlite")), trials);
}

/// What only reads a database names what is in its place, and an option only where the command has it.
#[test]
fn a_folder_in_a_databases_place_is_told() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    let commands: [(&[&str], i32); 5] = [
        (&["regret", "--db", "folder"], 1),
        (&["report", "--db", "folder"], 1),
        (&["replay", "folder"], 1),
        (&["diff", "folder", "folder"], 2),
        (&["merge", "folder", "-o", "merged.sqlite"], 1),
    ];
    for (arguments, code) in commands {
        let said = place.nvkv().args(arguments).assert().code(code);
        said.stderr("error: cannot open the database folder: it is a folder; name another file\n");
    }
    assert!(!place.path("merged.sqlite").exists());
}

#[test]
fn a_missing_compiler_is_named_with_the_command_that_installs_it() {
    let place = Place::new();
    let nowhere = place.path("nowhere");
    place.tune().env("NVKV_NVRTC", &nowhere).assert().code(1).stderr(contains("NVKV_NVRTC"));
    place.nvkv().arg("doctor").env("NVKV_NVRTC", &nowhere).assert().code(1).stdout(contains("missing"));
    assert!(place.files().is_empty(), "found out before anything is written");
}

#[test]
fn a_compiler_without_its_builtins_is_told_and_nothing_is_recorded() {
    let nvrtc = gpu::working_nvrtc(Target::Sm100a).unwrap().path().to_path_buf();
    if !nvrtc.is_absolute() {
        return; // The loader finds NVRTC by itself, and so it finds the builtins: they cannot be taken away.
    }
    let place = Place::new();
    fs::create_dir(place.path("half")).unwrap();
    fs::copy(nvrtc, place.path("half/libnvrtc.so.13")).unwrap();
    let told = || contains("half/libnvrtc.so.13").and(contains("compiles nothing")).and(contains("make toolchain"));
    place.tune().env("NVKV_NVRTC", "half").assert().code(1).stderr(told());
    place.nvkv().arg("doctor").env("NVKV_NVRTC", "half").assert().code(1).stdout(told());
    assert_eq!(place.files(), [place.path("half")]);
    fs::write(place.path("half/libnvrtc.so.13"), "no library").unwrap();
    place.tune().env("NVKV_NVRTC", "half").assert().code(1).stderr(contains("does not load").and(contains("pip")));
}

/// Records that every kernel of the tiny problem failed to compile, as it would be after a real refusal.
fn record_failures(db: &Path, nvrtc: &str) -> usize {
    let problem = Problem::Append(AppendProblem {
        kv_format: KvFormat::Nvfp4,
        head_dim: 64,
        page_size: 16,
        dtype: Dtype::F16,
        v_scale_order: VScaleOrder::Linear,
    });
    let target = Target::Sm100a;
    let run = NewRun {
        started_at: "2026-11-29T10:00:00Z".into(),
        command: "nvkv-tune".into(),
        target,
        preset: "quick".into(),
        search: "exhaustive".into(),
        generator: env!("CARGO_PKG_VERSION").into(),
        nvrtc: nvrtc.into(),
        environment: None,
        measurement_policy: None,
    };
    let mut db = Db::open(db).unwrap();
    let id = db.begin_run(&run).unwrap();
    let variants = variants(&problem, Preset::Quick);
    for &variant in &variants {
        let kernel = KernelRecord {
            target,
            problem,
            variant,
            source_hash: render(&problem, &variant, target).unwrap().hash,
            nvrtc: nvrtc.into(),
            generator: run.generator.clone(),
            compiled: None,
        };
        let outcome = Outcome::CompileFailed { log: "kernel.cu(7): error: no such thing".into() };
        let trial = TrialRecord {
            kernel,
            shape: None,
            split: None,
            is_default: false,
            outcome,
            bytes: 0,
            samples: vec![],
            measurements: vec![],
        };
        db.record(id, &trial).unwrap();
    }
    variants.len()
}

#[test]
fn what_failed_before_is_said() {
    let place = Place::new();
    let nvrtc = gpu::working_nvrtc(Target::Sm100a).unwrap().version();
    let failed = record_failures(&place.path("failed.sqlite"), &nvrtc);
    let said = contains(format!("{failed} of {failed} kernels failed before")).and(contains("no such thing"));
    place.tune().args(["--db", "failed.sqlite"]).assert().code(1).stderr(said);
}

#[test]
fn the_quarantine_is_listed_and_let_out_of() {
    let place = Place::new();
    let nvrtc = gpu::working_nvrtc(Target::Sm100a).unwrap().version();
    let failed = record_failures(&place.path("db/nvkv.sqlite"), &nvrtc);
    let quarantine = |arguments: &[&str]| place.nvkv().arg("quarantine").args(arguments).assert();
    let listed = contains("compile_failed: kernel.cu(7): error: no such thing").and(contains("no GPU"));
    quarantine(&[]).code(0).stdout(listed.and(contains(format!("{failed} kernels are left out"))));
    let json: Value = serde_json::from_slice(&quarantine(&["--json"]).get_output().stdout).unwrap();
    let (one, rows) = (&json[0], json.as_array().unwrap().len());
    assert_eq!((rows, &one["target"], &one["place"]), (failed, &"sm_100a".into(), &Value::Null));
    assert_eq!(one["reason"], "kernel.cu(7): error: no such thing");

    quarantine(&["--release", "crashed"]).code(1).stderr(contains("failed as `crashed`"));
    quarantine(&["--release", one["kernel"].as_str().unwrap()]).code(0).stdout(contains("1 kernels are tried again"));
    place.tune().assert().code(0).stderr(contains("1 compiled").and(contains(format!("{} of {failed}", failed - 1))));
    quarantine(&["--release", "compile_failed"]).code(0);
    quarantine(&[]).code(0).stdout(contains("no kernel is in quarantine"));
    place.tune().assert().code(0).stderr(contains("failed before").not());
    assert_eq!(place.trials(), 2 * failed as u64, "the failures stay");
    place.nvkv().args(["quarantine", "--db", "none.sqlite"]).assert().code(1).stderr(contains("no database"));
}

#[test]
fn doctor_succeeds_where_kernels_can_be_compiled() {
    let place = Place::new();
    let found = contains("NVRTC").and(contains("13.")).and(contains("--arch sm_100")).and(contains("db/nvkv.sqlite"));
    place.nvkv().arg("doctor").assert().code(0).stdout(found);
    assert!(place.files().is_empty());
}

#[test]
fn a_plan_writes_nothing() {
    let place = Place::new();
    let counts = contains("compiles").and(contains("time")).and(contains("disk")).and(contains("at 1 shape\n"));
    place.tune().arg("--plan").assert().code(0).stdout(counts).stderr(contains("target sm_100a"));
    let large = ["--plan", "--arch", "sm_100", "--op", "decode", "--preset", "standard", "--jobs", "100000"];
    let long = is_match(r"compiles   \d+,\d{3},?\d* with 100,000 jobs(.|\n)*about \d+ (min|h),").unwrap();
    place.nvkv().args(large).assert().code(0).stdout(long);
    let output = place.tune().args(["--plan", "--json", "--search", "model"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["search"], "model");
    assert_eq!((plan["problems"].as_u64(), plan["timings"].as_u64()), (Some(1), Some(0)));
    assert_eq!(plan["compiles"].as_u64(), Some(feasible(&place)));
    assert!(place.files().is_empty());
}

#[test]
fn rejections_are_told_in_words_and_only_those_of_the_problem() {
    let base = ["space", "--arch", "sm_100", "--op", "decode", "--kv-format", "nvfp4", "--numerics", "fp8"];
    let told = contains("the target has no wgmma").and(contains("another format or numerics class"));
    let place = Place::new();
    place.nvkv().args(base).assert().code(0).stdout(told.and(contains("NoWgmma").not()));
    let plan = place.nvkv().args(&base[1..]).arg("--plan").assert();
    plan.code(0).stdout(is_match(r"variants +\d+\n +\d+ rejected: ").unwrap());
    let output = place.nvkv().args(base).arg("--json").output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let space = &json["problems"][0];
    let rejected = space["rejected"].as_object().unwrap();
    assert!(rejected.contains_key("NoWgmma") && !rejected.contains_key("WrongNumerics"));
    let counted: u64 = rejected.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(counted + space["feasible"].as_array().unwrap().len() as u64, space["variants"].as_u64().unwrap());
}

#[test]
fn lists_replace_the_axes_of_the_preset() {
    let space = |arguments: &[&str]| -> Vec<String> {
        let base = ["space", "--arch", "sm_100", "--json", "--op", "decode"];
        let output = Place::new().nvkv().args(base).args(arguments).output().unwrap();
        let space: Value = serde_json::from_slice(&output.stdout).unwrap();
        space["problems"].as_array().unwrap().iter().map(|p| p["problem"].as_str().unwrap().to_string()).collect()
    };
    let one = ["--kv-format", "nvfp4", "--numerics", "fp8", "--head-dim", "256", "--group", "5", "--q-len", "2"];
    let one =
        [one.as_slice(), &["--page-size", "32", "--dtype", "bf16", "--v-scale-order", "linear,interleaved4"]].concat();
    let expected = ["linear", "interleaved4"].map(|order| format!("decode-nvfp4-fp8-d256-g5-q2-p32-bf16-{order}"));
    assert_eq!(space(&one), expected);
    // FP8 caches have no block scales: their order is no axis.
    let fp8 = space(&[&one[..], &["--kv-format", "fp8_e4m3"]].concat()[2..]);
    assert_eq!(fp8, ["decode-fp8_e4m3-fp8-d256-g5-q2-p32-bf16-linear"]);
    let mixed = space(&[&one[..], &["--kv-format", "fp8_e4m3+nvfp4"]].concat()[2..]);
    let expected =
        ["linear", "interleaved4"].map(|order| format!("decode-fp8_e4m3+nvfp4-fp8-d256-g5-q2-p32-bf16-{order}"));
    assert_eq!(mixed, expected);
    // Each feature is an axis, and what is absent leaves no trace in a name.
    let plain = "decode-nvfp4-fp8-d256-g5-q2-p32-bf16-linear";
    let features =
        space(&[&one[..one.len() - 1], &["linear", "--window", "none, 128", "--sinks", "--soft-cap=yes,no"]].concat());
    let expected = ["-sinks-cap", "-sinks", "-w128-sinks-cap", "-w128-sinks"].map(|suffix| format!("{plain}{suffix}"));
    assert_eq!(features, expected);
    let standard = space(&["--preset", "standard"]);
    let of_model = |name: &str| standard.iter().any(|key| key == name);
    assert!(of_model("decode-nvfp4-fp8-d64-g8-q1-p16-bf16-linear-w128-sinks"), "{standard:?}");
    assert!(of_model("decode-nvfp4-fp8-d256-g2-q1-p16-bf16-linear-w4096-cap"), "{standard:?}");
}

#[test]
fn a_tune_without_a_gpu_predicts_and_bundles() {
    let place = Place::new();
    let tune = place.tune().assert().code(0);
    let headline = contains("target sm_100a").and(contains("PREDICTED"));
    tune.stdout(contains("PREDICTED").and(contains("append-nvfp4-d64-p16-f16-linear"))).stderr(headline);
    assert_eq!(place.trials(), feasible(&place));

    let manifest = place.manifest();
    assert_eq!((&manifest["schema"], &manifest["target"]), (&4.into(), &"sm_100a".into()));
    let kernels = manifest["kernels"].as_array().unwrap();
    assert!(kernels.iter().all(|kernel| kernel["evidence"]["evidence"] == "emulated"), "{kernels:?}");
    assert_eq!(place.emulated(), kernels.len() as u64);
    let selection = &manifest["kernels"][winner(&manifest)]["selections"][0];
    assert_eq!(selection["trust"], "predicted");
    assert!(selection["predicted_us"].as_f64().unwrap() > 0.0 && selection["median_us"].is_null());

    place.nvkv().arg("verify").assert().code(0).stdout(contains("sound"));
    let query =
        ["query", "--arch", "sm_100", "--op", "append", "--head-dim", "64", "--page-size", "16", "--dtype", "f16"];
    place
        .nvkv()
        .args(query)
        .args(["--tokens", "64"])
        .assert()
        .code(0)
        .stdout(contains("PREDICTED").and(contains("right in the emulator")));
    let other = query.map(|argument| if argument == "16" { "128" } else { argument });
    place.nvkv().args(other).args(["--tokens", "64"]).assert().code(1).stdout(contains("miss"));

    // The same command again: nothing is compiled, nothing is recorded twice, the bundle is there.
    let again = place
        .tune()
        .arg("--json")
        .assert()
        .code(0)
        .stderr(contains("from cache").and(is_match(r"\d compiled").unwrap().not()));
    let json: Value = serde_json::from_slice(&again.get_output().stdout).unwrap();
    assert_eq!(
        (&json["rows"][0]["trust"], &json["rows"][0]["evidence"]),
        (&"predicted".into(), &kernels[0]["evidence"])
    );
    assert_eq!((place.trials(), place.emulated()), (feasible(&place), kernels.len() as u64));

    flip_a_byte(
        &place.path("kernels-out/sm_100a").join(manifest["kernels"][0]["files"]["cubin"]["path"].as_str().unwrap()),
    );
    place.nvkv().arg("verify").assert().code(1).stdout(contains("kernel.cubin").and(contains("NOT SOUND")));
}

#[test]
fn a_bundle_is_verified_in_the_emulator() {
    let place = Place::new();
    place.tune().assert().code(0);
    let emulate = |arguments: &[&str]| place.nvkv().args(["verify", "--emulate", "--quick"]).args(arguments).assert();
    emulate(&[]).code(0).stdout(contains("run in the emulator")).stderr(contains("3 cases"));
    let json = emulate(&["--json"]).code(0).get_output().stdout.clone();
    let verdicts: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&verdicts[0]["sound"], &verdicts[0]["ran_on"]), (&true.into(), &"emulator".into()));
    place.nvkv().arg("verify").assert().code(0).stderr(contains("--emulate"));

    // PTX that writes nothing, in a manifest that agrees with it: only running it tells.
    let mut manifest = place.manifest();
    let entry = &mut manifest["kernels"][0]["files"]["ptx"];
    let path = place.path("kernels-out/sm_100a").join(entry["path"].as_str().unwrap());
    let ptx = fs::read_to_string(&path).unwrap().replace("st.global", "// st.global");
    *entry = serde_json::json!({ "path": entry["path"], "blake3": blake3::hash(ptx.as_bytes()).to_hex().as_str(), "bytes": ptx.len() });
    fs::write(path, ptx).unwrap();
    rewrite(&place, &manifest);
    place.nvkv().arg("verify").assert().code(0);
    emulate(&[]).code(1).stdout(contains("NOT SOUND").and(contains("bytes of the cache differ")));
}

fn flip_a_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_tune_goes_on_where_nobody_reads_its_messages() {
    let place = Place::new();
    let mut child =
        place.process().args(["--batch", "64"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.manifest()["target"], "sm_100a");
}

/// The place of the first kernel that has a selection.
fn winner(manifest: &Value) -> usize {
    let kernels = manifest["kernels"].as_array().unwrap();
    kernels.iter().position(|kernel| kernel["selections"].as_array().is_some_and(|s| !s.is_empty())).unwrap()
}

/// Changes the manifest of sm_100a, and its digest with it, as one would who means to.
fn rewrite(place: &Place, manifest: &Value) {
    rewrite_bundle(&place.path("kernels-out/sm_100a"), manifest);
}

/// The same of the bundle in a folder.
fn rewrite_bundle(folder: &Path, manifest: &Value) {
    let bytes = serde_json::to_vec_pretty(manifest).unwrap();
    let digest = format!("{}  manifest.json\n", blake3::hash(&bytes).to_hex());
    fs::write(folder.join("manifest.json"), bytes).unwrap();
    fs::write(folder.join("manifest.b3"), digest).unwrap();
}

/// A path in the manifest (`/winner` is the kernel that has a selection), what is put there, and what `verify` says then.
const LIES: [(&str, &str, &str); 24] = [
    ("/schema", "0", "schema 0"),
    ("/target", r#""sm_90a""#, "sm_90a"),
    ("/kernels", "[]", "no kernels"),
    ("/winner/selections", "[]", "no selections"),
    ("/kernels/0/symbol", r#""other""#, "symbol"),
    ("/kernels/0/launch/threads", "64", "launch"),
    ("/kernels/0/launch/shared_bytes", "0", "launch"),
    ("/kernels/0/launch/grid/0", r#""1""#, "launch"),
    ("/kernels/0/launch/default_max_splits", r#""1""#, "launch"),
    ("/kernels/0/variant/query_tile", "0", "none that this nvkv-tune generates"),
    ("/kernels/0/numerics", r#""exact""#, "numerics"),
    ("/kernels/0/source_hash", r#""00""#, "source_hash"),
    ("/kernels/0/toolchain/nvrtc", r#""12.9""#, "12.9"),
    ("/kernels/0/compile/registers", "1", "compiler facts"),
    ("/kernels/0/is_default", "null", "not a manifest"),
    ("/kernels/0/files/cubin/bytes", "1", "kernel.cubin"),
    ("/kernels/0/files/cubin/path", r#""/etc/hostname""#, "not /etc/hostname"),
    ("/kernels/0/files/ptx/path", r#""../sm_100a/x""#, "not ../sm_100a/x"),
    ("/kernels/0/evidence", r#"{"evidence": "verified_on_gpu", "gpu": "B200", "driver": "580"}"#, "verified on a GPU"),
    ("/winner/selections/0/workspace_bytes", "0", "workspace_bytes"),
    ("/winner/selections/0/split", "null", "no split"),
    ("/winner/selections/0/split", r#"{"chunk": {"tokens": 0}}"#, "no split"),
    ("/winner/selections/0/shape", r#"{"of": "append", "tokens": 1, "kv_heads": 1}"#, "another operation"),
    ("/winner/selections/0/trust", r#""timed""#, "times"),
];

#[test]
fn a_decode_bundle_has_a_fallback_and_verify_finds_every_lie_in_its_manifest() {
    let place = Place::new();
    let problem = ["--arch", "sm_100", "--op", "decode", "--kv-format", "nvfp4", "--numerics", "fp8"];
    place.nvkv().args(problem).args(["--head-dim", "64", "--batch", "1", "--context", "8192"]).assert().code(0);
    let said = contains("sound").and(contains("kernels compared")).and(contains(" 0 kernels compared").not());
    place.nvkv().arg("verify").assert().code(0).stdout(said);
    place.nvkv().args(["verify", "--db", "none"]).assert().code(0).stdout(contains("0 kernels compared"));
    let json: Value =
        serde_json::from_slice(&place.nvkv().args(["verify", "--json"]).output().unwrap().stdout).unwrap();
    assert_eq!((&json[0]["sound"], &json[0]["kernels_in_database"]), (&true.into(), &json[0]["kernels"]));

    let manifest = place.manifest();
    let defaults = manifest["kernels"].as_array().unwrap().iter().filter(|kernel| kernel["is_default"] == true);
    assert_eq!(defaults.count(), 1, "also where nothing was timed, and another kernel is predicted to win");

    let winner = winner(&manifest);
    for (path, value, expected) in LIES {
        let mut lie = manifest.clone();
        let path = path.replace("/winner", &format!("/kernels/{winner}"));
        *lie.pointer_mut(&path).unwrap() = serde_json::from_str(value).unwrap();
        rewrite(&place, &lie);
        let output = place.nvkv().arg("verify").output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(output.status.code() == Some(1) && text.contains(expected), "{path} = {value}: {text}");
    }
    for list in ["/kernels".to_string(), format!("/kernels/{winner}/selections")] {
        let mut twice = manifest.clone();
        let list = twice.pointer_mut(&list).unwrap().as_array_mut().unwrap();
        list.push(list[0].clone());
        rewrite(&place, &twice);
        place.nvkv().arg("verify").assert().code(1).stdout(contains("there twice"));
    }
    let mut measured = manifest.clone();
    measured["kernels"][winner]["selections"][0]["regret"] = 0.5.into();
    rewrite(&place, &measured);
    place.nvkv().arg("verify").assert().code(1).stdout(contains("it is predicted, and has a regret"));
    // A number that nothing else tells.
    let mut faster = manifest.clone();
    faster["kernels"][winner]["selections"][0]["predicted_us"] = 0.5.into();
    rewrite(&place, &faster);
    place.nvkv().arg("verify").assert().stderr(contains("other winners or times"));
    rewrite(&place, &manifest);
    fs::write(place.path("kernels-out/sm_100a/manifest.json"), serde_json::to_vec(&faster).unwrap()).unwrap();
    place.nvkv().arg("verify").assert().code(1).stdout(contains("manifest.json: changed"));

    rewrite(&place, &manifest);
    fs::rename(place.path("kernels-out/sm_100a"), place.path("kernels-out/sm_120a")).unwrap();
    place.nvkv().arg("verify").assert().code(1).stdout(contains("named as for sm_120a"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_is_named() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("nvkv-tune"));
    let output = command.args(["space", "--arch", "sm_100", "--op", "append"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("stdout") && said.contains("No space left"), "{said}");
}

/// Stores that the kernel of the manifest gave a wrong result on a GPU elsewhere.
fn record_as_wrong(place: &Place, kernel: &Value) {
    let text = |name: &str| kernel[name].as_str().unwrap().to_string();
    let run = NewRun {
        started_at: "2026-11-29T10:00:00Z".into(),
        command: "nvkv-tune".into(),
        target: Target::Sm100a,
        preset: "quick".into(),
        search: "exhaustive".into(),
        generator: kernel["toolchain"]["generator"].as_str().unwrap().into(),
        nvrtc: kernel["toolchain"]["nvrtc"].as_str().unwrap().into(),
        environment: Some(GpuEnvironment { name: "B200".into(), capability: (10, 0), ..GpuEnvironment::default() }),
        measurement_policy: None,
    };
    let trial = TrialRecord {
        kernel: KernelRecord {
            target: run.target,
            problem: serde_json::from_value(kernel["problem"].clone()).unwrap(),
            variant: serde_json::from_value(kernel["variant"].clone()).unwrap(),
            source_hash: text("source_hash"),
            nvrtc: run.nvrtc.clone(),
            generator: run.generator.clone(),
            compiled: None,
        },
        shape: None,
        split: None,
        is_default: false,
        outcome: Outcome::Wrong { error: 0.5, detail: "kv_len 17".into() },
        bytes: 0,
        samples: Vec::new(),
        measurements: Vec::new(),
    };
    let mut db = Db::open(&place.path("db/nvkv.sqlite")).unwrap();
    let id = db.begin_run(&run).unwrap();
    db.record(id, &trial).unwrap();
}

#[test]
fn a_default_that_was_wrong_on_a_gpu_is_no_fallback() {
    let place = Place::new();
    place.tune().assert().code(0);
    let default = |place: &Place| {
        let kernels = place.manifest()["kernels"].as_array().unwrap().clone();
        kernels.into_iter().find(|kernel| kernel["is_default"] == true)
    };
    record_as_wrong(&place, &default(&place).unwrap());
    place.tune().assert().code(0).stderr(contains("the default variant of append-nvfp4-d64-p16-f16-linear failed"));
    assert_eq!(default(&place), None);
    place.nvkv().arg("verify").assert().code(0);
}

#[test]
fn a_manifest_of_a_newer_schema_is_refused() {
    let place = Place::new();
    fs::create_dir_all(place.path("kernels-out/sm_100a")).unwrap();
    fs::write(place.path("kernels-out/sm_100a/manifest.json"), r#"{"schema": 99, "other": true}"#).unwrap();
    place.nvkv().arg("verify").assert().code(1).stderr(contains("99").and(contains("newer")));
}

#[test]
fn a_bundle_is_not_replaced_by_less_without_a_word() {
    let place = Place::new();
    let path = place.path("kernels-out/sm_100a/manifest.json");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let newer = r#"{"schema": 99, "other": true}"#;
    fs::write(&path, newer).unwrap();
    let before_the_work = || is_match(r"\d compiled").unwrap().not();
    let refused = |what: &'static str| contains(what).and(contains("--out")).and(before_the_work());
    place.tune().assert().code(1).stderr(refused("99"));
    assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();

    // Another database knows nothing of the first one's shape.
    place.tune().assert().code(0);
    let other = ["--db", "other.sqlite", "--batch", "32"];
    let lost = contains("had 1 selections").and(contains("t64-h8"));
    place.nvkv().args(TINY).args(other).assert().code(0).stderr(lost);

    // A bundle that was timed elsewhere.
    let mut manifest = place.manifest();
    let kernel = winner(&manifest);
    manifest["kernels"][kernel]["selections"][0]["trust"] = "timed".into();
    let timed = serde_json::to_vec(&manifest).unwrap();
    fs::write(&path, &timed).unwrap();
    place.nvkv().args(TINY).args(other).assert().code(1).stderr(refused("t32-h8"));
    assert_eq!(fs::read(&path).unwrap(), timed);
}

#[test]
fn a_killed_tune_goes_on_where_it_was() {
    let place = Place::new();
    let mut child = place
        .process()
        .args(["--batch", "64", "--jobs", "1"])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while place.cached() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was compiled");
        assert!(child.try_wait().unwrap().is_none(), "ended before it could be killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let (before, all) = (place.cached() as u64, feasible(&place));
    assert!(before < all, "killed too late to show anything");
    assert!(!place.path("kernels-out/sm_100a").exists());
    let kept = format!("{before} from cache");
    place.tune().assert().code(0).stderr(contains(format!("{} compiled", all - before)).and(contains(kept)));
    assert_eq!(place.trials(), all);
    place.nvkv().arg("verify").assert().code(0);
}

#[test]
fn a_tune_killed_again_and_again_comes_to_its_end() {
    let place = Place::new();
    // xorshift: moments that differ, the same in every run of the test.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let mut child =
            place.process().args(["--batch", "64"]).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(state % 1200));
        child.kill().unwrap(); // SIGKILL
        child.wait().unwrap();
    }
    place.tune().assert().code(0);
    assert_eq!(place.trials(), feasible(&place), "each trial once");
    place.nvkv().arg("verify").assert().code(0);
    place.nvkv().arg("quarantine").assert().code(0).stdout(contains("no kernel"));
}

#[test]
fn a_limit_on_files_is_named_and_the_tune_goes_on_without_it() {
    let place = Place::new();
    let nvkv = assert_cmd::cargo::cargo_bin("nvkv-tune");
    // Without the trap the system would end the process; 16 blocks of 512 bytes are less than any kernel takes.
    let limited = format!("trap '' XFSZ; ulimit -f 16; exec {} {} --batch 64", nvkv.display(), TINY.join(" "));
    let mut command = Command::new("sh");
    command.current_dir(place.0.path()).env("CUDA_VISIBLE_DEVICES", "-1").args(["-c", &limited]);
    let said = command.assert().code(1).get_output().stderr.clone();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("error: ") && (said.contains("ulimit -f") || said.contains("the disk fails")), "{said}");
    assert!(!place.path("kernels-out/sm_100a").exists());
    place.tune().assert().code(0);
    assert_eq!(place.trials(), feasible(&place));
    place.nvkv().arg("verify").assert().code(0);
}

/// Runs `script` where it may mount file systems that nobody else sees; none where the system does not allow that.
#[cfg(target_os = "linux")]
fn with_own_mounts(place: &Place, script: &str) -> Option<std::process::ExitStatus> {
    let unshared = |script: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-euc", script]).current_dir(place.0.path());
        command.env("CUDA_VISIBLE_DEVICES", "-1").stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    let may = unshared("mkdir tried && mount -t tmpfs tmpfs tried");
    may.is_ok_and(|status| status.success()).then(|| unshared(script).unwrap())
}

/// The database's disk is full while trials are recorded, then the bundles' while one is written; each time space is made,
/// and the same command goes on.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_loses_no_trial_and_the_same_command_goes_on() {
    let place = Place::new();
    let nvkv = assert_cmd::cargo::cargo_bin("nvkv-tune");
    let script = format!(
        r#"
        mkdir db kernels-out
        mount -t tmpfs -o size=256m tmpfs db
        mount -t tmpfs -o size=256m tmpfs kernels-out
        leave() {{ set -- $1 $2 $(df -Pk $1 | tail -n 1); mount -o remount,size=$(($5 + $2))k $1; }}
        tune() {{
            code=0; {nvkv} {tiny} --batch $2 2> $1.stderr || code=$?
            echo $code > $1.code
            for file in db/nvkv.sqlite*; do cp $file $1${{file#db/nvkv}}; done
        }}
        tune first 32
        leave db 140; tune database 64; mount -o remount,size=256m db
        rm -r kernels-out/sm_100a
        leave kernels-out 8; tune bundle 64; ls kernels-out > bundle.left; mount -o remount,size=256m kernels-out
        tune last 64
        mkdir small medium
        mount -t tmpfs -o size=64k tmpfs small
        mount -t tmpfs -o size=230k tmpfs medium
        {nvkv} merge db/nvkv.sqlite -o small/all.sqlite 2> small.stderr || ls small > merge.left
        {nvkv} merge db/nvkv.sqlite -o medium/all.sqlite 2> medium.stderr || ls medium >> merge.left
        {nvkv} verify
        "#,
        nvkv = nvkv.display(),
        tiny = TINY.join(" "),
    );
    let Some(status) = with_own_mounts(&place, &script) else {
        eprintln!("skipped: this system lets no user mount a tmpfs in a namespace (`unshare --user --mount`)");
        return;
    };
    let text = |name: &str| fs::read_to_string(place.path(name)).unwrap_or_default();
    assert!(status.success(), "{}", text("last.stderr"));
    let ends = ["first", "database", "bundle", "last"].map(|name| text(&format!("{name}.code")).trim().to_string());
    assert_eq!(ends, ["0", "1", "1", "0"], "{}", text("bundle.stderr"));
    let said = [text("database.stderr"), text("bundle.stderr")];
    assert!(
        said[0].contains("no space left for the database") && said[0].contains("run the same command again"),
        "{said:?}"
    );
    assert!(said[1].contains("the disk is full") && said[1].contains("the same command goes on"), "{said:?}");
    assert_eq!(text("bundle.left"), "", "neither a bundle nor half of one");
    for size in ["small", "medium"] {
        let said = text(&format!("{size}.stderr"));
        assert!(said.contains(&format!("no space left for the database {size}/all.sqlite")), "{said}");
    }
    assert_eq!(text("merge.left"), "", "neither a database nor half of one");

    let trials = ["first", "database", "bundle", "last"].map(|name| trials_of(&place.path(&format!("{name}.sqlite"))));
    let all = feasible(&place);
    assert!(trials[0] == all && (all..2 * all).contains(&trials[1]), "{trials:?}");
    assert_eq!(trials[2..], [2 * all; 2], "each trial of both shapes once");
}

/// Processes that `parent` started and that live, by any of its threads.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(String::from).collect::<Vec<_>>()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_compiler_that_is_killed_is_one_failure_and_compiles_the_next_time() {
    let place = Place::new();
    let tune = place
        .process()
        .args(["--batch", "64", "--jobs", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let start = Instant::now();
    // Once something is compiled the only child is the compiler, not the probe for a GPU.
    while place.cached() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was compiled");
        std::thread::sleep(Duration::from_millis(5));
    }
    let victims = children(tune.id());
    assert_eq!(victims.len(), 1, "killed too late to show anything");
    std::process::Command::new("kill").args(["-KILL", &victims[0]]).status().unwrap();
    let output = tune.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("1 failed") && said.contains("out of memory?") && !said.contains("last words"), "{said}");
    place.tune().assert().code(0).stderr(contains("1 compiled").and(contains("failed").not()));
    assert_eq!(place.trials(), feasible(&place) + 1);
}

#[test]
fn a_time_limit_stops_cleanly_and_says_how_to_go_on() {
    let place = Place::new();
    place.tune().args(["--time-limit", "0.00001"]).assert().code(1).stderr(contains("run the same command again"));
    place.tune().assert().code(0);
}

#[test]
fn two_tuners_share_a_database_and_a_folder() {
    let place = Place::new();
    std::thread::scope(|scope| {
        let run = |tokens: &'static str| {
            let mut command = place.nvkv();
            scope.spawn(move || command.args(TINY).args(["--batch", tokens]).assert().code(0))
        };
        for tuner in [run("32"), run("64")] {
            tuner.join().unwrap();
        }
    });
    assert_eq!(place.trials(), 2 * feasible(&place));
    place.nvkv().arg("verify").assert().code(0);
    assert!(
        place
            .path("kernels-out")
            .read_dir()
            .unwrap()
            .flatten()
            .all(|e| { ["sm_100a", ".cache", ".lock"].contains(&e.file_name().to_str().unwrap()) })
    );
}

#[test]
fn tuners_at_the_same_work_share_it() {
    let place = Place::new();
    let compiled = |stderr: &str| -> u64 {
        let last = stderr.lines().rfind(|line| line.contains(" in ")).unwrap();
        last.split(", ").find_map(|part| part.split_once(" compiled")).map_or(0, |(n, _)| n.parse().unwrap())
    };
    let total: u64 = std::thread::scope(|scope| {
        let run = || scope.spawn(|| place.tune().assert().code(0).get_output().stderr.clone());
        let tuners = [run(), run(), run()];
        tuners.map(|tuner| compiled(&String::from_utf8(tuner.join().unwrap()).unwrap())).iter().sum()
    });
    assert_eq!((total, place.trials()), (feasible(&place), feasible(&place)));
}

#[test]
fn an_unwritable_folder_is_found_out_at_the_start() {
    let place = Place::new();
    fs::write(place.path("file"), "").unwrap();
    place
        .tune()
        .args(["--out", "file/kernels"])
        .assert()
        .code(1)
        .stderr(contains("file/kernels").and(contains("--out")));
    place
        .tune()
        .args(["--db", "file/db.sqlite"])
        .assert()
        .code(1)
        .stderr(contains("file").and(contains("name another file")));
    place
        .tune()
        .args(["--db", ":memory:"])
        .assert()
        .code(1)
        .stderr(contains(":memory:").and(contains("path of a file")));
}

#[test]
fn what_is_in_a_bundles_way_is_found_out_at_the_start() {
    for (name, is_folder) in [(".lock", true), ("sm_100a", false), (".cache", false)] {
        let place = Place::new();
        let path = place.path("kernels-out").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if is_folder { fs::create_dir(&path) } else { fs::write(&path, "") }.unwrap();
        place.tune().assert().code(1).stderr(contains(name).and(contains("in the way")).and(contains("--out")));
        assert_eq!((place.cached(), place.path("db").exists()), (0, false), "{name}");
    }
}

#[test]
fn a_corrupt_database_is_left_as_it_is() {
    let place = Place::new();
    let garbage = vec![0xA5; 8192];
    fs::write(place.path("broken.sqlite"), &garbage).unwrap();
    let doctor = place.nvkv().args(["doctor", "--db", "broken.sqlite", "--json"]).assert();
    let findings: Value = serde_json::from_slice(&doctor.get_output().stdout).unwrap();
    let states: Vec<_> = findings.as_array().unwrap().iter().map(|f| f["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["missing", "found", "unusable"]);
    place.tune().args(["--db", "broken.sqlite"]).assert().code(1).stderr(contains("broken.sqlite"));
    assert_eq!(fs::read(place.path("broken.sqlite")).unwrap(), garbage);
}

#[test]
fn a_query_without_a_database_says_how_to_make_one() {
    let question = "query --arch sm_90 --head-dim 128 --group 8 --page-size 16 --batch 1 --context 4096";
    Place::new().nvkv().args(question.split(' ')).assert().code(1).stderr(contains("nvkv-tune"));
    Place::new().nvkv().args(["query", "--arch", "sm_90", "--head-dim", "128"]).assert().code(2);
}

#[test]
fn a_query_takes_the_options_of_its_operation_only() {
    let place = Place::new();
    let query = |arguments: &str| {
        let mut command = place.nvkv();
        command.args("query --arch sm_90 --head-dim 128 --page-size 16".split(' ')).args(arguments.split(' '));
        command.assert().code(2)
    };
    query("--op append").stderr(contains("asks for --tokens").and(contains("--group").not()));
    query("--op append --tokens 8 --context 4096").stderr(contains("does not take --context"));
    query("--op append --tokens 8 --q-len 2").stderr(contains("does not take --q-len"));
    query("--group 8").stderr(contains("asks for --batch, --context"));
    query("--group 8 --batch 1 --context 64 --tokens 8").stderr(contains("does not take --tokens"));
    query("--group 8 --batch 100000 --context 64").stderr(contains("--batch"));
}

#[test]
fn a_query_says_how_far_its_answer_is_how_to_launch_it_and_how_to_tune_it() {
    let place = Place::new();
    place.tune().assert().code(0);
    let query = |tokens: &str, json: &[&str]| {
        let mut command = place.nvkv();
        command.args("query --arch sm_100 --op append --head-dim 64 --page-size 16 --dtype f16 --tokens".split(' '));
        command.arg(tokens).args(json).assert().code(0).get_output().stdout.clone()
    };
    let near = String::from_utf8(query("64", &[])).unwrap();
    assert!(near.contains("launch ") && !near.contains("doublings"), "{near}");
    let far = String::from_utf8(query("256", &[])).unwrap();
    assert!(far.contains("t64-h8, the nearest shape (2.00 doublings away)"), "{far}");
    let tune = far.lines().find_map(|line| line.strip_prefix("to tune it nvkv-tune ")).unwrap().to_string();

    let farther = "query --arch sm_100 --op append --head-dim 64 --page-size 16 --dtype f16 --tokens 1024";
    let said = contains("no tuned shape is within 3 doublings of t1024-h8: the nearest is t64-h8, 4.0 away");
    place.nvkv().args(farther.split(' ')).assert().code(1).stdout(said);

    let json: Value = serde_json::from_slice(&query("256", &["--json"])).unwrap();
    assert_eq!((&json["trust"], &json["distance_doublings"]), (&"predicted".into(), &2.0.into()));
    assert_eq!(json["problem"], "append-nvfp4-d64-p16-f16-linear");
    assert_eq!(json["tune_with"], format!("nvkv-tune {tune}"));
    let kernels = place.manifest()["kernels"].as_array().unwrap().clone();
    let kernel = kernels.iter().find(|kernel| kernel["id"] == json["kernel"]).unwrap();
    assert_eq!(json["launch"]["threads"], kernel["launch"]["threads"]);
    let blocks = 256 * 4 / kernel["launch"]["items_per_block"].as_u64().unwrap();
    assert_eq!(json["launch"]["grid"], serde_json::json!([blocks, 8, 1]));

    place.nvkv().args(tune.split(' ')).assert().code(0);
    let tuned: Value = serde_json::from_slice(&query("256", &["--json"])).unwrap();
    assert_eq!(tuned["distance_doublings"], 0.0, "the command that was named answers the question");
    let decode = "query --arch sm_100 --head-dim 128 --group 8 --page-size 16 --batch 1 --context 64";
    let miss = contains("nvkv-tune --arch sm_100").and(contains("append-").not());
    place.nvkv().args(decode.split(' ')).assert().code(1).stdout(miss);
}

#[test]
fn the_binary_alone_is_enough_elsewhere() {
    let place = Place::new();
    let copy = place.path("nvkv-tune");
    fs::copy(assert_cmd::cargo::cargo_bin("nvkv-tune"), &copy).unwrap();
    Command::new(&copy)
        .current_dir(place.0.path())
        .env_clear()
        .args(["space", "--arch", "sm_120", "--json"])
        .assert()
        .code(0)
        .stdout(contains("decode-"));
}

#[cfg(feature = "gpu-tests")]
#[test]
fn with_a_gpu_kernels_are_verified_timed_and_not_tried_twice() {
    let place = Place::new();
    let tune = || {
        let mut command = place.nvkv();
        command.env_remove("CUDA_VISIBLE_DEVICES").args(["--arch", "native"]).args(&TINY[2..]).args(["--batch", "64"]);
        command
    };
    tune().assert().code(0).stdout(contains("timed on").and(contains("PREDICTED").not()));
    let bundle = fs::read_dir(place.path("kernels-out")).unwrap().flatten().map(|entry| entry.path());
    let manifest = bundle.map(|folder| folder.join("manifest.json")).find(|path| path.exists()).unwrap();
    let manifest: Value = serde_json::from_slice(&fs::read(manifest).unwrap()).unwrap();
    let selection = &manifest["kernels"][winner(&manifest)]["selections"][0];
    assert_eq!(selection["trust"], "timed");
    assert!(selection["share_of_read_ceiling"].as_f64().is_some_and(|share| share < 1.1));
    let trials = place.trials();
    tune().assert().code(0).stderr(contains("nothing to do"));
    assert_eq!(place.trials(), trials);
    place.nvkv().env_remove("CUDA_VISIBLE_DEVICES").arg("verify").assert().code(0).stderr(contains("cases"));
}

/// A database in `place` with one kernel of the tiny problem, timed in one round.
fn timed_database(place: &Place, name: &str, us: f64) -> PathBuf {
    let path = place.path(name);
    let (mut db, run) = timed_run(&path);
    db.record(run, &timed_trial(0, 64, us)).unwrap();
    path
}

/// The trial of a variant of the tiny problem at so many tokens.
fn timed_trial(variant: usize, tokens: u32, us: f64) -> TrialRecord {
    let problem = Problem::Append(AppendProblem {
        kv_format: KvFormat::Nvfp4,
        head_dim: 64,
        page_size: 16,
        dtype: Dtype::F16,
        v_scale_order: VScaleOrder::Linear,
    });
    let variant = variants(&problem, Preset::Quick)[variant];
    let source = render(&problem, &variant, Target::Sm90a).unwrap();
    let facts = nvkv_spec::CompileFacts::default();
    let kernel = KernelRecord {
        target: Target::Sm90a,
        problem,
        variant,
        source_hash: source.hash,
        nvrtc: "13.0".into(),
        generator: "0.1.0".into(),
        compiled: Some(nvkv_db::Compiled { cubin_hash: "hash".into(), facts }),
    };
    let shape = nvkv_spec::Shape::Append { tokens, kv_heads: 8 };
    TrialRecord {
        kernel,
        shape: Some(shape),
        split: None,
        is_default: false,
        outcome: Outcome::Timed { error: 0.0 },
        bytes: shape.bytes(&problem),
        samples: vec![us; 7],
        measurements: Vec::new(),
    }
}

/// A database at `path` with a run on a GPU.
fn timed_run(path: &Path) -> (Db, RunId) {
    let mut db = Db::open(path).unwrap();
    let run = NewRun {
        started_at: "2026-11-29T10:00:00Z".into(),
        command: "nvkv-tune".into(),
        target: Target::Sm90a,
        preset: "quick".into(),
        search: "exhaustive".into(),
        generator: "0.1.0".into(),
        nvrtc: "13.0".into(),
        environment: Some(GpuEnvironment { name: "H200".into(), uuid: "GPU-1".into(), ..Default::default() }),
        measurement_policy: None,
    };
    let run = db.begin_run(&run).unwrap();
    (db, run)
}

#[test]
fn an_engine_learns_what_a_bucket_costs_from_the_bundle_and_from_the_database() {
    let place = Place::new();
    let path = place.path("timed.sqlite");
    let (mut db, run) = timed_run(&path);
    for (variant, tokens, us) in [(0, 64, 10.0), (1, 64, 20.0), (0, 256, 40.0), (1, 256, 30.0)] {
        db.record(run, &timed_trial(variant, tokens, us)).unwrap();
    }
    for (variant, us) in [(0, 20.6), (1, 20.0)] {
        db.record_held_out(run, &timed_trial(variant, 128, us)).unwrap();
    }
    let problem = timed_trial(0, 64, 1.0).kernel.problem;
    drop(db);
    let arguments = ["--arch", "sm_90", "--batch", "64,256", "--db", "timed.sqlite"];
    place.nvkv().args(arguments).args(&TINY[2..]).assert().code(0).stderr(contains("nothing to do"));
    let bundle = place.path("kernels-out/sm_90a");
    for db in [None, Some(path.as_path())] {
        let runtime = nvkv_runtime::Runtime::open(&bundle, db).unwrap();
        let trust = |tokens| runtime.find(&problem, &nvkv_spec::Shape::Append { tokens, kv_heads: 8 }).unwrap().trust;
        for (tokens, expected) in [(100, 20.6 / 20.0 - 1.0), (200, 0.0)] {
            let nvkv_runtime::Trust::Bucket { regret: Some(regret), .. } = trust(tokens) else { panic!("{tokens}") };
            assert!((regret - expected).abs() < 1e-12, "{regret} for {expected}");
        }
        let nvkv_runtime::Trust::Bucket { distance, .. } = trust(128) else { panic!("it is held out") };
        assert_eq!(distance, 1.0);
    }
    let verify = || place.nvkv().args(["verify", "--db", "none"]).assert();
    verify().code(0);
    let mut lie: Value = serde_json::from_slice(&fs::read(bundle.join("manifest.json")).unwrap()).unwrap();
    let kernel = winner(&lie);
    let regret = &mut lie["kernels"][kernel]["selections"][0]["regret"];
    assert!(regret.as_f64().is_some(), "{regret}");
    *regret = (-0.1).into();
    rewrite_bundle(&bundle, &lie);
    verify().code(1).stdout(contains("its regret is -0.1"));
}

#[test]
fn verify_says_how_a_predicted_bundle_comes_by_the_times_of_the_database() {
    let place = Place::new();
    let arguments = ["--arch", "sm_90", "--batch", "64", "--db", "predicted.sqlite"];
    place.nvkv().args(arguments).args(&TINY[2..]).assert().code(0);
    let verify = |db: &str| place.nvkv().args(["verify", "--db", db]).assert(); // `timed_database` invents its machine code
    let note = "are predicted, and the database has timed winners there";
    verify("predicted.sqlite").code(0).stderr(contains(note).not());
    timed_database(&place, "timed.sqlite", 10.0);
    let said = verify("timed.sqlite").stderr(contains(format!("1 of 1 selections {note}"))).get_output().stderr.clone();
    let said = String::from_utf8(said).unwrap();
    let command = said.split('`').find(|part| part.starts_with("nvkv-tune --arch")).unwrap();
    assert_eq!(command, "nvkv-tune --arch sm_90a --db timed.sqlite --out kernels-out");
    // A tune of everything would take long: of the same problem, the command does what it is said to do.
    place.nvkv().args(command.split(' ').skip(1)).args(&TINY[2..]).args(["--batch", "64"]).assert().code(0);
    verify("timed.sqlite").stderr(contains(note).not());
    let manifest: Value =
        serde_json::from_slice(&fs::read(place.path("kernels-out/sm_90a/manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["kernels"][winner(&manifest)]["selections"][0]["trust"], "timed");
}

#[test]
fn diff_is_a_gate_with_exit_codes() {
    let place = Place::new();
    for (name, us) in [("a.sqlite", 100.0), ("same.sqlite", 100.0), ("slow.sqlite", 110.0), ("hidden.sqlite", 102.0)] {
        timed_database(&place, name, us);
    }
    let diff = |b: &str| {
        let mut command = place.nvkv();
        command.args(["diff", "a.sqlite", b]);
        command
    };
    diff("same.sqlite")
        .args(["--fail-slower", "5%"])
        .assert()
        .success()
        .stdout(contains("1 compared: 1 same, 0 faster, 0 slower, 0 ambiguous").and(contains("100.0 % agree")));
    diff("slow.sqlite").assert().code(1).stdout(contains("slower").and(contains("(+10.0 %)")));
    diff("slow.sqlite").args(["--fail-slower", "15"]).assert().success();
    diff("hidden.sqlite").assert().success().stdout(contains("1 ambiguous"));
    diff("missing.sqlite").assert().code(2).stderr(contains("no database at missing.sqlite"));
    diff("same.sqlite").args(["--fail-slower", "fast"]).assert().code(2).stderr(contains("such as 3%"));
    assert!(!place.path("missing.sqlite").exists());
    let json = diff("slow.sqlite").arg("--json").output().unwrap().stdout;
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&json["slower_beyond_threshold"], &json["agreement"]), (&Value::from(1), &Value::from(1.0)));
    assert_eq!(json["rows"][0]["difference"]["verdict"], "slower");
}
