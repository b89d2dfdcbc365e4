//! Reports of a small database: the page in a real browser, and the exports against the definitions of their formats.

#![allow(clippy::unwrap_used, reason = "a test ends where something unexpected is")]

mod browser;

use assert_cmd::Command;
use browser::Browser;
use nvkv_db::{Compiled, Db, KernelRecord, NewRun, TrialRecord};
use nvkv_generator::{Preset, problems, shapes, variants};
use nvkv_spec::{
    CompileFacts, GpuEnvironment, Lengths, Operation, Outcome, Problem, Shape, SplitPolicy, Stage, Target, Variant,
};
use predicates::prelude::*;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::PathBuf;

/// Text that breaks out of markup which does not escape it.
const HOSTILE: &str = r#"</code><script>document.title='broken'</script><img src=x onerror=alert(1)>"#;

/// Of every decode at a bucket.
const SPLIT: SplitPolicy = SplitPolicy::Even { splits: 4 };
/// Trials that are held out.
const HELD_OUT: usize = 3;

/// A database with two problems at two shapes each, four variants of each timed, a shape between those of the first where
/// the winner of both takes 6 % more than the best, one failure of each kind that a tuner meets, and a problem that was
/// predicted only.
fn database() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvkv.sqlite");
    let mut db = Db::open(&path).unwrap();
    let run = db.begin_run(&run(true)).unwrap();
    let state = json!({ "sm_clock": 1980, "throttle_reasons": [] });
    db.note_gpu(run, 4000.0, &json!({ "before": state, "after": state })).unwrap();
    let decode = problems(Preset::Quick, &[Operation::Decode])[0];
    let append = problems(Preset::Quick, &[Operation::Append])[0];
    for problem in [decode, append] {
        for (n, variant) in variants(&problem, Preset::Quick).into_iter().take(4).enumerate() {
            for (m, shape) in shapes(&problem, Preset::Quick).into_iter().take(2).enumerate() {
                let us = 30.0 * (m + 1) as f64 + 2.0 * n as f64;
                let mut trial = trial(problem, variant, shape, Outcome::Timed { error: 1e-4 });
                trial.is_default = n == 1;
                trial.samples = vec![us, us + 0.1, us + 0.3];
                db.record(run, &trial).unwrap();
            }
        }
    }
    let between = Shape::Decode { batch: 3, context: 16_384, kv_heads: 8, lengths: Lengths::Equal };
    // As the winners' split at their buckets becomes one of that shape.
    let served = [0, 1].map(|n| {
        let filling = variants(&decode, Preset::Quick)[0].filling(&decode, 132);
        Some(decode.split_at(SPLIT, &shapes(&decode, Preset::Quick)[n], &between, filling))
    });
    for (n, split, us) in [(0, served[0], 53.0), (0, served[1], 53.0), (1, served[0], 50.0)] {
        let variant = variants(&decode, Preset::Quick)[n];
        let mut trial = trial(decode, variant, between, Outcome::Timed { error: 1e-4 });
        (trial.split, trial.samples) = (split, vec![us - 0.1, us, us + 0.1]);
        db.record_held_out(run, &trial).unwrap();
    }
    let failures = [
        Outcome::CompileFailed { log: "error: identifier \"x\" is undefined".into() },
        Outcome::Wrong { error: 0.5, detail: "case 3".into() },
        Outcome::Timeout { stage: Stage::Measure, seconds: 5.0 },
        Outcome::LaunchFailed { error: HOSTILE.into() },
    ];
    for (outcome, variant) in failures.into_iter().zip(variants(&decode, Preset::Quick).into_iter().skip(4)) {
        let shape = shapes(&decode, Preset::Quick)[0];
        db.record(run, &TrialRecord { shape: None, split: None, ..trial(decode, variant, shape, outcome) }).unwrap();
    }
    let other = problems(Preset::Quick, &[Operation::Fused])[0];
    let unmeasured = db.begin_run(&self::run(false)).unwrap();
    let (variant, shape) = (variants(&other, Preset::Quick)[0], shapes(&other, Preset::Quick)[0]);
    db.record(unmeasured, &trial(other, variant, shape, Outcome::CompiledOnly { predicted_us: 77.0 })).unwrap();
    drop(db);
    (folder, path)
}

fn run(measured: bool) -> NewRun {
    let gpu = GpuEnvironment {
        name: "Test GPU <&>".into(),
        uuid: "GPU-1".into(),
        capability: (9, 0),
        sms: 132,
        driver: "580.1".into(),
        ..GpuEnvironment::default()
    };
    NewRun {
        started_at: "2026-11-29T10:00:00Z".into(),
        command: HOSTILE.into(),
        target: Target::Sm90a,
        preset: "quick".into(),
        search: "exhaustive".into(),
        generator: "0.1.0".into(),
        nvrtc: "13.0".into(),
        environment: measured.then_some(gpu),
        measurement_policy: measured.then(|| "graph-replay".into()),
    }
}

fn trial(problem: Problem, variant: Variant, shape: Shape, outcome: Outcome) -> TrialRecord {
    let facts = CompileFacts { registers: 100, ..CompileFacts::default() };
    let kernel = KernelRecord {
        target: Target::Sm90a,
        problem,
        variant,
        source_hash: format!("source of {}", variant.key()),
        nvrtc: "13.0".into(),
        generator: "0.1.0".into(),
        compiled: (outcome.kind() != "compile_failed").then(|| Compiled { cubin_hash: "cubin".into(), facts }),
    };
    TrialRecord {
        bytes: shape.bytes(&problem),
        split: matches!(problem, Problem::Decode(_)).then_some(SPLIT),
        kernel,
        shape: Some(shape),
        is_default: false,
        outcome,
        samples: Vec::new(),
        measurements: Vec::new(),
    }
}

/// What `nvkv-tune report` prints with these arguments.
fn report(path: &PathBuf, arguments: &[&str]) -> String {
    let mut command = Command::cargo_bin("nvkv-tune").unwrap();
    let assert = command.args(["report", "-o", "-", "--db"]).arg(path).args(arguments).assert().code(0);
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

#[test]
fn the_page_works_in_a_browser() {
    let (folder, path) = database();
    let page = folder.path().join("report.html");
    Command::cargo_bin("nvkv-tune").unwrap().args(["report", "--db"]).arg(&path).arg("-o").arg(&page).assert().code(0);
    let url = format!("file://{}", page.display());
    let mut browser = Browser::open(&url, 1400, 1000);

    // The first column of numbers of the first sortable table is µs.
    let column = "[...document.querySelectorAll('#winners-0-table tbody tr')].map(r => Number(r.cells[4].dataset.v))";
    let numbers = |value: Value| value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
    let before = numbers(browser.evaluate(column));
    let mut rising = before.clone();
    rising.sort_by(f64::total_cmp);
    let falling: Vec<f64> = rising.iter().rev().copied().collect();
    assert!(before.len() == 4 && before != rising && before != falling, "{before:?} shows nothing");
    let header = "#winners-0-table thead th:nth-child(5)";
    let sort = |browser: &mut Browser| browser.evaluate(&format!("document.querySelector('{header}').ariaSort"));
    assert_eq!(sort(&mut browser), Value::Null);
    browser.click(&format!("{header} button"));
    assert_eq!((numbers(browser.evaluate(column)), sort(&mut browser)), (rising, json!("ascending")));
    browser.evaluate(&format!("document.querySelector('{header} button').focus()"));
    browser.enter();
    assert_eq!((numbers(browser.evaluate(column)), sort(&mut browser)), (falling, json!("descending")));

    let visible = "[...document.querySelectorAll('#winners-0-table tbody tr')].filter(r => !r.hidden).length";
    browser.evaluate(
        "(i => { i.value = 'append'; i.dispatchEvent(new Event('input')) })(document.querySelector('input'))",
    );
    assert_eq!(browser.evaluate(visible), 2);

    let background = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(background);
    browser.click("#theme");
    let dark = browser.evaluate(background);
    assert_ne!(light, dark);
    assert_eq!(browser.evaluate("document.getElementById('theme').ariaPressed"), "true");
    browser.click("#theme");
    assert_eq!(browser.evaluate(background), light);
    browser.evaluate("localStorage.clear()");
    browser.prefer_dark();
    // The system's choice is followed, with the next frame.
    browser.wait_until(&format!("{background} === '{}'", dark.as_str().unwrap()));

    // Nothing sticks out of the page on a telephone: wide things scroll by themselves.
    browser.resize(420, 900);
    assert_eq!(browser.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.documentElement)"), true);
    browser.resize(1400, 1000);

    assert_eq!(browser.evaluate("document.title").as_str().map(|t| t.contains("Test GPU <&>")), Some(true));
    let said = browser.evaluate("document.querySelector('#environment').innerText");
    assert!(said.as_str().unwrap().contains(HOSTILE), "shown as it is: {said}");
    assert_eq!(browser.evaluate("document.images.length"), 0);
    let predicted = "document.querySelector('#predicted').innerText";
    assert!(browser.evaluate(predicted).as_str().unwrap().contains("PREDICTED"));
    let regret =
        "[...document.querySelectorAll('#regret-0-table tbody tr')].map(r => r.innerText.replace(/\\s+/g, ' '))";
    let rows = browser.evaluate(regret);
    let rows: Vec<&str> = rows.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains("53.0 50.0 6.0 % too slow")), "{rows:?}");
    // Predictions are in no chart and in no table of measurements.
    for place in ["#roofline-0", "#heat-0", "#winners-0", "#axes-0", "#ties-0"] {
        let text = browser.evaluate(&format!("document.querySelector('{place}').outerHTML"));
        assert!(!text.as_str().unwrap().contains("fused-"), "{place}");
    }

    assert!(browser.colours() > 50, "the screenshot is blank");
    assert_eq!(browser.requests(), [url], "only the page itself is loaded");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn csv_and_json_have_every_trial_and_agree() {
    let (_folder, path) = database();
    let text = report(&path, &["--format", "csv"]);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let header = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let json: Value = serde_json::from_str(&report(&path, &["--format", "json"])).unwrap();
    let trials = json["trials"].as_array().unwrap();
    assert_eq!((rows.len(), trials.len()), (2 * 4 * 2 + HELD_OUT + 4 + 1, rows.len()));
    for (row, trial) in rows.iter().zip(trials) {
        for (name, cell) in header.iter().zip(row) {
            let value = &trial[name];
            let same = match value {
                Value::Null => cell.is_empty(),
                Value::String(text) => cell == text,
                // Two readers of decimal numbers may differ in the last bit.
                Value::Number(n) if n.is_f64() => {
                    (cell.parse::<f64>().unwrap() / n.as_f64().unwrap() - 1.0).abs() < 1e-14
                }
                other => format!("{other}") == cell,
            };
            assert!(same, "{name}: {cell} {value}");
        }
        let timed = trial["outcome"] == "timed";
        assert_eq!(trial["samples_us"].as_array().unwrap().len(), if timed { 3 } else { 0 });
        if timed {
            let gbps = trial["bytes"].as_f64().unwrap() / trial["median_us"].as_f64().unwrap() / 1e3;
            assert!((trial["gbps"].as_f64().unwrap() - gbps).abs() < 1e-9);
            assert!((trial["share_of_read_ceiling"].as_f64().unwrap() - gbps / 4000.0).abs() < 1e-12);
            assert!(trial["predicted_us"].is_null());
        }
    }
    let winners = trials.iter().filter(|trial| trial["winner"] == true);
    let won: Vec<_> = winners.map(|trial| (trial["outcome"].clone(), trial["median_us"].clone())).collect();
    assert_eq!(won.iter().filter(|(outcome, _)| outcome == "timed").count(), 4);
    assert!(won.contains(&(json!("timed"), json!(30.1))) && won.contains(&(json!("compiled_only"), Value::Null)));
    let of_append = report(&path, &["--format", "csv", "--only", "append-"]);
    assert_eq!(of_append.lines().count(), 1 + 8);
}

#[test]
fn regrets_are_listed_and_summed_up() {
    let (folder, path) = database();
    let run = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("nvkv-tune").unwrap();
        command.args(["regret", "--db"]).arg(&path).args(arguments).assert()
    };
    let listed = |path: &PathBuf| {
        let assert = Command::cargo_bin("nvkv-tune").unwrap().args(["regret", "--csv", "--db"]).arg(path).assert();
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    let said = predicates::str::contains;
    // Of four timed buckets the two of the first problem.
    run(&[])
        .code(0)
        .stdout(said("2 of 4 buckets measured: regret 6.0 % at most, median 6.0 %, 0.0 % (0) with at most 5.0 %"));
    let json: Value = serde_json::from_slice(&run(&["--json"]).code(0).get_output().stdout).unwrap();
    let share = json["rows"][0]["regret"].as_f64().unwrap();
    assert!((share - (53.0 / 50.0 - 1.0)).abs() < 1e-12 && json["rows"][1]["verdict"] == "too slow", "{json}");
    assert_eq!(json["summary"]["largest"], json["rows"][0]["regret"]);
    assert_eq!(run(&["--only", "b8-c8192"]).get_output().stdout.iter().filter(|byte| **byte == b'%').count(), 1 + 4);
    run(&["--only", "append-"]).code(1).stdout(said("none of 2 buckets")).stderr(said("--held-out"));
    run(&["--csv", "--json"]).code(2);

    let text = listed(&path);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows: Vec<std::collections::HashMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let of = |name: &str| rows.iter().map(|row| row[name].as_str()).collect::<Vec<_>>();
    assert_eq!((of("bucket"), of("at")), (vec!["b1-c32768-h8", "b8-c8192-h8"], vec!["b3-c16384-h8"; 2]));
    assert_eq!((of("winner_us"), of("best_us")), (vec!["53.0"; 2], vec!["50.0"; 2]));

    // A bundle says it to engines, and a query to people.
    let query =
        ["query", "--arch", "sm_90", "--op", "decode", "--head-dim", "128", "--group", "8", "--page-size", "16"];
    let sizes = ["--batch", "8", "--context", "9000"];
    let mut command = Command::cargo_bin("nvkv-tune").unwrap();
    let query = command.current_dir(folder.path()).args(query).args(sizes).arg("--db").arg(&path).assert();
    query.code(0).stdout(said("regret     at most 6.0 % over the best kernel"));

    let mut db = Db::open(&path).unwrap();
    let decode = problems(Preset::Quick, &[Operation::Decode])[0];
    let shape = |batch, context| Shape::Decode { batch, context, kv_heads: 8, lengths: Lengths::Equal };
    db.split_bucket(Target::Sm90a, &decode, &shape(3, 16_384), &shape(8, 8192)).unwrap();
    drop(db);
    run(&[]).stdout(said("split").and(said("none of 5 buckets was measured")).and(said("too slow").not()));
}

/// The rules of T4's `results-schema.json` 1.0.0 (<https://github.com/odgaard/TuningSchema>, branch T4).
#[test]
fn t4_keeps_the_rules_of_its_schema() {
    let (_folder, path) = database();
    let document: Value = serde_json::from_str(&report(&path, &["--format", "t4"])).unwrap();
    let version = document["schema_version"].as_str().unwrap();
    assert!(version.split('.').count() == 3 && version.split('.').all(|part| part.parse::<u32>().is_ok()));
    assert_eq!(document["metadata"]["timeunit"], "milliseconds");
    let words = ["timeout", "compile", "runtime", "correctness", "constraints", "correct"];
    let results = document["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 4 * 2 + HELD_OUT + 4, "predictions are no results");
    let mut seen = HashSet::new();
    for result in results {
        let invalidity = result["invalidity"].as_str().unwrap();
        assert!(words.contains(&invalidity), "{invalidity}");
        seen.insert(invalidity);
        assert_eq!(result["correctness"], u8::from(invalidity == "correct"));
        assert!(result["timestamp"].is_string());
        let configuration = result["configuration"].as_object().unwrap();
        assert!(configuration.values().all(|value| value.is_number() || value.is_string() || value.is_boolean()));
        assert_eq!(result["objectives"], json!(["time"]));
        let runtimes = result["times"]["runtimes"].as_array().unwrap();
        let measurements = result["measurements"].as_array().unwrap();
        assert_eq!((runtimes.len(), measurements.len()), if invalidity == "correct" { (3, 2) } else { (0, 0) });
        for measurement in measurements {
            assert!(
                measurement["name"].is_string() && measurement["value"].is_number() && measurement["unit"].is_string()
            );
        }
        if let Some(time) = measurements.iter().find(|m| m["name"] == "time") {
            assert!(runtimes.contains(&time["value"]), "the median of three, in the unit of the samples");
        }
    }
    assert_eq!(seen, HashSet::from(["correct", "compile", "correctness", "timeout", "runtime"]));
    let configurations: HashSet<String> = results.iter().map(|result| result["configuration"].to_string()).collect();
    assert_eq!(configurations.len(), results.len(), "no two trials look alike");
}

#[test]
fn what_cannot_be_written_is_said() {
    let (folder, path) = database();
    let run = |arguments: &[&str]| {
        let mut command = Command::cargo_bin("nvkv-tune").unwrap();
        command.current_dir(folder.path()).args(["report", "--db"]).arg(&path).args(arguments).assert()
    };
    let said = predicates::str::contains;
    run(&["-o", "report.pdf"]).code(2).stderr(said(".pdf")).stderr(said("--format"));
    run(&["-o", "none/report.html"]).code(1).stderr(said("none/report.html"));
    run(&["--only", "prefill"]).code(1).stderr(said("no trial"));
    run(&["--arch", "sm_100"]).code(1).stderr(said("no trial"));
    run(&["--format", "t4"]).code(0);
    assert!(folder.path().join("report.t4.json").exists(), "a format has a file of its own");
    let ragged = Shape::Decode { batch: 1, context: 9, kv_heads: 1, lengths: Lengths::Equal };
    assert!(!report(&path, &[]).contains(&ragged.key()));
}
