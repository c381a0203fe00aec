//! Gated delta nets against the recurrence in f64: prompts, chunks and single tokens, from states that were kept
//! half-way, at the end, and by others.

use super::reference::{HostNorm, plain};
use super::{BufferOf, Random, Tally, matrix, vector};
use crate::backend::{
    Activation, Backend, DeltaNet, DeltaNetShape, DeltaNetWeights, Embed, HeadOrder, Loader, NormKind, Ops,
    StateLayerSpec,
};
use crate::batch::{Batch, NO_STATE, StateWrite};
use crate::{Error, Result};

const EPS: f32 = 1e-6;
/// Largest error that is allowed: outputs are normed, so that all are about as large as their weights.
const TOLERANCE: f64 = 2e-5;

/// Lengths of the texts.
struct Case {
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

/// Odd sizes first; then heads in either order; then the sizes of models. Texts are shorter than the convolution, and
/// longer than what a block of threads has at once.
const CASES: [Case; 8] = [
    case([1, 1], [1, 1], 1, Tiled, &[5]),
    case([1, 1], [3, 5], 2, Tiled, &[1, 4]),
    case([1, 3], [17, 33], 4, Grouped, &[7, 2, 21]),
    case([3, 3], [30, 66], 6, Tiled, &[3, 19]),
    case([2, 6], [16, 16], 4, Tiled, &[40, 2, 9, 17]),
    case([2, 6], [16, 16], 4, Grouped, &[40, 2, 9, 17]),
    case([5, 10], [64, 64], 4, Grouped, &[33, 6]),
    case([2, 4], [128, 128], 4, Tiled, &[50, 5, 26]),
];

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("gated delta net");
    for (seed, case) in tally.part(&CASES) {
        check_case(loader(case.texts.iter().sum())?, case, seed, tally)?;
    }
    refused(loader(80)?, tally)
}

/// A part of a text in a step.
#[derive(Debug, Clone)]
struct Piece {
    text: usize,
    /// Tokens of the text that the state has seen, and the slot that holds it.
    start: usize,
    slot: u32,
    new: usize,
    /// Tokens of the piece, and the slots that their states go to.
    writes: Vec<(usize, u32)>,
}

fn check_case<L: Loader>(loader: L, case: &Case, seed: usize, tally: &mut Tally<'_>) -> Result<()> {
    let what = format!("gated delta net {seed}: {:?}", case.shape);
    tally.begin(&what)?;
    let net = Net::new(case, seed as u64);
    let expected = net.reference();
    let mut rig = Rig::new(loader, &net)?;
    let texts = || case.texts.iter().enumerate();
    let (first, second) = (|text: usize| 3 * text as u32, |text: usize| 3 * text as u32 + 1);
    // The first half of each text leaves a state behind its first token, and one at its end.
    let halves = texts().map(|(text, &len)| {
        let new = len.div_ceil(2);
        let half_way = (new > 1).then_some((1, first(text)));
        let writes = half_way.into_iter().chain([(new, second(text))]).collect();
        Piece { text, start: 0, slot: NO_STATE, new, writes }
    });
    // Then all go on in the slot that they have, but for the last token, while another sequence goes another way from
    // the first state, and a third one begins anew in its own.
    let rests = texts().flat_map(|(text, &len)| {
        let (start, again) = (len.div_ceil(2), len.div_ceil(2) - 1);
        let new = (len - start).saturating_sub(1);
        let rest = Piece { text, start, slot: second(text), new, writes: vec![(new, second(text))] };
        let forked = Piece { text, start: 1, slot: first(text), new: again, writes: vec![(again, second(text) + 1)] };
        let short = Piece { new: again.min(1), writes: Vec::new(), ..forked.clone() };
        [rest, forked, short].into_iter().filter(|piece| piece.new > 0)
    });
    let last = texts().filter(|(_, len)| **len > 1).map(|(text, &len)| Piece {
        text,
        start: len - 1,
        slot: second(text),
        new: 1,
        writes: vec![(1, second(text))],
    });
    for (step, pieces) in [halves.collect::<Vec<_>>(), rests.collect(), last.collect()].iter().enumerate() {
        if !pieces.is_empty() {
            let got = rig.step(&net, pieces)?;
            let expected: Vec<f64> = pieces.iter().flat_map(|piece| net.rows_of(&expected, piece)).copied().collect();
            tally.close(&format!("{what}, step {step}"), &got, &expected, TOLERANCE, TOLERANCE);
        }
    }
    Ok(())
}

/// A text in one piece gives the bits of its chunks, and of the same beside others.
pub(super) fn check_invariance<L: Loader>(loader: &impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    for (seed, case) in tally.part(&CASES) {
        let what = format!("gated delta net {seed} in one piece and in chunks");
        tally.begin(&what)?;
        let net = Net::new(case, seed as u64);
        let whole = |text: usize, new: usize| {
            let slot = 3 * text as u32;
            Piece { text, start: 0, slot: NO_STATE, new, writes: vec![(new.div_ceil(2), slot), (new, slot + 1)] }
        };
        let all: Vec<_> = case.texts.iter().enumerate().map(|(text, &len)| whole(text, len)).collect();
        let together = Rig::new(loader(case.texts.iter().sum())?, &net)?.step(&net, &all)?;
        for chunk in [1, 7] {
            let mut rig = Rig::new(loader(case.texts.iter().sum())?, &net)?;
            let mut alone = Vec::new();
            for (text, &len) in case.texts.iter().enumerate() {
                for start in (0..len).step_by(chunk) {
                    let (slot, new) = (if start == 0 { NO_STATE } else { 0 }, chunk.min(len - start));
                    alone.extend(rig.step(&net, &[Piece { text, start, slot, new, writes: vec![(new, 0)] }])?);
                }
            }
            tally.same(&format!("{what} of {chunk}"), &alone, &together);
        }
    }
    Ok(())
}

/// The weights of a layer, and the projections of all tokens of some texts.
struct Net<'c> {
    case: &'c Case,
    x: Vec<f32>,
    taps: Vec<f32>,
    decay: Vec<f32>,
    decay_bias: Vec<f32>,
    norm: Vec<f32>,
}

impl<'c> Net<'c> {
    fn new(case: &'c Case, seed: u64) -> Self {
        let mut random = Random(seed);
        let shape = case.shape;
        let x = random.values(case.texts.iter().sum::<usize>() * shape.cols());
        Self {
            case,
            x: x.iter().map(|x| 3.0 * x).collect(),
            taps: random.values(shape.taps * shape.channels()),
            decay: random.values(shape.value_heads).iter().map(|x| -(x + 1.0)).collect(),
            decay_bias: random.values(shape.value_heads),
            norm: random.values(shape.value_size),
        }
    }

    /// Row of a text's first token.
    fn first_row(&self, text: usize) -> usize {
        self.case.texts[..text].iter().sum()
    }

    /// A piece's part of the rows of all texts.
    fn rows_of<'a, T>(&self, rows: &'a [T], piece: &Piece) -> &'a [T] {
        let cols = self.case.shape.value_cols();
        &rows[(self.first_row(piece.text) + piece.start) * cols..][..piece.new * cols]
    }

    /// Outputs of all tokens of all texts.
    fn reference(&self) -> Vec<f64> {
        let texts = 0..self.case.texts.len();
        texts.flat_map(|text| self.reference_of(text)).collect()
    }

    fn reference_of(&self, text: usize) -> Vec<f64> {
        let shape = self.case.shape;
        let cols = shape.cols();
        let rows: Vec<&[f32]> =
            self.x[self.first_row(text) * cols..].chunks(cols).take(self.case.texts[text]).collect();
        let mut states = vec![vec![vec![0.0; shape.value_size]; shape.key_size]; shape.value_heads];
        let mut out = Vec::new();
        for (token, row) in rows.iter().enumerate() {
            let qkv: Vec<f64> = (0..shape.channels())
                .map(|channel| {
                    let products = (0..shape.taps).filter_map(|tap| {
                        let input = rows[(token + tap).checked_sub(shape.taps - 1)?][channel];
                        Some(f64::from(self.taps[tap * shape.channels() + channel]) * f64::from(input))
                    });
                    plain(Activation::Silu, products.sum())
                })
                .collect();
            for (head, state) in states.iter_mut().enumerate() {
                out.extend(self.head(head, state, &qkv, row));
            }
        }
        out
    }

    /// Output of a head for a token; `state` becomes the one behind it.
    fn head(&self, head: usize, state: &mut [Vec<f64>], qkv: &[f64], row: &[f32]) -> Vec<f64> {
        let shape = self.case.shape;
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
        // All of the first kind and then all of the second, or so for the heads of each key head.
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
        normed.iter().zip(z).map(|(x, &z)| x * plain(Activation::Silu, f64::from(z))).collect()
    }
}

/// A layer on a backend.
struct Rig<L: Loader> {
    backend: L::Backend,
    shape: DeltaNetShape,
    table: <L::Backend as Backend>::Matrix,
    weights: [<L::Backend as Backend>::Vector; 4],
    state: <L::Backend as Backend>::StateLayer,
    x: BufferOf<L>,
    convolved: BufferOf<L>,
    out: BufferOf<L>,
}

impl<L: Loader> Rig<L> {
    fn new(mut loader: L, net: &Net<'_>) -> Result<Self> {
        let (shape, rows) = (net.case.shape, net.case.texts.iter().sum());
        let table = matrix(&mut loader, &net.x, shape.cols())?;
        let weights = [
            vector(&mut loader, &net.taps)?,
            vector(&mut loader, &net.decay)?,
            vector(&mut loader, &net.decay_bias)?,
            vector(&mut loader, &net.norm)?,
        ];
        let state = state_layer(&mut loader, shape.state_layer(3 * net.case.texts.len()))?;
        let x = loader.alloc_buffer(rows, shape.cols())?;
        let convolved = loader.alloc_buffer(rows, shape.channels())?;
        let out = loader.alloc_buffer(rows, shape.value_cols())?;
        Ok(Self { backend: loader.finish()?, shape, table, weights, state, x, convolved, out })
    }

    fn step(&mut self, net: &Net<'_>, pieces: &[Piece]) -> Result<Vec<f32>> {
        let batch = batch_of(net, pieces);
        let Self { backend, shape, table, weights, state, x, convolved, out } = self;
        let (shape, [taps, decay, decay_bias, norm]) = (*shape, &*weights);
        backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.embed(Embed { table, scale: 1.0, out: x })?;
            let weights = DeltaNetWeights { taps, decay, decay_bias, norm };
            step.delta_net(DeltaNet { x, shape, weights, eps: EPS, state, convolved, out })
        })?;
        Ok(backend.to_host(out, batch.num_tokens(), shape.value_cols())?.to_vec())
    }
}

fn state_layer<L: Loader>(loader: &mut L, spec: StateLayerSpec) -> Result<<L::Backend as Backend>::StateLayer> {
    let layer = loader.alloc_state_layers(&[spec])?.pop();
    layer.ok_or_else(|| Error::internal("no layer of states where one was asked for"))
}

fn batch_of(net: &Net<'_>, pieces: &[Piece]) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    batch.states.cu_writes.push(0);
    for piece in pieces {
        let (first, end) = (net.first_row(piece.text), piece.start + piece.new);
        batch.token_ids.extend((piece.start..end).map(|token| (first + token) as u32));
        batch.positions.extend(piece.start as u32..end as u32);
        batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
        batch.context_lens.push(end as u32);
        batch.states.reads.push(piece.slot);
        let writes = piece.writes.iter().map(|&(tokens, slot)| StateWrite { num_tokens: tokens as u32, slot });
        batch.states.writes.extend(writes);
        batch.states.cu_writes.push(batch.states.writes.len() as u32);
    }
    batch
}

/// Batches and arguments that contradict themselves or each other.
fn refused<L: Loader>(loader: L, tally: &mut Tally<'_>) -> Result<()> {
    let what = "states that are refused";
    tally.begin(what)?;
    // So large that no buffer is larger than it was asked for by as much as it is too small at the end.
    let case = case([1, 1], [64, 64], 2, Tiled, &[40, 40]);
    let net = Net::new(&case, 0);
    let mut rig = Rig::new(loader, &net)?;
    let piece = |text, slot, writes: &[(usize, u32)]| Piece { text, start: 0, slot, new: 40, writes: writes.to_vec() };
    let right = [piece(0, NO_STATE, &[(2, 1), (40, 0)]), piece(1, 3, &[(40, 3)])];
    let judge = |tally: &mut Tally<'_>, outcome: Result<Vec<f32>>, name: &str| {
        let verdict = match outcome {
            Err(Error::Internal { .. }) => Ok(0.0),
            Err(error) => Err(format!("{name} ends in another error: {error}")),
            Ok(_) => Err(format!("{name} is accepted")),
        };
        tally.judge(what, 1, verdict);
    };
    rig.step(&net, &right)?;
    let wrong = [
        ("a slot that is not there", [piece(0, 6, &[]), piece(1, NO_STATE, &[])]),
        ("a slot to write that is not there", [piece(0, NO_STATE, &[(40, 6)]), piece(1, NO_STATE, &[])]),
        ("a slot that is written twice", [piece(0, NO_STATE, &[(40, 1)]), piece(1, NO_STATE, &[(40, 1)])]),
        ("a slot of another sequence", [piece(0, NO_STATE, &[(40, 1)]), piece(1, 1, &[])]),
        ("a state behind the last token", [piece(0, NO_STATE, &[(41, 1)]), piece(1, NO_STATE, &[])]),
        ("a state ahead of the first token", [piece(0, NO_STATE, &[(0, 1)]), piece(1, NO_STATE, &[])]),
        ("states that go back", [piece(0, NO_STATE, &[(40, 1), (2, 0)]), piece(1, NO_STATE, &[])]),
    ];
    for (name, pieces) in wrong {
        let outcome = rig.step(&net, &pieces);
        judge(tally, outcome, name);
    }
    for shape in [
        DeltaNetShape { taps: 3, ..case.shape },
        DeltaNetShape { value_heads: 2, ..case.shape },
        DeltaNetShape { key_heads: 2, ..case.shape },
        DeltaNetShape { key_size: 200, ..case.shape },
        DeltaNetShape { gate_run: 0, ..case.shape },
    ] {
        rig.shape = shape;
        let outcome = rig.step(&net, &right);
        judge(tally, outcome, &format!("{shape:?}"));
    }
    rig.shape = case.shape;
    rig.weights.swap(0, 3);
    let outcome = rig.step(&net, &right);
    judge(tally, outcome, "taps of another length");
    rig.weights.swap(0, 3);
    std::mem::swap(&mut rig.x, &mut rig.out);
    let outcome = rig.step(&net, &right);
    judge(tally, outcome, "a buffer that is too small");
    Ok(())
}
