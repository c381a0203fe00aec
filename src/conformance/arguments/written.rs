//! Rows that the host writes into a buffer.

use super::judge;
use crate::Result;
use crate::backend::{Backend, Loader, Norm, NormRows, Ops};
use crate::{BufferOf, Random, Tally, fill, matrix, two_buffers, vector, within};

/// `(rows, cols)`. The last one is larger than one copy to a device.
const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 7), (5, 256), (67, 80), (1100, 1000)];

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("rows from the host");
    for (seed, &(rows, cols)) in tally.part(&SHAPES) {
        tally.begin(&format!("{rows} rows of {cols} from the host"))?;
        written(loader(rows)?, rows, cols, seed as u64, tally)?;
    }
    tally.begin("rows from the host that do not fit")?;
    misfits(loader(4)?, tally)
}

/// Steps read the written rows, before and after other steps have used the buffer. Other rows do not change.
fn written<L: Loader>(mut loader: L, rows: usize, cols: usize, seed: u64, tally: &mut Tally<'_>) -> Result<()> {
    let mut random = Random(seed);
    let (old, new) = (random.values(rows * cols), random.values(rows * cols));
    let (table, unit) = (matrix(&mut loader, &old, cols)?, vector(&mut loader, &vec![1.0; cols])?);
    let new_table = matrix(&mut loader, &new, cols)?;
    let [mut x, mut out] = two_buffers(&mut loader, rows, cols)?;
    let mut backend = loader.finish()?;
    let norm = Norm::rms(&unit, 1e-5);
    let mut normed = |backend: &mut L::Backend, x: &BufferOf<L>| {
        within(backend, rows, |step| step.norm_rows(NormRows { x, norm, rows, out: &mut out }))?;
        Ok::<_, crate::Error>(backend.to_host(&out, rows, cols)?.to_vec())
    };
    fill(&mut backend, &new_table, rows, &mut x)?;
    let expected = normed(&mut backend, &x)?;
    fill(&mut backend, &table, rows, &mut x)?;
    backend.write_rows(&mut x, 0, &new, cols)?;
    tally.same("written rows", backend.to_host(&x, rows, cols)?, &new);
    let got = normed(&mut backend, &x)?;
    tally.same("a norm of written rows", &got, &expected);
    let (first, end) = (rows / 3, rows.div_ceil(2));
    let [from, to] = [first, end].map(|row| row * cols);
    backend.write_rows(&mut x, first, &old[from..to], cols)?;
    let expected = [&new[..from], &old[from..to], &new[to..]].concat();
    tally.same("rows around those that were written", backend.to_host(&x, rows, cols)?, &expected);
    Ok(())
}

fn misfits<L: Loader>(mut loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let mut x = loader.alloc_buffer(2, 2)?;
    let mut backend = loader.finish()?;
    for (first, values, cols, arguments) in [
        (0, 3, 2, "half a row"),
        (0, 2, 0, "rows of no columns"),
        (0, 1 << 20, 2, "more rows than there is room for"),
        (1 << 20, 2, 2, "rows behind the buffer"),
        (usize::MAX, 2, 2, "rows behind all memory"),
    ] {
        let outcome = backend.write_rows(&mut x, first, &vec![0.0; values], cols);
        judge("rows from the host", outcome, arguments, tally);
    }
    Ok(())
}
