//! Short convolutions.

use super::{Parts, Random, Row, StateLayerCase, check_refused, convolution};
use crate::Tally;
use crate::backend::{Backend, Loader, Ops, ShortConvolution, ShortConvolutionShape, StateLayerSpec};
use crate::{Error, Result};

pub(super) struct Case {
    shape: ShortConvolutionShape,
    texts: &'static [usize],
}

const fn case(channels: usize, taps: usize, texts: &'static [usize]) -> Case {
    Case { shape: ShortConvolutionShape { channels, taps }, texts }
}

/// Odd sizes, then one larger than a thread block.
const CASES: [Case; 6] = [
    case(1, 1, &[5]),
    case(3, 2, &[1, 4]),
    case(33, 3, &[7, 2, 21, 1]),
    case(65, 6, &[3, 19]),
    case(256, 3, &[40, 2, 9, 17]),
    case(300, 4, &[33, 6]),
];

static REFUSED: Case = case(128, 3, &[40, 40]);

pub(super) fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let layer = || ShortConvolutionLayer::new(&REFUSED, 0);
    let shapes = [
        ShortConvolutionShape { taps: 4, ..REFUSED.shape },
        ShortConvolutionShape { taps: 0, ..REFUSED.shape },
        ShortConvolutionShape { channels: 32, ..REFUSED.shape },
    ];
    let others = shapes.map(|shape| ShortConvolutionLayer { shape, ..layer() });
    check_refused(loader, &layer(), &others, tally)
}

/// The weights of a layer and the projections of all tokens of some texts.
pub(super) struct ShortConvolutionLayer {
    shape: ShortConvolutionShape,
    texts: &'static [usize],
    x: Vec<f32>,
    taps: Vec<f32>,
}

impl StateLayerCase for ShortConvolutionLayer {
    type Case = Case;
    const NAME: &'static str = "short convolution";
    const CASES: &'static [Case] = &CASES;

    fn new(case: &'static Case, seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = case.shape;
        let x = random.values(case.texts.iter().sum::<usize>() * shape.cols());
        Self { shape, texts: case.texts, x, taps: random.values(shape.taps * shape.channels) }
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
        [self.shape.cols(), 1, self.shape.channels]
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec {
        self.shape.state_layer(num_slots)
    }

    fn vectors(&self) -> Vec<&[f32]> {
        vec![&self.taps]
    }

    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64> {
        let rows: Vec<&[f32]> = rows.iter().map(|row| row.x).collect();
        let channels = self.shape.channels;
        let input = |token: usize, channel: usize| {
            f64::from(rows[token][channel]) * f64::from(rows[token][2 * channels + channel])
        };
        let of_row = |(token, row): (usize, &&[f32])| -> Vec<f64> {
            let gates = row[channels..].iter();
            convolution(&self.taps, channels, token, input).zip(gates).map(|(y, &gate)| f64::from(gate) * y).collect()
        };
        rows.iter().enumerate().flat_map(of_row).collect()
    }

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()> {
        let Parts { x, vectors, state, out, .. } = parts;
        let [taps] = vectors else { return Err(Error::internal("not the vectors that were made")) };
        step.short_convolution(ShortConvolution { x, shape: self.shape, taps, state, out })
    }
}
