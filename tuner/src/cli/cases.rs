//! From a preset and the lists on the command line to problems and shapes.

use super::args::{BadArguments, Lists, Scope};
use crate::pipeline::space::Case;
use nvkv_generator::{Preset, problems, shapes};
use nvkv_spec::{Operation, Problem, Shape, VScaleOrder};

/// KV heads of shapes that the command line spells.
const KV_HEADS: u32 = 8;

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
    /// Where an option is given that no listed operation uses.
    pub fn cases(&self) -> Result<Vec<Case>, BadArguments> {
        self.lists.refuse_unused()?;
        let problems = self.lists.problems(self.preset);
        Ok(problems.into_iter().map(|problem| (problem, self.lists.shapes(&problem, self.preset))).collect())
    }
}

impl Lists {
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
        found.iter_mut().for_each(drop_unused_order);
        unique(found)
    }

    /// The listed shapes, or the preset's. An axis that is not listed keeps the preset's values.
    fn shapes(&self, problem: &Problem, preset: Preset) -> Vec<Shape> {
        let of_preset = shapes(problem, preset);
        if self.batch.is_empty() && self.context.is_empty() {
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
                let pair = |&batch| contexts.iter().map(move |&context| Shape::Decode { batch, context, kv_heads });
                batches.iter().flat_map(pair).collect()
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
        Shape::Decode { batch, context, .. } => Some(pick(batch, context)),
        Shape::Append { .. } => None,
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

/// FP8 caches have no block scales, so the order means nothing: one spelling, one kernel.
fn drop_unused_order(problem: &mut Problem) {
    if problem.kv_format().v().scale_row_bytes(problem.head_dim()) == 0 {
        set!(problem, v_scale_order, VScaleOrder::Linear);
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

    #[test]
    fn kv_heads_hold_for_appends_beside_a_listed_context() {
        let lists = Lists { context: vec![4096], kv_heads: Some(4), ..Lists::default() };
        let appends = problems(Preset::Quick, &[Operation::Append]);
        let shapes = lists.shapes(&appends[0], Preset::Quick);
        assert!(!shapes.is_empty() && shapes.iter().all(|shape| shape.kv_heads() == 4), "{shapes:?}");
    }
}
