//! The activations of feed-forward layers, with and without a gate, and the scale and cap of rows.

use std::ops::Range;

use super::pool::ThreadPool;
use super::simd::{
    Isa, Kernel, LANES, Simd, clamped_silu, clamped_swiglu, exp, gelu, gelu_erf, silu, squared_relu, tanh,
};
use super::split::for_rows;
use crate::backend::{Activation, Cap, Xielu};

/// Computes `out[r][i] = act(gate_up[r][i]) * gate_up[r][cols + i]`.
pub(super) fn gated(pool: &ThreadPool, isa: Isa, gate_up: &[f32], act: Activation, cols: usize, out: &mut [f32]) {
    for_rows(pool, out, cols, |first, out| {
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let (gate, up) = gate_up[(first + row) * 2 * cols..][..2 * cols].split_at(cols);
            gate_row(isa, act, gate, up, out);
        }
    });
}

fn gate_row(isa: Isa, act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match act {
        // `GatedActivation` and `ExpertSpec` refuse activations that have no gate.
        Activation::Silu | Activation::Relu | Activation::Xielu(_) => {
            isa.run(Pairs { function: SiluGate, x: gate, y: up, out })
        }
        Activation::Gelu => isa.run(Pairs { function: GeluGate, x: gate, y: up, out }),
        Activation::GeluErf => isa.run(Pairs { function: GeluErfGate, x: gate, y: up, out }),
        Activation::ClampedSwiglu => isa.run(Pairs { function: ClampedSwiglu, x: gate, y: up, out }),
        Activation::ClampedSilu { limit } => isa.run(Pairs { function: ClampedSilu(limit), x: gate, y: up, out }),
        Activation::SquaredRelu => isa.run(Pairs { function: SquaredReluGate, x: gate, y: up, out }),
    }
}

/// The columns of rows from column `first` on.
pub(super) struct Columns<'a> {
    pub(super) rows: &'a [f32],
    pub(super) cols: usize,
    pub(super) first: usize,
}

/// Computes `out[r][i] = act(gate[r][i]) * x[r][i]`, where `x` is a range of columns.
pub(super) fn gate_columns(
    pool: &ThreadPool,
    isa: Isa,
    gate: &[f32],
    x: Columns<'_>,
    act: Activation,
    cols: usize,
    out: &mut [f32],
) {
    for_rows(pool, out, cols, |first, out| {
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let row = first + row;
            let up = &x.rows[row * x.cols + x.first..][..cols];
            gate_row(isa, act, &gate[row * cols..][..cols], up, out);
        }
    });
}

/// Computes `out = act(x)`, for activations without a gate.
pub(super) fn plain(pool: &ThreadPool, isa: Isa, x: &[f32], act: Activation, cols: usize, out: &mut [f32]) {
    for_rows(pool, out, cols, |first, out| {
        let x = &x[first * cols..][..out.len()];
        match act {
            Activation::Silu | Activation::ClampedSilu { .. } => isa.run(Pairs { function: Silu, x, y: x, out }),
            Activation::Gelu | Activation::ClampedSwiglu => isa.run(Pairs { function: Gelu, x, y: x, out }),
            Activation::GeluErf => isa.run(Pairs { function: GeluErf, x, y: x, out }),
            Activation::Relu => isa.run(Pairs { function: Relu, x, y: x, out }),
            Activation::SquaredRelu => isa.run(Pairs { function: SquaredRelu, x, y: x, out }),
            Activation::Xielu(xielu) => isa.run(Pairs { function: xielu, x, y: x, out }),
        }
    });
}

/// Computes `x = cap(scale * x)`.
pub(super) fn scale_rows(
    pool: &ThreadPool,
    isa: Isa,
    x: &mut [f32],
    (cols, columns): (usize, Range<usize>),
    (scale, cap): (f32, Option<Cap>),
) {
    // A piece of `for_rows` has whole rows.
    for_rows(pool, x, cols, |_, x| {
        for row in x.chunks_exact_mut(cols) {
            isa.run(ScaleRows { x: &mut row[columns.clone()], scale, cap });
        }
    });
}

/// A function of two vectors.
trait Function: Copy {
    fn of<S: Simd>(self, s: S, x: S::V, y: S::V) -> S::V;
}

/// `out[i] = function(x[i], y[i])`.
struct Pairs<'a, F> {
    function: F,
    x: &'a [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl<F: Function> Kernel for Pairs<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (xs, x_tail) = self.x.as_chunks::<LANES>();
        let (ys, y_tail) = self.y.as_chunks::<LANES>();
        let (outs, out_tail) = self.out.as_chunks_mut::<LANES>();
        for ((x, y), out) in xs.iter().zip(ys).zip(outs) {
            s.store(self.function.of(s, s.load(x), s.load(y)), out);
        }
        let value = self.function.of(s, s.load_partial(x_tail), s.load_partial(y_tail));
        s.store_partial(value, out_tail);
    }
}

macro_rules! functions {
    ($($name:ident: |$s:ident, $x:ident, $y:ident| $value:expr;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;

            impl Function for $name {
                #[inline(always)]
                fn of<S: Simd>(self, $s: S, $x: S::V, $y: S::V) -> S::V {
                    $value
                }
            }
        )*
    };
}

functions! {
    Silu: |s, x, _y| silu(s, x);
    Gelu: |s, x, _y| gelu(s, x);
    GeluErf: |s, x, _y| gelu_erf(s, x);
    SiluGate: |s, gate, up| s.mul(silu(s, gate), up);
    GeluGate: |s, gate, up| s.mul(gelu(s, gate), up);
    GeluErfGate: |s, gate, up| s.mul(gelu_erf(s, gate), up);
    ClampedSwiglu: |s, gate, up| clamped_swiglu(s, gate, up);
    // `max` returns its second argument for NaN, so NaN passes through.
    Relu: |s, x, _y| s.max(s.splat(0.0), x);
    SquaredRelu: |s, x, _y| squared_relu(s, x);
    SquaredReluGate: |s, gate, up| s.mul(squared_relu(s, gate), up);
}

/// Holds the limit.
#[derive(Clone, Copy)]
struct ClampedSilu(f32);

impl Function for ClampedSilu {
    #[inline(always)]
    fn of<S: Simd>(self, s: S, gate: S::V, up: S::V) -> S::V {
        clamped_silu(s, gate, up, self.0)
    }
}

impl Function for Xielu {
    #[inline(always)]
    fn of<S: Simd>(self, s: S, x: S::V, _y: S::V) -> S::V {
        xielu(s, x, self)
    }
}

struct ScaleRows<'a> {
    x: &'a mut [f32],
    scale: f32,
    cap: Option<Cap>,
}

impl Kernel for ScaleRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let change = |x: S::V| {
            let x = s.mul(x, s.splat(self.scale));
            match self.cap {
                Some(Cap::Soft(cap)) => s.mul(s.splat(cap), tanh(s, s.div(x, s.splat(cap)))),
                // `max` and `min` return their second argument for NaN, so NaN passes through.
                Some(Cap::Hard([least, most])) => s.min(s.splat(most), s.max(s.splat(least), x)),
                None => x,
            }
        };
        let (vectors, tail) = self.x.as_chunks_mut::<LANES>();
        for x in vectors {
            s.store(change(s.load(x)), x);
        }
        s.store_partial(change(s.load_partial(tail)), tail);
    }
}

/// See `Xielu`.
#[inline(always)]
fn xielu<S: Simd>(s: S, x: S::V, Xielu { positive, negative, slope, eps }: Xielu) -> S::V {
    const ABOVE_ZERO: f32 = f32::from_bits(1);
    let line = s.mul(s.splat(slope), x);
    let above = s.fma(s.mul(s.splat(positive), x), x, line);
    // `min` returns its second argument for NaN, so NaN passes through.
    let grown = s.sub(exp(s, s.min(s.splat(eps), x)), s.splat(1.0));
    let below = s.fma(s.splat(negative), s.sub(grown, x), line);
    s.select_lt(x, ABOVE_ZERO, below, above)
}
