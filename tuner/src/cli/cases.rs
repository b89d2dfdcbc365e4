//! From a preset and the lists on the command line to problems and shapes.

use super::args::{BadArguments, Lists, Scope};
use crate::models::{Config, ConfigError, Layer, ProblemList};
use crate::pipeline::space::Case;
use nvkv_generator::{HEAD_DIMS, KV_HEADS, MAX_GROUP, MAX_Q_LEN, PAGE_SIZES, Preset, problems, shapes};
use nvkv_runtime::{Asked, HISTOGRAM_SCHEMA, Histogram};
use nvkv_spec::{Lengths, Operation, Problem, Shape};
use std::fs;
use std::path::Path;

/// Sets an axis that every operation has.
macro_rules! set {
    ($problem:expr, $axis:ident, $value:expr) => {
        match $problem {
            Problem::Decode(p) => p.$axis = $value,
            Problem::Append(p) => p.$axis = $value,
        }
    };
}

impl Scope {
    /// The problems of this scope and their shapes, each once, in the preset's order.
    ///
    /// # Errors
    /// Where an option is given that no listed operation uses, or the file of shapes cannot be used.
    pub fn cases(&self) -> Result<Vec<Case>, BadArguments> {
        self.refuse_mixed()?;
        if let Some(file) = &self.shapes {
            self.lists.refuse_any("--shapes")?;
            return asked(file);
        }
        if !self.model.is_empty() {
            self.lists.refuse_heads()?;
            return self.of_models(&self.model, self.tp, &self.lists);
        }
        if let Some(name) = &self.problems {
            self.lists.refuse_any("--problems")?;
            let list = self.config()?.list(name).map_err(bad)?.clone();
            return self.of_models(&list.models, list.tp, &Lists::from(&list));
        }
        self.lists.refuse_unused()?;
        Ok(self.lists.cases(self.preset))
    }

    /// What each kind of layer of each model asks of one of `tp` GPUs, served as `lists` say.
    fn of_models(&self, models: &[String], tp: Option<u32>, lists: &Lists) -> Result<Vec<Case>, BadArguments> {
        lists.refuse_unused()?;
        let (config, tp) = (self.config()?, tp.unwrap_or(1));
        let mut cases: Vec<Case> = Vec::new();
        for name in models {
            let model = config.model(name.trim()).map_err(bad)?;
            let layers = model.layers(tp).map_err(|why| BadArguments(format!("{name} with tp {tp}: {why}")))?;
            for (problem, shapes) in layers.iter().flat_map(|layer| lists.of_layer(layer).cases(self.preset)) {
                match cases.iter_mut().find(|(known, _)| *known == problem) {
                    Some((_, known)) => *known = unique([&known[..], &shapes].concat()),
                    None => cases.push((problem, shapes)),
                }
            }
        }
        Ok(cases)
    }

    fn config(&self) -> Result<Config, BadArguments> {
        Config::load(self.config.as_deref()).map_err(bad)
    }

    /// Options that each say which problems there are, and those that belong to one of them.
    fn refuse_mixed(&self) -> Result<(), BadArguments> {
        let given = [
            ("--shapes", self.shapes.is_some()),
            ("--model", !self.model.is_empty()),
            ("--problems", self.problems.is_some()),
        ];
        let given: Vec<_> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        if given.len() > 1 {
            return Err(BadArguments(format!("{} each say problems: give one of them", given.join(" and "))));
        }
        if self.tp.is_some() && self.model.is_empty() {
            return Err(BadArguments("--tp divides the heads of --model: name one".into()));
        }
        if self.config.is_some() && self.model.is_empty() && self.problems.is_none() {
            return Err(BadArguments("--config is read for --model or --problems: name what to tune of it".into()));
        }
        Ok(())
    }
}

fn bad(error: ConfigError) -> BadArguments {
    BadArguments(error.to_string())
}

impl From<&ProblemList> for Lists {
    fn from(list: &ProblemList) -> Self {
        Self {
            op: list.op.clone(),
            kv_format: list.kv_format.clone(),
            numerics: list.numerics.clone(),
            page_size: list.page_size.clone(),
            q_len: list.q_len.clone(),
            dtype: list.dtype.clone(),
            v_scale_order: list.v_scale_order.clone(),
            batch: list.batch.clone(),
            context: list.context.clone(),
            lengths: list.lengths.clone(),
            ..Self::default()
        }
    }
}

/// The cases of a runtime's histogram: a problem where it was asked for most, its shapes likewise, so that a run with a
/// time limit covers most of the traffic.
fn asked(file: &Path) -> Result<Vec<Case>, BadArguments> {
    let unusable = |what: String| {
        BadArguments(format!(
            "--shapes {}: {what}; it is what shape_histogram() of nvkv's runtime gives",
            file.display()
        ))
    };
    let text = fs::read_to_string(file).map_err(|error| unusable(error.to_string()))?;
    let histogram: Histogram = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if histogram.schema != HISTOGRAM_SCHEMA {
        return Err(unusable(format!(
            "schema {} is not {HISTOGRAM_SCHEMA}, which this nvkv-tune reads",
            histogram.schema
        )));
    }
    let mut counts: Vec<((Problem, Shape), u64)> = Vec::new();
    for Asked { problem, shape, count, .. } in histogram.shapes {
        let problem = problem.normal();
        if let Err(why) = refuse_unknown(&problem, &shape) {
            eprintln!("note: left out, asked for {count} times: {why}");
            continue;
        }
        match counts.iter_mut().find(|(case, _)| *case == (problem, shape)) {
            Some((_, sum)) => *sum += count,
            None => counts.push(((problem, shape), count)),
        }
    }
    if counts.is_empty() {
        return Err(unusable("nothing in it can be tuned".into()));
    }
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let mut cases: Vec<Case> = Vec::new();
    for ((problem, shape), _) in counts {
        match cases.iter_mut().find(|(known, _)| *known == problem) {
            Some((_, shapes)) => shapes.push(shape),
            None => cases.push((problem, vec![shape])),
        }
    }
    Ok(cases)
}

/// An engine may ask for what no kernel can be made for.
fn refuse_unknown(problem: &Problem, shape: &Shape) -> Result<(), String> {
    let (page_size, group, q_len) = match problem {
        Problem::Decode(p) => (p.page_size, p.group, p.q_len),
        Problem::Append(p) => (p.page_size, 1, 1),
    };
    let exists = HEAD_DIMS.contains(&problem.head_dim())
        && PAGE_SIZES.contains(&page_size)
        && (1..=MAX_GROUP).contains(&group)
        && (1..=MAX_Q_LEN).contains(&q_len);
    if !exists {
        return Err(format!("{} is none that kernels exist for", problem.key()));
    }
    let of_one_operation = matches!(
        (problem, shape),
        (Problem::Decode(_), Shape::Decode { .. }) | (Problem::Append(_), Shape::Append { .. })
    );
    if of_one_operation { Ok(()) } else { Err(format!("{} is no shape of {}", shape.key(), problem.key())) }
}

impl Lists {
    /// The problems and their shapes, each once, in the preset's order.
    fn cases(&self, preset: Preset) -> Vec<Case> {
        let problems = self.problems(preset);
        problems.into_iter().map(|problem| (problem, self.shapes(&problem, preset))).collect()
    }

    /// The same for one kind of layer.
    fn of_layer(&self, layer: &Layer) -> Self {
        Self {
            head_dim: vec![layer.head_dim],
            group: vec![layer.group],
            window: vec![layer.window],
            sinks: vec![layer.sinks],
            soft_cap: vec![layer.soft_cap],
            kv_heads: Some(layer.kv_heads),
            ..self.clone()
        }
    }

    /// A model says what its heads are.
    fn refuse_heads(&self) -> Result<(), BadArguments> {
        let given = [
            ("--head-dim", !self.head_dim.is_empty()),
            ("--group", !self.group.is_empty()),
            ("--window", !self.window.is_empty()),
            ("--sinks", !self.sinks.is_empty()),
            ("--soft-cap", !self.soft_cap.is_empty()),
            ("--kv-heads", self.kv_heads.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => Err(BadArguments(format!("--model says what {option} says: leave it out"))),
        }
    }

    /// A file of shapes or a list of problems says all that the lists say.
    fn refuse_any(&self, option: &str) -> Result<(), BadArguments> {
        // Every list, so that a new one is not forgotten.
        let Self {
            op,
            kv_format,
            numerics,
            head_dim,
            group,
            page_size,
            q_len,
            dtype,
            v_scale_order,
            window,
            sinks,
            soft_cap,
            batch,
            context,
            lengths,
            kv_heads,
        } = self;
        let given = [
            op.len(),
            kv_format.len(),
            numerics.len(),
            head_dim.len(),
            group.len(),
            page_size.len(),
            q_len.len(),
            dtype.len(),
            v_scale_order.len(),
            window.len(),
            sinks.len(),
            soft_cap.len(),
            batch.len(),
            context.len(),
            lengths.len(),
            usize::from(kv_heads.is_some()),
        ];
        match given.iter().sum() {
            0 => Ok(()),
            _ => Err(BadArguments(format!("{option} says problems and shapes: leave the lists out"))),
        }
    }

    /// An append has no queries and no context: options about them would be ignored without a word.
    fn refuse_unused(&self) -> Result<(), BadArguments> {
        let given = [
            ("--numerics", !self.numerics.is_empty()),
            ("--group", !self.group.is_empty()),
            ("--q-len", !self.q_len.is_empty()),
            ("--window", !self.window.is_empty()),
            ("--sinks", !self.sinks.is_empty()),
            ("--soft-cap", !self.soft_cap.is_empty()),
            ("--context", !self.context.is_empty()),
            ("--lengths", !self.lengths.is_empty()),
        ];
        let attends = self.op.is_empty() || self.op.iter().any(|op| *op != Operation::Append);
        match given.into_iter().find(|(_, given)| *given && !attends) {
            None => Ok(()),
            Some((option, _)) => Err(BadArguments(format!(
                "{option} means nothing to --op append: leave it out, or list decode or fused too (--batch says how \
                 many tokens are appended)"
            ))),
        }
    }

    /// The preset's problems with every listed axis replaced.
    fn problems(&self, preset: Preset) -> Vec<Problem> {
        let operations = if self.op.is_empty() { Operation::ALL } else { &self.op };
        let mut found = problems(preset, operations);
        replace(&mut found, &self.kv_format, |p, v| set!(p, kv_format, v));
        replace(&mut found, &self.head_dim, |p, v| set!(p, head_dim, v));
        replace(&mut found, &self.page_size, |p, v| set!(p, page_size, v));
        replace(&mut found, &self.dtype, |p, v| set!(p, dtype, v));
        replace(&mut found, &self.v_scale_order, |p, v| set!(p, v_scale_order, v));
        replace(&mut found, &self.numerics, |p, v| decode(p, |d| d.numerics = v));
        replace(&mut found, &self.group, |p, v| decode(p, |d| d.group = v));
        replace(&mut found, &self.q_len, |p, v| decode(p, |d| d.q_len = v));
        replace(&mut found, &self.window, |p, v| decode(p, |d| d.window = v));
        replace(&mut found, &self.sinks, |p, v| decode(p, |d| d.sinks = v));
        replace(&mut found, &self.soft_cap, |p, v| decode(p, |d| d.soft_cap = v));
        // FP8 caches have no block scales, so the order means nothing: one spelling, one kernel.
        unique(found.into_iter().map(Problem::normal).collect())
    }

    /// The listed shapes, or the preset's. An axis that is not listed keeps the preset's values.
    fn shapes(&self, problem: &Problem, preset: Preset) -> Vec<Shape> {
        let of_preset = shapes(problem, preset);
        if self.batch.is_empty() && self.context.is_empty() && self.lengths.is_empty() {
            return unique(of_preset.into_iter().map(|shape| self.with_kv_heads(shape)).collect());
        }
        let kv_heads = self.kv_heads.unwrap_or(KV_HEADS);
        let listed = match problem {
            // An append has no context: the batch says how many tokens come in one step.
            Problem::Append(_) if self.batch.is_empty() => {
                of_preset.into_iter().map(|shape| self.with_kv_heads(shape)).collect()
            }
            Problem::Append(_) => self.batch.iter().map(|&tokens| Shape::Append { tokens, kv_heads }).collect(),
            Problem::Decode(_) => {
                let batches = or_else(&self.batch, &of_preset, |batch, _| batch);
                let contexts = or_else(&self.context, &of_preset, |_, context| context);
                let lengths = if self.lengths.is_empty() { vec![Lengths::Equal] } else { self.lengths.clone() };
                let one = |batch, context, lengths| Shape::Decode { batch, context, kv_heads, lengths };
                let pairs = batches.iter().flat_map(|&batch| contexts.iter().map(move |&context| (batch, context)));
                pairs.flat_map(|(b, c)| lengths.iter().map(move |&l| one(b, c, l))).collect()
            }
        };
        unique(listed)
    }

    fn with_kv_heads(&self, mut shape: Shape) -> Shape {
        if let Some(wanted) = self.kv_heads {
            match &mut shape {
                Shape::Decode { kv_heads, .. } | Shape::Append { kv_heads, .. } => *kv_heads = wanted,
            }
        }
        shape
    }
}

/// The listed values, or the preset's where none are listed.
fn or_else(listed: &[u32], of_preset: &[Shape], pick: impl Fn(u32, u32) -> u32) -> Vec<u32> {
    if !listed.is_empty() {
        return listed.to_vec();
    }
    let values = of_preset.iter().filter_map(|shape| match *shape {
        Shape::Decode { batch, context, lengths: Lengths::Equal, .. } => Some(pick(batch, context)),
        Shape::Decode { .. } | Shape::Append { .. } => None,
    });
    unique(values.collect())
}

/// Each problem once for each value of a listed axis.
fn replace<T: Copy>(problems: &mut Vec<Problem>, values: &[T], set: impl Fn(&mut Problem, T)) {
    if values.is_empty() {
        return;
    }
    let each = |problem: &Problem, value: T| {
        let mut problem = *problem;
        set(&mut problem, value);
        problem
    };
    *problems = unique(problems.iter().flat_map(|p| values.iter().map(|&v| each(p, v))).collect());
}

fn decode(problem: &mut Problem, set: impl FnOnce(&mut nvkv_spec::DecodeProblem)) {
    if let Problem::Decode(p) = problem {
        set(p);
    }
}

/// The values in order, each once.
fn unique<T: PartialEq>(values: Vec<T>) -> Vec<T> {
    values.into_iter().fold(Vec::new(), |mut kept, value| {
        if !kept.contains(&value) {
            kept.push(value);
        }
        kept
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as the runtime writes it: the most asked for comes first, however it was served, and each case once.
    #[test]
    fn shapes_of_a_file_come_by_traffic() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = problems(Preset::Quick, &[Operation::Decode]);
        let (a, b) = (found[0], found[1]);
        let shape = |batch| Shape::Decode { batch, context: 5120, kv_heads: 8, lengths: Lengths::Equal };
        let asked =
            |problem, batch, served: &str, count| Asked { problem, shape: shape(batch), served: served.into(), count };
        let mut histogram = Histogram {
            schema: HISTOGRAM_SCHEMA,
            target: nvkv_spec::Target::Sm90a,
            shapes: vec![
                asked(a, 1, "bucket", 5),
                asked(b, 40, "miss", 4),
                asked(b, 40, "exact", 3),
                asked(b, 2, "exact", 6),
            ],
            others: 0,
        };
        let cases = |histogram: &Histogram| {
            fs::write(file.path(), serde_json::to_string(histogram).unwrap()).unwrap();
            super::asked(file.path())
        };
        let expected = vec![(b, vec![shape(40), shape(2)]), (a, vec![shape(1)])];
        assert_eq!(cases(&histogram).unwrap(), expected);
        histogram.shapes[0].shape = Shape::Append { tokens: 1, kv_heads: 1 };
        assert_eq!(cases(&histogram).unwrap(), expected[..1], "what cannot be tuned is left out");
        histogram.shapes.truncate(1);
        assert!(cases(&histogram).unwrap_err().to_string().contains("nothing in it can be tuned"));
        histogram.schema = 99;
        assert!(cases(&histogram).unwrap_err().to_string().contains("schema 99"));
        let scope = |lists| Scope {
            arch: crate::cli::args::Arch::Native,
            preset: Preset::Quick,
            shapes: Some("none.json".into()),
            model: Vec::new(),
            tp: None,
            problems: None,
            config: None,
            lists,
        };
        let said = scope(Lists::default()).cases().unwrap_err().to_string();
        assert!(said.contains("none.json") && said.contains("shape_histogram()"), "{said}");
        for lists in [
            Lists { batch: vec![1], ..Lists::default() },
            Lists { lengths: vec![Lengths::LogUniform], ..Lists::default() },
            Lists { window: vec![Some(128)], ..Lists::default() },
        ] {
            let said = scope(lists).cases().unwrap_err().to_string();
            assert!(said.contains("leave the lists out"), "{said}");
        }
    }

    /// What a model says is the same for all; what it leaves open comes from the lists and the preset.
    #[test]
    fn a_model_gives_its_layers_with_the_listed_shapes() {
        let scope = |model: &str, tp, lists| Scope {
            arch: crate::cli::args::Arch::Native,
            preset: Preset::Quick,
            shapes: None,
            model: vec![model.into()],
            tp,
            problems: None,
            config: None,
            lists,
        };
        let lists = Lists { op: vec![Operation::Decode], batch: vec![3], context: vec![5000], ..Lists::default() };
        let cases = scope("gpt-oss-20b", Some(4), lists.clone()).cases().unwrap();
        let shape = Shape::Decode { batch: 3, context: 5000, kv_heads: 2, lengths: Lengths::Equal };
        let mut windows = Vec::new();
        for (problem, shapes) in &cases {
            let Problem::Decode(p) = problem else { panic!("{problem:?}") };
            assert_eq!((p.head_dim, p.group, p.sinks, p.soft_cap), (64, 8, true, false));
            assert_eq!(shapes, &[shape]);
            windows.push(p.window);
        }
        let of_preset = problems(Preset::Quick, &[Operation::Decode]).len();
        for window in [None, Some(128)] {
            assert_eq!(windows.iter().filter(|w| **w == window).count(), of_preset, "{window:?}");
        }
        let said = scope("gpt-oss-20b", Some(3), lists.clone()).cases().unwrap_err().to_string();
        assert!(said.contains("gpt-oss-20b with tp 3") && said.contains("64 query heads"), "{said}");
        let heads = Lists { group: vec![4], ..lists };
        assert!(scope("gpt-oss-20b", None, heads).cases().unwrap_err().to_string().contains("--group"));
        assert!(scope("list", None, Lists::default()).cases().unwrap_err().to_string().contains("qwen3-32b"));
    }

    #[test]
    fn kv_heads_hold_for_appends_beside_a_listed_context() {
        let lists = Lists { context: vec![4096], kv_heads: Some(4), ..Lists::default() };
        let appends = problems(Preset::Quick, &[Operation::Append]);
        let shapes = lists.shapes(&appends[0], Preset::Quick);
        assert!(!shapes.is_empty() && shapes.iter().all(|shape| shape.kv_heads() == 4), "{shapes:?}");
    }
}
