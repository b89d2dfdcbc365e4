//! Several machines at one job: shards, the scripts that start them, the merge, and the bundle from it. No GPU.

#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected is")]

use assert_cmd::Command;
use nvkv_db::Db;
use predicates::prelude::*;
use predicates::str::{contains, is_match};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// One problem with few variants, at two shapes.
const TINY: &str = "--arch sm_100 --op append --kv-format nvfp4 --head-dim 64 --page-size 16 --dtype f16 \
                    --v-scale-order linear --batch 32,64";

/// A command in `folder` that finds this nvkv-tune in its path, and no GPU.
fn command(folder: &Path, program: &str) -> Command {
    let bin = folder.join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).unwrap();
        symlink(assert_cmd::cargo::cargo_bin("nvkv-tune"), bin.join("nvkv-tune")).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(program);
    command.current_dir(folder).env("CUDA_VISIBLE_DEVICES", "-1").env("PATH", path).env("NVKV_PLACE", folder);
    command
}

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("deploy").join(name)
}

#[test]
fn an_array_job_tunes_merges_and_publishes() {
    let place = tempfile::tempdir().unwrap();
    let slurm = |task: &str| {
        let mut command = command(place.path(), "bash");
        command.arg(deploy("slurm-array.sh")).env("NVKV_ARGS", TINY);
        command.env("SLURM_ARRAY_TASK_COUNT", "2").env("SLURM_ARRAY_TASK_ID", task);
        command
    };
    let done = |name: &str| Db::open_read_only(&place.path().join("db").join(name)).unwrap();
    for task in ["0", "1"] {
        slurm(task).assert().code(0).stderr(contains(format!("shard {task} of 2")).and(contains("nvkv-tune merge")));
    }
    assert!(!place.path().join("kernels-out/sm_100a").exists(), "a shard alone is no bundle");
    let merged = contains("trials in ").and(contains("nvkv.shard-1-of-2.sqlite"));
    slurm("").arg("merge").assert().code(0).stdout(merged).stderr(is_match(r"\d compiled").unwrap().not());
    let manifest = fs::read(place.path().join("kernels-out/sm_100a/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let selections = |kernel: &Value| kernel["selections"].as_array().unwrap().clone();
    let selections = manifest["kernels"].as_array().unwrap().iter().flat_map(selections);
    let mut tokens: Vec<_> = selections.map(|s| s["shape"]["tokens"].as_u64().unwrap()).collect();
    tokens.sort();
    assert_eq!(tokens, [32, 64]);
    let target = nvkv_spec::Target::Sm100a;
    let keys = |name: &str| done(name).done(target, None).unwrap();
    let (one, two) = (keys("nvkv.shard-0-of-2.sqlite"), keys("nvkv.shard-1-of-2.sqlite"));
    let with_shape = |keys: &std::collections::HashSet<nvkv_db::TrialKey>| {
        keys.iter().filter(|key| key.shape.is_some()).cloned().collect::<std::collections::HashSet<_>>()
    };
    assert!(with_shape(&one).is_disjoint(&with_shape(&two)) && !one.is_empty() && one.len() == two.len());
    assert!(keys("nvkv.sqlite").is_superset(&one) && keys("nvkv.sqlite").is_superset(&two));
    slurm("").arg("merge").assert().code(0).stdout(is_match(r"\d trials of \d+ runs").unwrap());
}

#[test]
fn the_commands_of_the_kubernetes_jobs_are_those_of_the_array_job() {
    let place = tempfile::tempdir().unwrap();
    let yaml = fs::read_to_string(deploy("kubernetes-indexed-job.yaml")).unwrap();
    let lines: Vec<_> = yaml.lines().map(str::trim).filter(|line| line.starts_with("nvkv-tune ")).collect();
    let [shard, merge, publish] = lines[..] else { panic!("{lines:?}") };
    assert!(yaml.contains("completions: 8 ") && shard.ends_with("/8"), "as many shards as indices");
    let plan = |line: &str, index: &str| {
        let mut command = command(place.path(), "sh");
        command
            .args(["-ec", line])
            .env("JOB_COMPLETION_INDEX", index)
            .env("NVKV_ARGS", format!("{TINY} --plan --json"));
        let output = command.assert().code(0).get_output().stdout.clone();
        serde_json::from_slice::<Value>(&output).unwrap()["shapes"].as_u64().unwrap()
    };
    let shapes: u64 = (0..8).map(|index| plan(shard, &index.to_string())).sum();
    assert_eq!((shapes, plan(publish, "")), (2, 2), "the shards are disjoint and complete");
    let mut real = command(place.path(), "sh");
    real.args(["-ec", merge]).assert().code(1).stderr(contains("no database at /nvkv/db/nvkv.shard-*.sqlite"));
}

#[test]
fn a_merge_says_what_it_made_and_refuses_what_exists() {
    let place = tempfile::tempdir().unwrap();
    for name in ["a.sqlite", "b.sqlite"] {
        drop(Db::open(&place.path().join(name)).unwrap());
    }
    let merge = |more: &[&str]| {
        command(place.path(), "nvkv-tune").args(["merge", "a.sqlite", "b.sqlite", "-o", "c.sqlite"]).args(more).assert()
    };
    merge(&[]).code(0).stdout(contains("0 trials in b.sqlite").and(contains("in c.sqlite")));
    merge(&[]).code(1).stderr(contains("c.sqlite exists").and(contains("--force")).and(contains("--db").not()));
    let json: Value = serde_json::from_slice(&merge(&["--force", "--json"]).code(0).get_output().stdout).unwrap();
    assert_eq!(json["inputs"], serde_json::json!([0, 0]));
    command(place.path(), "nvkv-tune").args(["merge", "-o", "d.sqlite"]).assert().code(2).stderr(contains("<FILE>..."));
}

#[test]
fn bad_shards_and_devices_are_told() {
    let place = tempfile::tempdir().unwrap();
    let tune = |option: &str, value: &str| command(place.path(), "nvkv-tune").args([option, value]).assert().code(2);
    tune("--shard", "8/8").stderr(contains("0/8"));
    tune("--shard", "one").stderr(contains("I/N"));
    tune("--devices", "first").stderr(contains("0,1, or all"));
}
