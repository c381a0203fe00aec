//! Results that several thread blocks compute together, each of them repeated with equal bits. The last block to arrive
//! adds the partial results in an order that does not depend on which block it is.

use crate::Result;
use crate::attention::{Case, case, expected};
use crate::backend::Loader;
use crate::linear::{ProductRig, Weights};
use crate::quant::GgmlType;
use crate::selection::RowRig;
use crate::{Accuracy, Random, Tally};

/// Type, rows, outputs and columns: long rows and few outputs, which devices split along the columns.
const PRODUCTS: [(GgmlType, usize, usize, usize); 3] =
    [(GgmlType::Q8_0, 20, 35, 1088), (GgmlType::Q4_K, 8, 48, 8192), (GgmlType::F16, 64, 16, 4096)];
/// Contexts that are split: one of medium length, then a long one with another, which have sinks.
const ATTENTION: [Case; 2] =
    [case([2, 1], 64, 16, &[(300, 1)]), Case { sinks: true, ..case([8, 2], 128, 16, &[(1500, 1), (700, 1)]) }];
/// Logits of a row that several thread blocks share.
const LOGITS: [usize; 2] = [33_000, 151_936];

/// Runs each case `repetitions` times. The first result must be right, and all others equal to it.
pub fn check<L: Loader>(
    loader: impl Fn(usize) -> Result<L>,
    accuracy: Accuracy,
    repetitions: usize,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group("split products");
    for (_, &(ggml_type, rows, outputs, cols)) in tally.part(&PRODUCTS) {
        let what = format!("{} of {outputs} x {cols}, {rows} rows", ggml_type.name());
        tally.begin(&what)?;
        let weights = Weights::random(ggml_type, outputs, cols, 1)?;
        let mut rig = ProductRig::new(loader(rows)?, &weights, rows, true)?;
        let first = rig.run()?;
        tally.compare(&what, &first, rig.expected(&weights));
        repeat(&what, &first, repetitions, || rig.run(), tally)?;
    }
    tally.group("split attention");
    for (seed, case) in tally.part(&ATTENTION) {
        let what = format!("attention of {:?} over {:?}", case.layout(), case.seqs);
        tally.begin(&what)?;
        let mut random = Random(seed as u64);
        let rows = case.rows(&mut random);
        let (pieces, spec) = case.pieces(&mut random);
        let mut rig = case.rig(loader(2200)?, spec, &rows)?;
        let first = rig.run(case.scoring(), &pieces)?;
        tally.close(&what, &first, &expected(case, &pieces, &rows), 1e-5, case.tolerance(accuracy));
        repeat(&what, &first, repetitions, || rig.step(case.scoring(), &pieces), tally)?;
    }
    tally.group("shared rows of logits");
    for (_, &cols) in tally.part(&LOGITS) {
        let what = format!("the largest of {cols} logits");
        tally.begin(&what)?;
        let mut rig = RowRig::new(loader(1)?, Random(1).values(cols))?;
        let first = rig.run(&what, tally)?;
        repeat(&what, &first, repetitions, || rig.bits(), tally)?;
    }
    Ok(())
}

/// Records one more result for all repetitions.
fn repeat(
    what: &str,
    first: &[f32],
    repetitions: usize,
    mut again: impl FnMut() -> Result<Vec<f32>>,
    tally: &mut Tally<'_>,
) -> Result<()> {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let expected = bits(first);
    let (mut differ, mut at) = (0, None);
    for repetition in 1..repetitions {
        if bits(&again()?) != expected {
            differ += 1;
            at = at.or(Some(repetition));
        }
        // Now and then, so the watcher can stop the run.
        if repetition % 256 == 0 {
            tally.begin(what)?;
        }
    }
    let verdict = match at {
        None => Ok(0.0),
        Some(at) => Err(format!("{differ} of {repetitions} repetitions differ from the first, number {at} before all")),
    };
    tally.judge(what, first.len() * repetitions.saturating_sub(1), verdict);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;

    /// A single repetition with one different bit is found and named.
    #[test]
    fn a_bit_that_changes_once_is_found() {
        let mut watch = |_: &str| true;
        let mut tally = Tally::new(Extent::Full, &mut watch);
        tally.group("op");
        let first = [1.0, -0.0];
        let mut count = 0;
        let mut again = |odd_one: usize| {
            count += 1;
            Ok(vec![1.0, if count == odd_one { 0.0 } else { -0.0 }])
        };
        repeat("case", &first, 1000, || again(usize::MAX), &mut tally).unwrap();
        repeat("case", &first, 1000, || again(999 + 700), &mut tally).unwrap();
        let group = tally.into_groups().remove(0);
        assert_eq!((group.cases, group.wrong), (2, 1));
        assert_eq!(group.texts, ["case: 1 of 1000 repetitions differ from the first, number 700 before all"]);
    }
}
