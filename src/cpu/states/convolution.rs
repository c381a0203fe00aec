//! The causal depthwise convolution of a layer with states, and the inputs that it saves.
#![allow(unsafe_code)] // Slots of the pool are written from several threads.

use super::first_slot;
use crate::backend::StateLayerSpec;
use crate::batch::Batch;
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd, silu};
use crate::split::{Split, for_rows};

/// The rows that go through a convolution: columns of wider rows, or their products with other columns.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    /// Rows of `cols` columns.
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
    /// The first input column.
    pub(super) first: usize,
    /// The first column of the factors, if inputs are products.
    pub(super) factor: Option<usize>,
}

impl<'a> Inputs<'a> {
    fn columns(&self, row: usize, first: usize, count: usize) -> &'a [f32] {
        &self.x[row * self.cols + first..][..count]
    }
}

/// A convolution over the sequences of a batch.
pub(super) struct Convolution<'a> {
    pub(super) inputs: Inputs<'a>,
    pub(super) channels: usize,
    /// The taps, `[taps, channels]`.
    pub(super) taps: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
    pub(super) batch: &'a Batch,
}

/// The function that turns a row's sums into the result of the convolution.
pub(super) trait Finish: Sync {
    /// Transforms the sums of row `row` of the batch.
    fn finish<S: Simd>(&self, s: S, row: usize, sums: &mut [f32]);
}

/// The SiLU of the sums.
pub(super) struct SiluOfSums;

impl Finish for SiluOfSums {
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, _row: usize, sums: &mut [f32]) {
        apply_silu(s, sums);
    }
}

impl Convolution<'_> {
    /// Writes `finish` of each row's sums to `out`, `[n, channels]`.
    pub(super) fn run_on(&self, pool: &ThreadPool, isa: Isa, windows: &[f32], finish: &impl Finish, out: &mut [f32]) {
        for_rows(pool, out, self.channels, |first, rows| {
            isa.run(Rows { convolution: self, windows, finish, first, rows });
        });
    }

    /// Returns the number of inputs that a state holds.
    fn window(&self) -> usize {
        self.taps.len() / self.channels - 1
    }

    /// Saves the last inputs at the points that the batch names.
    pub(super) fn keep_windows(&self, pool: &ThreadPool, spec: &StateLayerSpec, windows: &Split<'_, f32>) {
        let &StateLayerSpec { window, channels, .. } = spec;
        pool.run(self.batch.num_seqs(), &|seq| {
            let start = self.batch.tokens_of(seq).start;
            let read = first_slot(self.batch, seq);
            // The slot with the initial state is written last, since the other slots may copy from it.
            let writes = self.batch.states.writes_of(seq);
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
                        (Some(token), _) => self.keep_input(start + token, out),
                        (None, None) => out.fill(0.0),
                        (None, Some(slot)) => {
                            let from = (slot * window + row + kept) * channels;
                            let end = windows.pointer(from + channels);
                            // SAFETY: it is a row of the pool, which ends at `end`. It differs from `out`, as `kept` is
                            // not zero. Others may read it at the same time, and none writes it.
                            out.copy_from_slice(unsafe { std::slice::from_raw_parts(end.sub(channels), channels) });
                        }
                    }
                }
            }
        });
    }

    /// Copies the input of a row of the batch.
    fn keep_input(&self, row: usize, out: &mut [f32]) {
        let Inputs { first, factor, .. } = self.inputs;
        out.copy_from_slice(self.inputs.columns(row, first, self.channels));
        if let Some(factor) = factor {
            let factors = self.inputs.columns(row, factor, self.channels);
            out.iter_mut().zip(factors).for_each(|(out, factor)| *out *= factor);
        }
    }
}

struct Rows<'a, F> {
    convolution: &'a Convolution<'a>,
    windows: &'a [f32],
    finish: &'a F,
    /// Index of the first row in the batch.
    first: usize,
    rows: &'a mut [f32],
}

impl<F: Finish> Kernel for Rows<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { convolution, windows, finish, first, rows } = self;
        let &Convolution { inputs, channels, taps, bias, batch } = convolution;
        let window = convolution.window();
        for (row, out) in (first..).zip(rows.chunks_exact_mut(channels)) {
            let seq = batch.cu_seqlens_q.partition_point(|&start| start as usize <= row) - 1;
            let offset = row - batch.cu_seqlens_q[seq] as usize;
            match bias {
                Some(bias) => out.copy_from_slice(bias),
                None => out.fill(0.0),
            }
            for (tap, weights) in taps.chunks_exact(channels).enumerate() {
                // Inputs before the first token of a text are zero and add nothing.
                match ((offset + tap).checked_sub(window), inputs.factor, first_slot(batch, seq)) {
                    (Some(_), None, _) => {
                        add_products(s, weights, inputs.columns(row + tap - window, inputs.first, channels), out);
                    }
                    (Some(_), Some(factor), _) => {
                        let of_row = |first| inputs.columns(row + tap - window, first, channels);
                        add_products_of_two(s, weights, [of_row(inputs.first), of_row(factor)], out);
                    }
                    (None, _, Some(slot)) => {
                        add_products(
                            s,
                            weights,
                            &windows[(slot * window + offset + tap) * channels..][..channels],
                            out,
                        );
                    }
                    (None, _, None) => {}
                }
            }
            finish.finish(s, row, out);
        }
    }
}

/// Computes `out += weights * input` elementwise.
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

/// Computes `out += weights * (a * b)`. The product `a * b` is rounded, as it is in a saved state.
#[inline(always)]
fn add_products_of_two<S: Simd>(s: S, weights: &[f32], [a, b]: [&[f32]; 2], out: &mut [f32]) {
    let (weights, weights_tail) = weights.as_chunks::<LANES>();
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for (((weights, a), b), out) in weights.iter().zip(a).zip(b).zip(out) {
        s.store(s.fma(s.load(weights), s.mul(s.load(a), s.load(b)), s.load(out)), out);
    }
    let input = s.mul(s.load_partial(a_tail), s.load_partial(b_tail));
    s.store_partial(s.fma(s.load_partial(weights_tail), input, s.load_partial(out_tail)), out_tail);
}

#[inline(always)]
pub(super) fn apply_silu<S: Simd>(s: S, row: &mut [f32]) {
    let (vectors, tail) = row.as_chunks_mut::<LANES>();
    for x in vectors {
        s.store(silu(s, s.load(x)), x);
    }
    s.store_partial(silu(s, s.load_partial(tail)), tail);
}
