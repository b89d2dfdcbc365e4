//! What models ask of attention: built-in definitions (`models.toml`), and a user's `nvkv.toml` beside them.

use nvkv_generator::{HEAD_DIMS, MAX_GROUP, MAX_Q_LEN, PAGE_SIZES};
use nvkv_spec::{Dtype, KvFormat, Lengths, Numerics, Operation, VScaleOrder};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const BUILT_IN: &str = include_str!("models.toml");

/// The file that is read from the current folder where none is named.
pub const FILE: &str = "nvkv.toml";

/// A definition that cannot be used: which file and key, what is wrong, what was expected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// Models and lists of problems by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Models.
    #[serde(default, rename = "model")]
    pub models: BTreeMap<String, Model>,
    /// Lists of problems.
    #[serde(default)]
    pub problems: BTreeMap<String, ProblemList>,
}

/// The attention layers of a model, by the names of its config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Where the numbers are from.
    #[serde(default)]
    pub source: Option<String>,
    /// Query heads.
    pub num_attention_heads: u32,
    /// KV heads.
    pub num_key_value_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Tokens that a query of a windowed layer sees, its own among them.
    #[serde(default)]
    pub sliding_window: Option<u32>,
    /// Which kinds of layers there are.
    #[serde(default = "full_attention")]
    pub layer_types: Vec<LayerType>,
    /// Cap of the scores.
    #[serde(default)]
    pub attn_logit_softcapping: Option<f64>,
    /// Whether a logit of each query head joins its softmax's denominator.
    #[serde(default)]
    pub sinks: bool,
}

/// What the queries of a layer see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All tokens.
    FullAttention,
    /// The newest `sliding_window` ones.
    SlidingAttention,
}

fn full_attention() -> Vec<LayerType> {
    vec![LayerType::FullAttention]
}

/// Models and what they are served with. A list that is left out keeps the preset's values, as on the command line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProblemList {
    /// Names of models.
    pub models: Vec<String>,
    /// GPUs that share the heads.
    pub tp: Option<u32>,
    /// Operations.
    pub op: Vec<Operation>,
    /// Storage of the cache.
    pub kv_format: Vec<KvFormat>,
    /// What products are computed from.
    pub numerics: Vec<Numerics>,
    /// Tokens a page.
    pub page_size: Vec<u32>,
    /// New tokens a request.
    pub q_len: Vec<u32>,
    /// Type of Q, the output and new K and V.
    pub dtype: Vec<Dtype>,
    /// Order of the V block scales.
    pub v_scale_order: Vec<VScaleOrder>,
    /// Requests; for append, new tokens.
    pub batch: Vec<u32>,
    /// Cached tokens a request.
    pub context: Vec<u32>,
    /// How the lengths of a batch are distributed.
    pub lengths: Vec<Lengths>,
}

/// What one GPU is asked for by one kind of layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Elements of a head.
    pub head_dim: u32,
    /// Query heads a KV head, on one GPU.
    pub group: u32,
    /// KV heads on one GPU.
    pub kv_heads: u32,
    /// Sliding window, tokens.
    pub window: Option<u32>,
    /// Attention sinks.
    pub sinks: bool,
    /// Soft cap.
    pub soft_cap: bool,
}

impl Config {
    /// The built-in definitions with those of `file`, or of `nvkv.toml` in the current folder where there is one; a
    /// user's model stands for the built-in one of its name.
    ///
    /// # Errors
    /// Where the file cannot be read, or an entry cannot be used.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let mut config = Self::parse(BUILT_IN, "the built-in models")?;
        let path = file.unwrap_or(Path::new(FILE));
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound && file.is_none() => return Ok(config),
            text => text.map_err(|error| ConfigError(format!("cannot read {}: {error}", path.display())))?,
        };
        let Self { models, problems } = Self::parse(&text, &path.display().to_string())?;
        config.models.extend(models);
        config.problems.extend(problems);
        for (name, list) in &config.problems {
            if let Some(unknown) = list.models.iter().find(|model| !config.models.contains_key(*model)) {
                let why = format!("unknown model `{unknown}`; known: {}", config.names());
                return Err(ConfigError(format!("{}: problems.{name}.models: {why}", path.display())));
            }
        }
        Ok(config)
    }

    /// Reads one file, and holds each entry to what kernels exist for.
    fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        let config: Self =
            toml::from_str(text).map_err(|error| ConfigError(format!("{file}: {}", error.to_string().trim_end())))?;
        let bad = |key: String, why: String| ConfigError(format!("{file}: {key}: {why}"));
        for (name, model) in &config.models {
            model.check().map_err(|(key, why)| bad(format!("model.{name}.{key}"), why))?;
        }
        for (name, list) in &config.problems {
            list.check().map_err(|(key, why)| bad(format!("problems.{name}.{key}"), why))?;
        }
        Ok(config)
    }

    /// The model of this name.
    ///
    /// # Errors
    /// Where there is none: which there are.
    pub fn model(&self, name: &str) -> Result<&Model, ConfigError> {
        let unknown = || {
            let known = self.names();
            ConfigError(format!("unknown model `{name}`; known: {known} (`nvkv-tune models` says what each asks)"))
        };
        self.models.get(name).ok_or_else(unknown)
    }

    /// The list of problems of this name.
    ///
    /// # Errors
    /// Where there is none: which there are.
    pub fn list(&self, name: &str) -> Result<&ProblemList, ConfigError> {
        self.problems.get(name).ok_or_else(|| {
            let known: Vec<_> = self.problems.keys().map(String::as_str).collect();
            let known =
                if known.is_empty() { format!("{FILE} has none") } else { format!("known: {}", known.join(", ")) };
            ConfigError(format!("no list of problems is named `{name}`; {known}"))
        })
    }

    fn names(&self) -> String {
        self.models.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// A key and what is wrong with its value.
type Wrong = (&'static str, String);

fn one_of(key: &'static str, value: u32, known: &[u32]) -> Result<(), Wrong> {
    let all: Vec<_> = known.iter().map(u32::to_string).collect();
    if known.contains(&value) { Ok(()) } else { Err((key, format!("{value} is none of {}", all.join(", ")))) }
}

impl Model {
    fn check(&self) -> Result<(), Wrong> {
        let (queries, keys) = (self.num_attention_heads, self.num_key_value_heads);
        one_of("head_dim", self.head_dim, &HEAD_DIMS)?;
        if keys == 0 {
            return Err(("num_key_value_heads", "must be at least 1".into()));
        }
        if queries == 0 || !queries.is_multiple_of(keys) {
            return Err(("num_attention_heads", format!("{queries} is no multiple of num_key_value_heads, {keys}")));
        }
        let sliding = self.layer_types.contains(&LayerType::SlidingAttention);
        match self.sliding_window {
            Some(0) => return Err(("sliding_window", "must be at least 1 token".into())),
            Some(_) if !sliding => {
                return Err(("layer_types", "must list sliding_attention, where a sliding_window is given".into()));
            }
            None if sliding => {
                return Err(("sliding_window", "is missing, and layer_types lists sliding_attention".into()));
            }
            _ => {}
        }
        if self.layer_types.is_empty() {
            return Err(("layer_types", "must list full_attention, sliding_attention or both".into()));
        }
        match self.attn_logit_softcapping {
            Some(cap) if !(cap > 0.0 && cap.is_finite()) => {
                Err(("attn_logit_softcapping", format!("{cap} is not above 0")))
            }
            _ => Ok(()),
        }
    }

    /// What each of `tp` GPUs is asked for, an entry a kind of layer. Query heads are divided evenly, KV heads too while
    /// there are enough; beyond, each GPU has one, and `tp / num_key_value_heads` GPUs have the same one, as in vLLM.
    ///
    /// # Errors
    /// Where heads cannot be divided so, or no kernel exists for what comes out.
    pub fn layers(&self, tp: u32) -> Result<Vec<Layer>, String> {
        let (queries, keys) = (self.num_attention_heads, self.num_key_value_heads);
        if tp == 0 || !queries.is_multiple_of(tp) {
            return Err(format!("{queries} query heads cannot be divided by {tp}"));
        }
        let kv_heads = match tp {
            _ if keys.is_multiple_of(tp) => keys / tp,
            _ if tp.is_multiple_of(keys) => 1,
            _ => {
                return Err(format!(
                    "{keys} KV heads can neither be divided among {tp} GPUs nor replicated evenly on them"
                ));
            }
        };
        let group = queries / tp / kv_heads;
        if group > MAX_GROUP {
            return Err(format!("{group} query heads a KV head; kernels exist for {MAX_GROUP} at most"));
        }
        let layer = |kind: &LayerType| Layer {
            head_dim: self.head_dim,
            group,
            kv_heads,
            window: self.sliding_window.filter(|_| *kind == LayerType::SlidingAttention),
            sinks: self.sinks,
            soft_cap: self.attn_logit_softcapping.is_some(),
        };
        Ok(self.layer_types.iter().map(layer).collect())
    }
}

impl ProblemList {
    fn check(&self) -> Result<(), Wrong> {
        if self.models.is_empty() {
            return Err(("models", "must name at least one model".into()));
        }
        self.page_size.iter().try_for_each(|&n| one_of("page_size", n, &PAGE_SIZES))?;
        self.q_len.iter().try_for_each(|&n| one_of("q_len", n, &(1..=MAX_Q_LEN).collect::<Vec<_>>()))?;
        for (key, sizes) in [("tp", self.tp.as_slice()), ("batch", &self.batch), ("context", &self.context)] {
            if sizes.contains(&0) {
                return Err((key, "must be at least 1".into()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, "nvkv.toml")
    }

    const MINE: &str = "[model.mine]\nnum_attention_heads = 24\nnum_key_value_heads = 4\nhead_dim = 128\n";

    /// Every GPU of every way to share a built-in model has its part of the heads, and kernels exist for it.
    #[test]
    fn built_in_models_can_be_served_and_no_head_is_lost() {
        let config = Config::parse(BUILT_IN, "models.toml").unwrap();
        assert!(config.models.len() >= 15);
        for (name, model) in &config.models {
            assert!(model.source.as_ref().is_some_and(|s| s.ends_with("/config.json")), "{name} cites its source");
            for tp in [1, 2, 4, 8] {
                let layers = model.layers(tp).unwrap_or_else(|why| panic!("{name} on {tp}: {why}"));
                assert_eq!(layers.len(), model.layer_types.len());
                for layer in layers {
                    assert_eq!(layer.group * layer.kv_heads * tp, model.num_attention_heads, "{name} on {tp}");
                    assert!(layer.kv_heads * tp >= model.num_key_value_heads, "{name} on {tp}");
                }
            }
        }
    }

    #[test]
    fn gpt_oss_has_full_and_windowed_layers_with_sinks() {
        let config = Config::parse(BUILT_IN, "models.toml").unwrap();
        let full = Layer { head_dim: 64, group: 8, kv_heads: 2, window: None, sinks: true, soft_cap: false };
        let windowed = Layer { window: Some(128), ..full };
        assert_eq!(config.model("gpt-oss-120b").unwrap().layers(4).unwrap(), [full, windowed]);
    }

    #[test]
    fn kv_heads_are_divided_then_replicated_else_refused() {
        let config = parse(MINE).unwrap();
        let model = config.model("mine").unwrap();
        let heads = |tp| model.layers(tp).map(|layers| (layers[0].kv_heads, layers[0].group));
        assert_eq!(heads(1), Ok((4, 6)));
        assert_eq!(heads(4), Ok((1, 6)));
        assert_eq!(heads(8), Ok((1, 3)), "two GPUs have the same KV head");
        assert!(heads(3).unwrap_err().contains("4 KV heads can neither be divided among 3"));
        assert!(heads(5).unwrap_err().contains("24 query heads cannot be divided by 5"));
        assert!(heads(0).is_err());
    }

    #[test]
    fn what_is_wrong_is_named_by_file_key_and_expectation() {
        let with = |line: &str| format!("{MINE}{line}\n");
        for (text, parts) in [
            (MINE.replace("128", "96"), ["model.mine.head_dim", "96 is none of 64, 128, 256"]),
            (MINE.replace("24", "25"), ["model.mine.num_attention_heads", "no multiple"]),
            (MINE.replace("= 4", "= 0"), ["model.mine.num_key_value_heads", "at least 1"]),
            (MINE.replace("head_dim = 128", ""), ["head_dim", "missing"]),
            (with("sliding_window = 128"), ["model.mine.layer_types", "sliding_attention"]),
            (with("layer_types = [\"sliding_attention\"]"), ["model.mine.sliding_window", "missing"]),
            (with("layer_types = []"), ["model.mine.layer_types", "full_attention"]),
            (with("layer_types = [\"chunked\"]"), ["chunked", "full_attention"]),
            (with("attn_logit_softcapping = 0.0"), ["attn_logit_softcapping", "above 0"]),
            (with("heads = 3"), ["heads", "num_attention_heads"]),
            (
                with("[problems.x]\nmodels = [\"mine\"]\npage_size = [12]"),
                ["problems.x.page_size", "8, 16, 32, 64, 128"],
            ),
            (with("[problems.x]\nmodels = [\"mine\"]\nbatch = [0]"), ["problems.x.batch", "at least 1"]),
            (with("[problems.x]\nmodels = []"), ["problems.x.models", "at least one"]),
            (with("[problems.x]\nmodels = [\"mine\"]\nop = [\"prefill\"]"), ["prefill", "decode"]),
        ] {
            let said = parse(&text).unwrap_err().to_string();
            assert!(said.contains("nvkv.toml") && parts.iter().all(|part| said.contains(part)), "{parts:?}: {said}");
        }
    }

    #[test]
    fn a_users_file_adds_and_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        fs::write(&file, format!("{MINE}[problems.fleet]\nmodels = [\"mine\", \"qwen3-8b\"]\ntp = 2\n")).unwrap();
        let config = Config::load(Some(&file)).unwrap();
        assert_eq!(config.list("fleet").unwrap().tp, Some(2));
        assert!(config.model("mine").is_ok() && config.model("qwen3-8b").is_ok());
        let said = config.model("list").unwrap_err().to_string();
        assert!(said.contains("qwen3-32b") && said.contains("nvkv-tune models"), "{said}");
        fs::write(&file, "[problems.fleet]\nmodels = [\"nobody\"]\n").unwrap();
        let said = Config::load(Some(&file)).unwrap_err().to_string();
        assert!(said.contains("mine.toml: problems.fleet.models: unknown model `nobody`"), "{said}");
        assert!(Config::load(Some(&folder.path().join("none.toml"))).unwrap_err().to_string().contains("none.toml"));
    }
}
