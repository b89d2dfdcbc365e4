//! The corpus of instruction forms on the GPU: its answers are those that the emulator's tests are held to.
#![cfg(feature = "gpu-tests")]

#[path = "../emulator/tests/vectors/corpus/mod.rs"]
mod corpus;

use corpus::{Answer, Answers, Form, SLOT, forms};
use nvkv_tuner::gpu::{Buffer, CudaError, Device, Geometry, Kernel, Nvml};
use std::path::PathBuf;
use std::rc::Rc;

/// Folder of the answers: `NVKV_VECTORS`, or where they are committed.
fn folder() -> PathBuf {
    let committed = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("emulator/tests/vectors");
    std::env::var_os("NVKV_VECTORS").map_or(committed, PathBuf::from)
}

/// Results of the GPU, as a file has them, of `N` runs.
fn run<const N: usize>(device: &Rc<Device>, form: &Form) -> Result<[Vec<u8>; N], CudaError> {
    let kernel = Kernel::from_ptx(device, &form.ptx(), "k")?;
    let mut results = [const { Vec::new() }; N];
    for result in &mut results {
        let input = Buffer::from_slice(device, &form.input())?;
        let output = Buffer::new(device, form.threads * form.results.len() * SLOT)?;
        let geometry = Geometry { grid: [form.blocks(), 1, 1], threads: form.block(), shared_bytes: 0 };
        kernel.launch(geometry, &Form::params(input.address(), output.address()))?;
        *result = form.packed(&output.download(0, output.bytes())?);
    }
    Ok(results)
}

fn device() -> Rc<Device> {
    Rc::new(Device::open(0).expect("these tests need a GPU"))
}

#[test]
fn the_gpu_gives_the_committed_answers() {
    let device = device();
    let text = std::fs::read_to_string(folder().join("h200.txt")).expect("answers were recorded");
    let answers = Answers::read(&text);
    let mut wrong = Vec::new();
    for form in forms() {
        let Some(expected) = answers.of(&form) else {
            wrong.push(format!("{}: no answer", form.name));
            continue;
        };
        let [got] = run(&device, &form).unwrap_or_else(|error| panic!("{}: {error}", form.name));
        if Answer::of(&form, got) != *expected {
            wrong.push(format!("{}: another answer", form.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `cargo test -p nvkv-tuner --features gpu-tests --test vectors -- --ignored`, on the GPU whose answers are wanted.
#[test]
#[ignore = "overwrites the recorded answers"]
fn record() {
    let device = device();
    let nvml = device.uuid().ok().and_then(|uuid| Nvml::open(uuid).ok());
    let environment = device.environment(nvml.as_ref()).expect("the GPU says what it is");
    let mut answers = Answers::default();
    let (mut failed, mut differences) = (Vec::new(), Vec::new());
    for form in forms() {
        let [first, second] = match run(&device, &form) {
            Ok(both) => both,
            Err(error) if error.sticky => panic!("{}: {error}; recorded nothing", form.name),
            Err(error) => {
                failed.push(format!("{}: {error}", form.name));
                continue;
            }
        };
        if first != second {
            failed.push(format!("{}: a second run differs", form.name));
            continue;
        }
        let difference = match form.emulate() {
            Ok(emulated) => form.difference(&emulated, &first),
            Err(error) => Some(error.to_string()),
        };
        differences.extend(difference.map(|difference| format!("{}: {difference}\n", form.name)));
        answers.insert(&form, Answer::of(&form, first));
    }
    let day = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let head = format!("{}, driver {}, {}", environment.name, environment.driver, &day[..10]);
    let path = folder().join("h200.txt");
    std::fs::write(&path, answers.text(&head)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    print!("{}", differences.concat());
    println!("{head}: {}; the emulator differs in {} forms", path.display(), differences.len());
    assert!(failed.is_empty(), "not recorded:\n{}", failed.join("\n"));
}
