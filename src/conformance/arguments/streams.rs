//! Contradictory arguments of the ops for several hidden streams, and for sparse gates.

use super::{COLS, TOKENS, judge};
use crate::Result;
use crate::backend::{LevelRows, Loader, Ops, STREAMS, Sparsify, Streams};
use crate::{Random, Tally, vector, within};

pub(super) fn check<L: Loader>(mut loader: L, tally: &mut Tally<'_>) -> Result<()> {
    tally.begin("arguments of hidden streams that contradict each other")?;
    let mut random = Random(3);
    let coefficients = STREAMS * STREAMS;
    let prediction = vector(&mut loader, &random.values(coefficients * STREAMS))?;
    let correction = vector(&mut loader, &random.values(coefficients))?;
    let mut buffer = |rows: usize| loader.alloc_buffer(rows, if rows == 1 { 1 } else { 2 * COLS });
    let (x, routed, small) = (&buffer(TOKENS)?, &buffer(TOKENS)?, &buffer(1)?);
    let (mut active, mut predicted, mut few) = (buffer(TOKENS)?, buffer(TOKENS)?, buffer(1)?);
    let mut others = [buffer(TOKENS)?, buffer(TOKENS)?, buffer(TOKENS)?];
    let mut too_few = [buffer(TOKENS)?, buffer(TOKENS)?, buffer(1)?];
    let mut backend = loader.finish()?;
    let (rows, cols, least, deviations) = (TOKENS, COLS, 1e-5, 1.0);

    // Runs each op with valid arguments, then with one invalid argument at a time.
    macro_rules! refused {
        ($what:literal, $step:ident, $right:expr, $($wrong:expr),+ $(,)?) => {{
            within(&mut backend, rows, |$step| $right)?;
            $(
                let outcome = within(&mut backend, rows, |$step| $wrong);
                judge($what, outcome, stringify!($wrong), tally);
            )+
        }};
    }
    refused!(
        "sparsify",
        step,
        step.sparsify(Sparsify { x: &mut active, rows, cols, deviations }),
        step.sparsify(Sparsify { x: &mut few, rows, cols, deviations }),
        step.sparsify(Sparsify { x: &mut active, rows, cols: usize::MAX, deviations }),
    );
    refused!(
        "level_rows",
        step,
        step.level_rows(LevelRows { x, like: routed, rows, cols, least, out: &mut active }),
        step.level_rows(LevelRows { x: small, like: routed, rows, cols, least, out: &mut active }),
        step.level_rows(LevelRows { x, like: small, rows, cols, least, out: &mut active }),
        step.level_rows(LevelRows { x, like: routed, rows, cols, least, out: &mut few }),
    );
    macro_rules! streams {
        ($weight:ident $(, $field:ident: $value:expr)*) => {{
            #[allow(unused_mut)] // some change nothing
            let mut args = Streams {
                routed,
                weight: &$weight,
                scale: 1.0,
                rows,
                cols,
                active: &mut active,
                predicted: &mut predicted,
                others: &mut others,
            };
            $(args.$field = $value;)*
            args
        }};
    }
    refused!(
        "predict_streams",
        step,
        step.predict_streams(streams!(prediction)),
        step.predict_streams(streams!(correction)),
        step.predict_streams(streams!(prediction, active: &mut few)),
        step.predict_streams(streams!(prediction, predicted: &mut few)),
        step.predict_streams(streams!(prediction, others: &mut too_few)),
    );
    refused!(
        "correct_streams",
        step,
        step.correct_streams(streams!(correction)),
        step.correct_streams(streams!(prediction)),
        step.correct_streams(streams!(correction, active: &mut few)),
        step.correct_streams(streams!(correction, others: &mut too_few)),
    );
    Ok(())
}
