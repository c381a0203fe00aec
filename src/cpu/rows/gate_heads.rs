//! Multiplies each head by a function of its gate, for the gates of the attention output.

use crate::backend::GateFunction;
use crate::pool::ThreadPool;
use crate::split::for_rows;
use crate::states::softplus;

/// Computes `out[r][h][i] *= f(gate[r][h])`, where heads of `out` have `cols` columns.
pub(crate) fn gate_heads(
    pool: &ThreadPool,
    gate: &[f32],
    function: GateFunction,
    [heads, cols]: [usize; 2],
    out: &mut [f32],
) {
    for_rows(pool, out, heads * cols, |first, rows| {
        for (head, gate) in rows.chunks_exact_mut(cols).zip(&gate[first * heads..]) {
            let factor = match function {
                GateFunction::Sigmoid => 1.0 / (1.0 + (-gate).exp()),
                GateFunction::Softplus => softplus(*gate),
            };
            head.iter_mut().for_each(|x| *x *= factor);
        }
    });
}
