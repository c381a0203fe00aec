//! Gated delta nets.

use super::super::reference::HostNorm;
use super::{EPS, Parts, Random, Row, StateLayerCase, check_refused, convolution, silu};
use crate::Result;
use crate::Tally;
use crate::backend::{
    Backend, DeltaNet, DeltaNetShape, DeltaNetWeights, HeadOrder, Loader, NormKind, Ops, StateLayerSpec,
};

pub(super) struct Case {
    shape: DeltaNetShape,
    texts: &'static [usize],
}

const fn case(heads: [usize; 2], sizes: [usize; 2], taps: usize, order: HeadOrder, texts: &'static [usize]) -> Case {
    let ([key_heads, value_heads], [key_size, value_size]) = (heads, sizes);
    let gate_run = match order {
        HeadOrder::Tiled => value_heads,
        HeadOrder::Grouped => value_heads / key_heads,
    };
    let shape = DeltaNetShape { key_heads, value_heads, key_size, value_size, taps, order, gate_run };
    Case { shape, texts }
}

use HeadOrder::{Grouped, Tiled};

/// Odd sizes, then both head orders, then the sizes of models.
const CASES: [Case; 9] = [
    case([1, 1], [1, 1], 1, Tiled, &[5]),
    case([1, 1], [3, 5], 2, Tiled, &[1, 4]),
    case([1, 3], [17, 33], 4, Grouped, &[7, 2, 21]),
    case([3, 3], [30, 66], 6, Tiled, &[3, 19]),
    case([2, 6], [16, 16], 4, Tiled, &[40, 2, 9, 17]),
    case([2, 6], [16, 16], 4, Grouped, &[40, 2, 9, 17]),
    case([5, 10], [64, 64], 4, Grouped, &[33, 6]),
    case([2, 4], [128, 128], 4, Tiled, &[50, 5, 26]),
    // Sequences that fill 64-token tiles, and sequences that begin and end within them.
    case([1, 2], [128, 64], 4, Grouped, &[150, 3, 97, 130]),
];

/// Large enough that rounding up a buffer's size cannot hide that it belongs to another shape.
static REFUSED: Case = case([1, 1], [64, 64], 2, Tiled, &[40, 40]);

pub(super) fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let layer = || DeltaNetLayer::new(&REFUSED, 0);
    let shapes = [
        DeltaNetShape { taps: 3, ..REFUSED.shape },
        DeltaNetShape { value_heads: 2, ..REFUSED.shape },
        DeltaNetShape { key_heads: 2, ..REFUSED.shape },
        DeltaNetShape { key_size: 200, ..REFUSED.shape },
        DeltaNetShape { gate_run: 0, ..REFUSED.shape },
    ];
    let others = shapes.map(|shape| DeltaNetLayer { shape, ..layer() });
    check_refused(loader, &layer(), &others, tally)
}

/// The weights of a layer and the projections of all tokens of some texts.
pub(super) struct DeltaNetLayer {
    shape: DeltaNetShape,
    texts: &'static [usize],
    x: Vec<f32>,
    taps: Vec<f32>,
    decay: Vec<f32>,
    decay_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl StateLayerCase for DeltaNetLayer {
    type Case = Case;
    const NAME: &'static str = "gated delta net";
    const CASES: &'static [Case] = &CASES;

    fn new(case: &'static Case, seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = case.shape;
        let x = random.values(case.texts.iter().sum::<usize>() * shape.cols());
        Self {
            shape,
            texts: case.texts,
            x: x.iter().map(|x| 3.0 * x).collect(),
            taps: random.values(shape.taps * shape.channels()),
            decay: random.values(shape.value_heads).iter().map(|x| -(x + 1.0)).collect(),
            decay_bias: random.values(shape.value_heads),
            norm: random.values(shape.value_size),
        }
    }

    fn name(&self) -> String {
        format!("{:?}", self.shape)
    }

    fn texts(&self) -> &'static [usize] {
        self.texts
    }

    fn x(&self) -> &[f32] {
        &self.x
    }

    fn cols(&self) -> [usize; 3] {
        [self.shape.cols(), self.shape.channels(), self.shape.value_cols()]
    }

    fn convolved_cols<L: Loader>(&self, rows: usize) -> usize {
        L::convolved_cols(self.shape, rows)
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec {
        self.shape.state_layer(num_slots)
    }

    fn vectors(&self) -> Vec<&[f32]> {
        vec![&self.taps, &self.decay, &self.decay_bias, &self.norm]
    }

    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64> {
        let rows: Vec<&[f32]> = rows.iter().map(|row| row.x).collect();
        let shape = self.shape;
        let mut states = vec![vec![vec![0.0; shape.value_size]; shape.key_size]; shape.value_heads];
        let mut out = Vec::new();
        for (token, row) in rows.iter().enumerate() {
            let input = |token: usize, channel: usize| f64::from(rows[token][channel]);
            let qkv: Vec<f64> = convolution(&self.taps, shape.channels(), token, input).map(silu).collect();
            for (head, state) in states.iter_mut().enumerate() {
                out.extend(self.head(head, state, &qkv, row));
            }
        }
        out
    }

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()> {
        let Parts { x, vectors, state, convolved, out, .. } = parts;
        let [taps, decay, decay_bias, norm] = vectors else {
            return Err(crate::Error::internal("not the vectors that were made"));
        };
        let weights = DeltaNetWeights { taps, decay, decay_bias, norm };
        step.delta_net(DeltaNet { x, shape: self.shape, weights, eps: EPS, state, convolved, out })
    }
}

impl DeltaNetLayer {
    /// Returns the output of a head for a token, and advances `state` past the token.
    fn head(&self, head: usize, state: &mut [Vec<f64>], qkv: &[f64], row: &[f32]) -> Vec<f64> {
        let shape = self.shape;
        let of_key = shape.value_heads / shape.key_heads;
        let key_head = match shape.order {
            Tiled => head % shape.key_heads,
            Grouped => head / of_key,
        };
        let unit = |x: &[f64]| {
            let length = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(EPS)).sqrt();
            x.iter().map(|x| x / length).collect::<Vec<_>>()
        };
        let q = unit(&qkv[key_head * shape.key_size..][..shape.key_size]);
        let k = unit(&qkv[(shape.key_heads + key_head) * shape.key_size..][..shape.key_size]);
        let v = &qkv[2 * shape.key_heads * shape.key_size + head * shape.value_size..][..shape.value_size];
        let gates = &row[shape.channels() + shape.value_heads * shape.value_size..];
        // All gates of the first kind come first, then all of the second, either overall or per key head.
        let [first, second] = match shape.order {
            Tiled => [head, shape.value_heads + head],
            Grouped => {
                let at = head / of_key * 2 * of_key + head % of_key;
                [at, at + of_key]
            }
        };
        let beta = 1.0 / (1.0 + (-f64::from(gates[first])).exp());
        let rate = (f64::from(gates[second]) + f64::from(self.decay_bias[head])).exp().ln_1p();
        let decay = (f64::from(self.decay[head]) * rate).exp();
        state.iter_mut().flatten().for_each(|x| *x *= decay);
        let product = |state: &[Vec<f64>], with: &[f64], column: usize| {
            state.iter().zip(with).map(|(row, x)| row[column] * x).sum::<f64>()
        };
        let change: Vec<f64> = (0..v.len()).map(|c| beta * (v[c] - product(state, &k, c))).collect();
        for (row, k) in state.iter_mut().zip(&k) {
            row.iter_mut().zip(&change).for_each(|(x, change)| *x += k * change);
        }
        let scale = (shape.key_size as f64).sqrt();
        let out: Vec<f64> = (0..v.len()).map(|c| product(state, &q, c) / scale).collect();
        let normed = HostNorm { kind: NormKind::Rms, weight: &self.norm, bias: None, eps: EPS }.of(&out);
        let z = row[shape.channels() + head * shape.value_size..].iter();
        normed.iter().zip(z).map(|(x, &z)| x * silu(f64::from(z))).collect()
    }
}
