//! Mamba mixers of the first version: the convolution, then the recurrence.

use super::{Parts, Random, Row, StateLayerCase, check_refused, convolution, silu};
use crate::Tally;
use crate::backend::{Backend, Loader, Mamba, MambaConvolution, MambaShape, Ops, StateLayerSpec};
use crate::{Error, Result};

pub(super) struct Case {
    shape: MambaShape,
    bias: bool,
    texts: &'static [usize],
}

const fn case([channels, state_size]: [usize; 2], taps: usize, bias: bool, texts: &'static [usize]) -> Case {
    Case { shape: MambaShape { channels, state_size, taps }, bias, texts }
}

/// Odd sizes, then the state size of all models, and the largest one.
const CASES: [Case; 7] = [
    case([1, 1], 1, true, &[5]),
    case([5, 3], 2, false, &[1, 4]),
    case([33, 17], 4, true, &[7, 2, 21]),
    case([66, 30], 6, false, &[3, 19]),
    case([128, 16], 4, true, &[40, 2, 9, 17]),
    case([300, 16], 4, true, &[33, 6]),
    case([96, 32], 4, false, &[50, 5, 26]),
];

static REFUSED: Case = case([128, 16], 2, true, &[40, 40]);

pub(super) fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let layer = || MambaLayer::new(&REFUSED, 0);
    let shapes = [
        MambaShape { taps: 3, ..REFUSED.shape },
        MambaShape { channels: 64, ..REFUSED.shape },
        MambaShape { channels: 0, ..REFUSED.shape },
        MambaShape { state_size: 33, ..REFUSED.shape },
    ];
    let others = shapes.map(|shape| MambaLayer { shape, ..layer() });
    check_refused(loader, &layer(), &others, tally)
}

/// The weights of a layer, and the projections, time steps, B and C of all tokens of some texts.
pub(super) struct MambaLayer {
    shape: MambaShape,
    texts: &'static [usize],
    x: Vec<f32>,
    time_steps: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    taps: Vec<f32>,
    taps_bias: Option<Vec<f32>>,
    decay: Vec<f32>,
    skip: Vec<f32>,
}

impl StateLayerCase for MambaLayer {
    type Case = Case;
    const NAME: &'static str = "Mamba";
    const CASES: &'static [Case] = &CASES;

    fn new(case: &'static Case, seed: u64) -> Self {
        let mut random = Random(seed);
        let (shape, rows) = (case.shape, case.texts.iter().sum::<usize>());
        let MambaShape { channels, state_size, taps } = shape;
        let mut times = |by: f32, len: usize| random.values(len).iter().map(|x| by * x).collect::<Vec<f32>>();
        Self {
            shape,
            texts: case.texts,
            x: times(2.0, rows * shape.cols()),
            time_steps: times(3.0, rows * channels),
            b: times(1.0, rows * state_size),
            // Sums over the rows of a state stay near 1.
            c: times(1.0 / (state_size as f32).sqrt(), rows * state_size),
            taps: times(1.0, taps * channels),
            taps_bias: case.bias.then(|| times(1.0, channels)),
            decay: times(1.0, state_size * channels).iter().map(|x| -(x + 1.0)).collect(),
            skip: times(1.0, channels),
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

    fn others(&self) -> Vec<(&[f32], usize)> {
        let MambaShape { channels, state_size, .. } = self.shape;
        vec![(&self.time_steps, channels), (&self.b, state_size), (&self.c, state_size)]
    }

    fn cols(&self) -> [usize; 3] {
        [self.shape.cols(), self.shape.channels, self.shape.channels]
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec {
        self.shape.state_layer(num_slots)
    }

    fn vectors(&self) -> Vec<&[f32]> {
        let all: [&[f32]; 3] = [&self.taps, &self.decay, &self.skip];
        all.into_iter().chain(self.taps_bias.as_deref()).collect()
    }

    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64> {
        let MambaShape { channels, state_size, .. } = self.shape;
        let mut states = vec![vec![0.0; state_size]; channels];
        let mut out = Vec::new();
        for (token, Row { x, others }) in rows.iter().enumerate() {
            let [time_steps, b, c] = others[..] else { panic!("{} other inputs", others.len()) };
            let input = |token: usize, channel: usize| f64::from(rows[token].x[channel]);
            let sums = convolution(&self.taps, channels, token, input);
            for (channel, (sum, state)) in sums.zip(&mut states).enumerate() {
                let bias = self.taps_bias.as_ref().map_or(0.0, |bias| f64::from(bias[channel]));
                let (u, time) = (silu(sum + bias), f64::from(time_steps[channel]).exp().ln_1p());
                let mut y = f64::from(self.skip[channel]) * u;
                for (i, state) in state.iter_mut().enumerate() {
                    let decay = (f64::from(self.decay[i * channels + channel]) * time).exp();
                    *state = decay * *state + time * f64::from(b[i]) * u;
                    y += f64::from(c[i]) * *state;
                }
                out.push(y * silu(f64::from(x[channels + channel])));
            }
        }
        out
    }

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()> {
        let Parts { x, others, vectors, state, convolved, out } = parts;
        let ([taps, decay, skip, bias @ ..], [time_steps, b, c]) = (vectors, others) else {
            return Err(Error::internal("not the inputs that were made"));
        };
        let (shape, taps_bias) = (self.shape, bias.first());
        step.mamba_convolution(MambaConvolution { x, shape, taps, taps_bias, state, out: convolved })?;
        step.mamba(Mamba { x, shape, convolved, time_steps, b, c, decay, skip, state, out })
    }
}
