//! `nvkv-tune models`: the models that `--model` knows, and what they ask of one GPU.

use super::args::BadArguments;
use super::{Done, print, print_json};
use crate::models::{Config, Model};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `models`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// GPUs that share a model's heads
    #[arg(long, value_name = "N", value_parser = super::args::size, default_value = "1")]
    tp: u32,
    /// Models and lists of problems of your own [default: nvkv.toml, where it is]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Done {
    let config = Config::load(args.config.as_deref()).map_err(|error| BadArguments(error.to_string()))?;
    if args.json {
        print_json(&config.models)?
    } else {
        print(&table(&config, args.tp))?
    }
    Ok(ExitCode::SUCCESS)
}

fn table(config: &Config, tp: u32) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["model", "query heads", "KV heads", "head dim", "layers", "on one GPU"]);
    for (name, model) in &config.models {
        let cells = [model.num_attention_heads, model.num_key_value_heads, model.head_dim].map(|n| n.to_string());
        let [queries, keys, head_dim] = cells;
        table.add_row([name.clone(), queries, keys, head_dim, layers(model), on_one_gpu(model, tp)]);
    }
    for column in table.column_iter_mut().skip(1).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Kinds of layers and what they have beside a softmax.
fn layers(model: &Model) -> String {
    let kinds = model.layers(1).unwrap_or_default();
    let mut words: Vec<String> =
        kinds.iter().map(|layer| layer.window.map_or("full".into(), |window| format!("window {window}"))).collect();
    words.extend(model.sinks.then(|| "sinks".to_string()));
    words.extend(model.attn_logit_softcapping.map(|cap| format!("soft cap {cap}")));
    words.join(", ")
}

fn on_one_gpu(model: &Model, tp: u32) -> String {
    match model.layers(tp) {
        Ok(layers) => {
            layers.first().map_or(String::new(), |layer| format!("{} KV heads, group {}", layer.kv_heads, layer.group))
        }
        Err(why) => format!("not with --tp {tp}: {why}"),
    }
}
