//! Mamba-2 mixers.

use super::super::reference::HostNorm;
use super::{EPS, Parts, Random, Row, StateLayerCase, check_refused, convolution, silu};
use crate::Tally;
use crate::backend::{Backend, Loader, Mamba2, Mamba2Shape, Mamba2Weights, NormKind, Ops, StateLayerSpec};
use crate::{Error, Result};

pub(super) struct Case {
    shape: Mamba2Shape,
    bias: bool,
    norm: bool,
    texts: &'static [usize],
}

const fn case(
    [heads, groups]: [usize; 2],
    [head_size, state_size]: [usize; 2],
    taps: usize,
    bias: bool,
    texts: &'static [usize],
) -> Case {
    Case { shape: Mamba2Shape { heads, head_size, groups, state_size, taps }, bias, norm: true, texts }
}

/// Odd sizes, then heads in one group and in several, then the sizes of models.
const CASES: [Case; 13] = [
    case([1, 1], [1, 1], 1, true, &[5]),
    case([1, 1], [5, 3], 2, false, &[1, 4]),
    case([6, 2], [33, 17], 4, true, &[7, 2, 21]),
    case([3, 3], [66, 30], 6, true, &[3, 19]),
    case([4, 1], [32, 16], 4, true, &[40, 2, 9, 17]),
    case([8, 4], [16, 32], 4, false, &[40, 2, 9, 17]),
    case([3, 1], [64, 128], 4, true, &[33, 6]),
    case([8, 2], [80, 128], 4, true, &[50, 5, 26]),
    case([2, 1], [33, 200], 4, true, &[3, 12]),
    case([3, 1], [64, 256], 4, true, &[33, 6]),
    // Sequences that fill 64-token tiles, and sequences that begin and end within them.
    case([4, 2], [48, 128], 4, true, &[150, 3, 97, 130]),
    case([2, 1], [16, 256], 4, false, &[70, 130]),
    Case { norm: false, ..case([4, 2], [33, 17], 4, true, &[7, 2, 21]) },
];

static REFUSED: Case = case([1, 1], [128, 64], 2, true, &[40, 40]);

pub(super) fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let layer = || Mamba2Layer::new(&REFUSED, 0);
    let shapes = [
        Mamba2Shape { taps: 3, ..REFUSED.shape },
        Mamba2Shape { heads: 2, ..REFUSED.shape },
        Mamba2Shape { groups: 2, ..REFUSED.shape },
        Mamba2Shape { state_size: 300, ..REFUSED.shape },
        Mamba2Shape { head_size: 0, ..REFUSED.shape },
    ];
    let others = shapes.map(|shape| Mamba2Layer { shape, ..layer() });
    check_refused(loader, &layer(), &others, tally)
}

/// The weights of a layer and the projections of all tokens of some texts.
pub(super) struct Mamba2Layer {
    shape: Mamba2Shape,
    texts: &'static [usize],
    x: Vec<f32>,
    taps: Vec<f32>,
    taps_bias: Option<Vec<f32>>,
    decay: Vec<f32>,
    step_bias: Vec<f32>,
    skip: Vec<f32>,
    norm: Option<Vec<f32>>,
}

impl StateLayerCase for Mamba2Layer {
    type Case = Case;
    const NAME: &'static str = "Mamba-2";
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
            taps_bias: case.bias.then(|| random.values(shape.channels())),
            decay: random.values(shape.heads).iter().map(|x| -(x + 1.0)).collect(),
            step_bias: random.values(shape.heads),
            skip: random.values(shape.heads),
            norm: case.norm.then(|| random.values(shape.inner_cols())),
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
        [self.shape.cols(), self.shape.channels(), self.shape.inner_cols()]
    }

    fn convolved_cols<L: Loader>(&self, rows: usize) -> usize {
        L::mamba2_cols(self.shape, rows)
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec {
        self.shape.state_layer(num_slots)
    }

    fn vectors(&self) -> Vec<&[f32]> {
        let all: [&[f32]; 4] = [&self.taps, &self.decay, &self.step_bias, &self.skip];
        all.into_iter().chain(self.taps_bias.as_deref()).chain(self.norm.as_deref()).collect()
    }

    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64> {
        let rows: Vec<&[f32]> = rows.iter().map(|row| row.x).collect();
        let Mamba2Shape { heads, head_size, groups, state_size, .. } = self.shape;
        let (inner, channels) = (heads * head_size, heads * head_size + 2 * groups * state_size);
        let mut states = vec![vec![vec![0.0; state_size]; head_size]; heads];
        let mut out = Vec::new();
        for (token, row) in rows.iter().enumerate() {
            let input = |token: usize, channel: usize| f64::from(rows[token][inner + channel]);
            let sums = convolution(&self.taps, channels, token, input).enumerate();
            let bias = |channel: usize| self.taps_bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
            let xbc: Vec<f64> = sums.map(|(channel, sum)| silu(sum + bias(channel))).collect();
            let mut y = Vec::new();
            for (head, state) in states.iter_mut().enumerate() {
                let (x, group) = (&xbc[head * head_size..][..head_size], head / (heads / groups));
                let b = &xbc[inner + group * state_size..][..state_size];
                let c = &xbc[inner + (groups + group) * state_size..][..state_size];
                let time_step = f64::from(row[inner + channels + head]) + f64::from(self.step_bias[head]);
                let time_step = time_step.exp().ln_1p();
                let decay = (time_step * f64::from(self.decay[head])).exp();
                for (x, state) in x.iter().zip(state) {
                    state.iter_mut().zip(b).for_each(|(state, b)| *state = decay * *state + time_step * x * b);
                    let product: f64 = state.iter().zip(c).map(|(state, c)| state * c).sum();
                    y.push(product + f64::from(self.skip[head]) * x);
                }
            }
            y.iter_mut().zip(*row).for_each(|(y, &z)| *y *= silu(f64::from(z)));
            let Some(norm) = &self.norm else {
                out.extend(y);
                continue;
            };
            for (group, weight) in y.chunks(inner / groups).zip(norm.chunks(inner / groups)) {
                out.extend(HostNorm { kind: NormKind::Rms, weight, bias: None, eps: EPS }.of(group));
            }
        }
        out
    }

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()> {
        let Parts { x, vectors, state, convolved, out, .. } = parts;
        let [taps, decay, step_bias, skip, others @ ..] = vectors else {
            return Err(Error::internal("not the vectors that were made"));
        };
        let (taps_bias, norm) = match (&self.taps_bias, &self.norm) {
            (None, None) => (None, None),
            (Some(_), None) => (others.first(), None),
            (None, Some(_)) => (None, others.first()),
            (Some(_), Some(_)) => (others.first(), others.get(1)),
        };
        let weights = Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm };
        step.mamba2(Mamba2 { x, shape: self.shape, weights, eps: EPS, state, convolved, out })
    }
}
