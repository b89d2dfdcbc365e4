//! Winners of a database: its own trials, newer or from other shapes than the bundle's.

use crate::bundle::{Kernel, Trust};
use crate::index::Row;
use crate::runtime::{OpenError, Refused, check_row};
use nvkv_db::{Db, KernelRecord, PredictedWinner, Winner, WinnerFilter};
use nvkv_spec::{KernelId, Shape, SplitPolicy, Target};
use std::collections::HashMap;
use std::path::Path;

/// The winners of the database at `db`, of equal shapes the later trial last; and those whose kernel the bundle lacks.
pub(crate) fn winners(db: &Path, target: Target, kernels: &[Kernel]) -> Result<(Vec<Row>, Vec<Refused>), OpenError> {
    let db = Db::open_read_only(db)?;
    let filter = WinnerFilter::of(target);
    let by_source: HashMap<_, u32> = kernels.iter().map(|k| (&k.id, k.source_hash.as_str())).zip(0..).collect();
    let (mut rows, mut refused) = (Vec::new(), Vec::new());
    let mut add = |record: &KernelRecord, shape: Shape, split: Option<SplitPolicy>, trust: Trust, us: f64, regret| {
        let id = KernelId::new(&record.problem, &record.variant);
        match by_source.get(&(&id, record.source_hash.as_str())) {
            Some(&kernel) => {
                let row = Row { shape, kernel, split, trust, us, regret };
                rows.extend(check_row(&record.problem, &row).is_ok().then_some(row));
            }
            None => refused.push(Refused { kernel: id, shape }),
        }
    };
    let mut timed = db.winners(&filter)?;
    timed.sort_by_key(|winner| winner.trial);
    for Winner { kernel, shape, split, times, regret, .. } in &timed {
        add(kernel, *shape, *split, Trust::Timed, times.median_us, *regret);
    }
    let mut predicted = db.predicted_winners(&filter)?;
    predicted.sort_by_key(|winner| winner.trial);
    for PredictedWinner { kernel, shape, split, predicted_us, .. } in &predicted {
        add(kernel, *shape, *split, Trust::Predicted, *predicted_us, None);
    }
    refused.dedup();
    Ok((rows, refused))
}
