//! The causal convolution over q, k and v, with SiLU and the norms of q and k behind it, and the inputs that it keeps.
#![allow(unsafe_code)] // Slots of the pool are written from several threads.

use super::DeltaNet;
use crate::backend::StateLayerSpec;
use crate::backend::cpu::norm::sum_of_squares;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd, silu};
use crate::backend::cpu::split::{Split, for_rows};

/// `convolved = [q | k | v]` of all rows, q and k of unit length, q times `1 / sqrt(key_size)`.
pub(super) fn convolve(net: &DeltaNet<'_>, pool: &ThreadPool, isa: Isa, windows: &[f32], convolved: &mut [f32]) {
    let channels = net.shape.channels();
    for_rows(pool, convolved, channels, |first, rows| isa.run(Rows { net, windows, first, rows }));
}

struct Rows<'a> {
    net: &'a DeltaNet<'a>,
    windows: &'a [f32],
    /// Index of the first of the rows in the batch.
    first: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { net, windows, first, rows } = self;
        let shape = net.shape;
        let (channels, window) = (shape.channels(), shape.taps - 1);
        for (row, out) in (first..).zip(rows.chunks_exact_mut(channels)) {
            let seq = net.batch.cu_seqlens_q.partition_point(|&start| start as usize <= row) - 1;
            let offset = row - net.batch.cu_seqlens_q[seq] as usize;
            out.fill(0.0);
            for (tap, weights) in net.taps.chunks_exact(channels).enumerate() {
                // Inputs from before the first token of a text are zero, and add nothing.
                let input = match (offset + tap).checked_sub(window) {
                    Some(_) => Some(&net.x[(row + tap - window) * shape.cols()..][..channels]),
                    None => net
                        .first_slot(seq)
                        .map(|slot| &windows[(slot * window + offset + tap) * channels..][..channels]),
                };
                if let Some(input) = input {
                    add_products(s, weights, input, out);
                }
            }
            apply_silu(s, out);
            let (q, k) = out[..2 * shape.key_cols()].split_at_mut(shape.key_cols());
            let factors = [1.0 / (shape.key_size as f32).sqrt(), 1.0];
            for (heads, factor) in [q, k].into_iter().zip(factors) {
                for head in heads.chunks_exact_mut(shape.key_size) {
                    let scale = factor / (sum_of_squares(s, head, 0.0) + net.eps).sqrt();
                    head.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }
}

/// `out += weights * input`, element by element.
#[inline(always)]
fn add_products<S: Simd>(s: S, weights: &[f32], input: &[f32], out: &mut [f32]) {
    let (weights, weights_tail) = weights.as_chunks::<LANES>();
    let (input, input_tail) = input.as_chunks::<LANES>();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((weights, input), out) in weights.iter().zip(input).zip(out) {
        s.store(s.fma(s.load(weights), s.load(input), s.load(out)), out);
    }
    let products = s.fma(s.load_partial(weights_tail), s.load_partial(input_tail), s.load_partial(out_tail));
    s.store_partial(products, out_tail);
}

#[inline(always)]
fn apply_silu<S: Simd>(s: S, row: &mut [f32]) {
    let (vectors, tail) = row.as_chunks_mut::<LANES>();
    for x in vectors {
        s.store(silu(s, s.load(x)), x);
    }
    s.store_partial(silu(s, s.load_partial(tail)), tail);
}

/// Keeps the last inputs of the convolution at the points that the batch names.
pub(super) fn keep_windows(net: &DeltaNet<'_>, pool: &ThreadPool, spec: &StateLayerSpec, windows: &Split<'_, f32>) {
    let &StateLayerSpec { window, channels, .. } = spec;
    pool.run(net.batch.num_seqs(), &|seq| {
        let start = net.batch.tokens_of(seq).start;
        let read = net.first_slot(seq);
        // The slot that the sequence begins with comes last: the others are made of what it holds.
        let writes = net.batch.states.writes_of(seq);
        let is_first = |slot: u32| Some(slot as usize) == read;
        let ordered =
            writes.iter().filter(|write| !is_first(write.slot)).chain(writes.iter().filter(|w| is_first(w.slot)));
        for write in ordered {
            let kept = write.num_tokens as usize;
            for row in 0..window {
                let at = (write.slot as usize * window + row) * channels;
                // SAFETY: no two sequences write one slot, and none reads what another writes.
                let out = unsafe { windows.part(at..at + channels) };
                match ((row + kept).checked_sub(window), read) {
                    (Some(token), _) => {
                        out.copy_from_slice(&net.x[(start + token) * net.shape.cols()..][..channels]);
                    }
                    (None, None) => out.fill(0.0),
                    (None, Some(slot)) => {
                        let from = (slot * window + row + kept) * channels;
                        let end = windows.pointer(from + channels);
                        // SAFETY: it is a row of the pool, which ends at `end`, another one than `out`, as `kept` is
                        // not zero; others may read it at the same time, and none writes it.
                        out.copy_from_slice(unsafe { std::slice::from_raw_parts(end.sub(channels), channels) });
                    }
                }
            }
        }
    });
}
