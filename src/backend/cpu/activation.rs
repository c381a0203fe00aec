//! The gated activation of a feed-forward layer.

use super::pool::ThreadPool;
use super::simd::{Isa, Kernel, LANES, Simd, silu};
use super::split::for_rows;
use crate::backend::Activation;

/// `out[r][i] = act(gate_up[r][i]) * gate_up[r][cols + i]`.
pub(super) fn gated(pool: &ThreadPool, isa: Isa, gate_up: &[f32], act: Activation, cols: usize, out: &mut [f32]) {
    for_rows(pool, out, cols, |first, out| {
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let (gate, up) = gate_up[(first + row) * 2 * cols..][..2 * cols].split_at(cols);
            match act {
                Activation::Silu => isa.run(SiluGate { gate, up, out }),
            }
        }
    });
}

struct SiluGate<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluGate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (gates, gate_tail) = self.gate.as_chunks::<LANES>();
        let (ups, up_tail) = self.up.as_chunks::<LANES>();
        let (outs, out_tail) = self.out.as_chunks_mut::<LANES>();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            s.store(s.mul(silu(s, s.load(gate)), s.load(up)), out);
        }
        let y = s.mul(silu(s, s.load_partial(gate_tail)), s.load_partial(up_tail));
        s.store_partial(y, out_tail);
    }
}
