//! Layers with states, compared with their recurrences in f64: prompts, chunks and single tokens. They start from
//! states saved midway, at the end, and by other sequences.

mod delta_net;
mod join_rows;
mod mamba;
mod mamba2;
mod short_convolution;

use super::reference::plain;
use super::{BufferOf, Random, Tally, matrix, vector};
use crate::backend::{Activation, Backend, Embed, Loader, Ops, StateLayerSpec};
use crate::batch::{Batch, NO_STATE, StateWrite};
use crate::{Error, Result};
use delta_net::DeltaNetLayer;
use join_rows::JoinedRows;
use mamba::MambaLayer;
use mamba2::Mamba2Layer;
use short_convolution::ShortConvolutionLayer;

const EPS: f32 = 1e-6;
/// The largest allowed error. Outputs are normed, so they are about as large as their weights.
const TOLERANCE: f64 = 2e-5;

/// A layer and the projections of all tokens of some texts.
trait StateLayerCase: Sized {
    /// The layer's shape and the texts' lengths.
    type Case: 'static;
    const NAME: &'static str;
    /// Odd sizes first, then the sizes of models. Some texts are shorter than the convolution, others longer than a
    /// thread block processes at once.
    const CASES: &'static [Self::Case];

    fn new(case: &'static Self::Case, seed: u64) -> Self;

    fn name(&self) -> String;

    /// Returns the lengths of the texts.
    fn texts(&self) -> &'static [usize];

    /// Returns the projections of all tokens of all texts, `[tokens, cols]`.
    fn x(&self) -> &[f32];

    /// Returns the other inputs of the layer, with their columns.
    fn others(&self) -> Vec<(&[f32], usize)> {
        Vec::new()
    }

    /// Returns the columns of the projections, of the convolution's output and of the layer's output.
    fn cols(&self) -> [usize; 3];

    /// Returns the columns of the buffer for the convolution's output.
    fn convolved_cols<L: Loader>(&self, _rows: usize) -> usize {
        self.cols()[1]
    }

    fn spec(&self, num_slots: usize) -> StateLayerSpec;

    /// Returns the vectors of the layer in the order of `run`.
    fn vectors(&self) -> Vec<&[f32]>;

    /// Returns the outputs of a text with these rows of inputs.
    fn reference(&self, rows: &[Row<'_>]) -> Vec<f64>;

    fn run<B: Backend>(&self, step: &mut B::Step<'_>, parts: Parts<'_, B>) -> Result<()>;
}

/// The inputs of a token: its projections, and its row of each other input.
struct Row<'a> {
    x: &'a [f32],
    others: Vec<&'a [f32]>,
}

/// A layer's buffers, vectors and state on a backend.
struct Parts<'a, B: Backend> {
    x: &'a B::Buffer,
    others: &'a [B::Buffer],
    vectors: &'a [B::Vector],
    state: &'a mut B::StateLayer,
    convolved: &'a mut B::Buffer,
    out: &'a mut B::Buffer,
}

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    check_layers::<DeltaNetLayer, L>(&loader, tally)?;
    delta_net::refused(loader(80)?, tally)?;
    check_layers::<MambaLayer, L>(&loader, tally)?;
    mamba::refused(loader(80)?, tally)?;
    check_layers::<Mamba2Layer, L>(&loader, tally)?;
    mamba2::refused(loader(80)?, tally)?;
    check_layers::<ShortConvolutionLayer, L>(&loader, tally)?;
    short_convolution::refused(loader(80)?, tally)?;
    check_layers::<JoinedRows, L>(&loader, tally)?;
    join_rows::refused(loader(80)?, tally)
}

/// A text at once gives the bits of its chunks, alone and with others.
pub(super) fn check_invariance<L: Loader>(loader: &impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    check_chunks::<DeltaNetLayer, L>(loader, tally)?;
    check_chunks::<MambaLayer, L>(loader, tally)?;
    check_chunks::<Mamba2Layer, L>(loader, tally)?;
    check_chunks::<ShortConvolutionLayer, L>(loader, tally)?;
    check_chunks::<JoinedRows, L>(loader, tally)
}

/// The part of a text in a step.
#[derive(Debug, Clone)]
struct Piece {
    text: usize,
    /// Tokens of the text that the state includes, and the slot of this state.
    start: usize,
    slot: u32,
    new: usize,
    /// Pairs of a number of tokens of the piece and the slot for the state after them.
    writes: Vec<(usize, u32)>,
}

fn check_layers<C: StateLayerCase, L: Loader>(
    loader: &impl Fn(usize) -> Result<L>,
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.group(C::NAME);
    for (seed, case) in tally.part(C::CASES) {
        let layer = C::new(case, seed as u64);
        check_layer(loader(layer.texts().iter().sum())?, &layer, tally)?;
    }
    Ok(())
}

fn check_layer<L: Loader>(loader: L, layer: &impl StateLayerCase, tally: &mut Tally<'_>) -> Result<()> {
    let what = layer.name();
    tally.begin(&what)?;
    let expected = reference_of(layer);
    let mut rig = Rig::new(loader, layer)?;
    let texts = || layer.texts().iter().enumerate();
    let (first, second) = (|text: usize| 3 * text as u32, |text: usize| 3 * text as u32 + 1);
    // The first half of each text saves a state after its first token and one at its end.
    let halves = texts().map(|(text, &len)| {
        let new = len.div_ceil(2);
        let half_way = (new > 1).then_some((1, first(text)));
        let writes = half_way.into_iter().chain([(new, second(text))]).collect();
        Piece { text, start: 0, slot: NO_STATE, new, writes }
    });
    // Next, each text continues in its slot up to its last token. A second sequence forks from the first state. A third
    // one, also from the first state, is a single token and saves nothing.
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
            let got = rig.step(layer, pieces)?;
            let expected: Vec<f64> =
                pieces.iter().flat_map(|piece| rows_of(layer, &expected, piece)).copied().collect();
            tally.close(&format!("{what}, step {step}"), &got, &expected, TOLERANCE, TOLERANCE);
        }
    }
    Ok(())
}

fn check_chunks<C: StateLayerCase, L: Loader>(
    loader: &impl Fn(usize) -> Result<L>,
    tally: &mut Tally<'_>,
) -> Result<()> {
    for (seed, case) in tally.part(C::CASES) {
        let layer = C::new(case, seed as u64);
        let what = format!("{} in one piece and in chunks", layer.name());
        tally.begin(&what)?;
        let whole = |text: usize, new: usize| {
            let slot = 3 * text as u32;
            Piece { text, start: 0, slot: NO_STATE, new, writes: vec![(new.div_ceil(2), slot), (new, slot + 1)] }
        };
        let (texts, rows) = (layer.texts(), layer.texts().iter().sum());
        let all: Vec<_> = texts.iter().enumerate().map(|(text, &len)| whole(text, len)).collect();
        let together = Rig::new(loader(rows)?, &layer)?.step(&layer, &all)?;
        for chunk in [1, 7] {
            let mut rig = Rig::new(loader(rows)?, &layer)?;
            let mut alone = Vec::new();
            for (text, &len) in texts.iter().enumerate() {
                for start in (0..len).step_by(chunk) {
                    let (slot, new) = (if start == 0 { NO_STATE } else { 0 }, chunk.min(len - start));
                    alone.extend(rig.step(&layer, &[Piece { text, start, slot, new, writes: vec![(new, 0)] }])?);
                }
            }
            tally.same(&format!("{what} of {chunk}"), &alone, &together);
        }
    }
    Ok(())
}

/// Returns the row of a text's first token.
fn first_row(layer: &impl StateLayerCase, text: usize) -> usize {
    layer.texts()[..text].iter().sum()
}

/// Returns a piece's part of the outputs of all texts.
fn rows_of<'a, T>(layer: &impl StateLayerCase, rows: &'a [T], piece: &Piece) -> &'a [T] {
    let [_, _, cols] = layer.cols();
    &rows[(first_row(layer, piece.text) + piece.start) * cols..][..piece.new * cols]
}

/// Returns the outputs of all tokens of all texts.
fn reference_of(layer: &impl StateLayerCase) -> Vec<f64> {
    let [cols, ..] = layer.cols();
    let others_of =
        |token: usize| layer.others().iter().map(|&(values, cols)| &values[token * cols..][..cols]).collect();
    let rows = layer.x().chunks(cols).enumerate();
    let rows: Vec<Row<'_>> = rows.map(|(token, x)| Row { x, others: others_of(token) }).collect();
    let texts = layer.texts().iter().enumerate();
    texts.flat_map(|(text, &len)| layer.reference(&rows[first_row(layer, text)..][..len])).collect()
}

/// Returns the sums of a causal convolution for a token of a text. `input` returns the value of a token and channel.
fn convolution(
    taps: &[f32],
    channels: usize,
    token: usize,
    input: impl Fn(usize, usize) -> f64,
) -> impl Iterator<Item = f64> {
    let window = taps.len() / channels - 1;
    (0..channels).map(move |channel| {
        let weights = taps.iter().skip(channel).step_by(channels).enumerate();
        let products = weights
            .filter_map(|(tap, &weight)| Some(f64::from(weight) * input((token + tap).checked_sub(window)?, channel)));
        products.sum()
    })
}

fn silu(x: f64) -> f64 {
    plain(Activation::Silu, x)
}

/// A layer on a backend.
struct Rig<L: Loader> {
    backend: L::Backend,
    table: <L::Backend as Backend>::Matrix,
    vectors: Vec<<L::Backend as Backend>::Vector>,
    state: <L::Backend as Backend>::StateLayer,
    x: BufferOf<L>,
    /// Tables of the other inputs, and their rows of a step.
    other_tables: Vec<<L::Backend as Backend>::Matrix>,
    others: Vec<BufferOf<L>>,
    convolved: BufferOf<L>,
    out: BufferOf<L>,
}

impl<L: Loader> Rig<L> {
    fn new(mut loader: L, layer: &impl StateLayerCase) -> Result<Self> {
        let (rows, [cols, _, out]) = (layer.texts().iter().sum(), layer.cols());
        let table = matrix(&mut loader, layer.x(), cols)?;
        let vectors = layer.vectors().into_iter().map(|values| vector(&mut loader, values)).collect::<Result<_>>()?;
        let state = loader.alloc_state_layers(&[layer.spec(3 * layer.texts().len())])?.pop();
        let state = state.ok_or_else(|| Error::internal("no layer of states where one was asked for"))?;
        let x = loader.alloc_buffer(rows, cols)?;
        let (mut other_tables, mut others) = (Vec::new(), Vec::new());
        for (values, cols) in layer.others() {
            other_tables.push(matrix(&mut loader, values, cols)?);
            others.push(loader.alloc_buffer(rows, cols)?);
        }
        let convolved = loader.alloc_buffer(rows, layer.convolved_cols::<L>(rows))?;
        let out = loader.alloc_buffer(rows, out)?;
        Ok(Self { backend: loader.finish()?, table, vectors, state, x, other_tables, others, convolved, out })
    }

    fn step(&mut self, layer: &impl StateLayerCase, pieces: &[Piece]) -> Result<Vec<f32>> {
        let batch = batch_of(layer, pieces);
        let Self { backend, table, vectors, state, x, other_tables, others, convolved, out } = self;
        backend.step(&batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.embed(Embed { table, scale: 1.0, out: x })?;
            for (table, out) in other_tables.iter().zip(&mut *others) {
                step.embed(Embed { table, scale: 1.0, out })?;
            }
            layer.run::<L::Backend>(step, Parts { x, others, vectors, state, convolved, out })
        })?;
        let [_, _, cols] = layer.cols();
        Ok(backend.to_host(out, batch.num_tokens(), cols)?.to_vec())
    }
}

fn batch_of(layer: &impl StateLayerCase, pieces: &[Piece]) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    batch.states.cu_writes.push(0);
    for piece in pieces {
        let (first, end) = (first_row(layer, piece.text), piece.start + piece.new);
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

/// Records whether a step was refused.
fn judge(tally: &mut Tally<'_>, outcome: Result<Vec<f32>>, name: &str) {
    let verdict = match outcome {
        Err(Error::Internal { .. }) => Ok(0.0),
        Err(error) => Err(format!("{name} ends in another error: {error}")),
        Ok(_) => Err(format!("{name} is accepted")),
    };
    tally.judge("states that are refused", 1, verdict);
}

/// Returns a valid step of two texts of 40 tokens from the start.
fn right_pieces() -> [Piece; 2] {
    [whole_piece(0, NO_STATE, &[(2, 1), (40, 0)]), whole_piece(1, 3, &[(40, 3)])]
}

fn whole_piece(text: usize, slot: u32, writes: &[(usize, u32)]) -> Piece {
    Piece { text, start: 0, slot, new: 40, writes: writes.to_vec() }
}

/// Checks that a layer refuses contradictory batches, layers of other shapes, vectors of other lengths, and buffers
/// that are too small. `layer` has two texts of 40 tokens, and its output is not as wide as its projections.
fn check_refused<L: Loader, C: StateLayerCase>(
    loader: L,
    layer: &C,
    others: &[C],
    tally: &mut Tally<'_>,
) -> Result<()> {
    tally.begin("states that are refused")?;
    let mut rig = Rig::new(loader, layer)?;
    let right = right_pieces();
    rig.step(layer, &right)?;
    let piece = whole_piece;
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
        let outcome = rig.step(layer, &pieces);
        judge(tally, outcome, name);
    }
    for other in others {
        let outcome = rig.step(other, &right);
        judge(tally, outcome, &other.name());
    }
    for (i, values) in layer.vectors().iter().enumerate() {
        if let Some(other) = layer.vectors().iter().position(|other| other.len() != values.len()) {
            rig.vectors.swap(i, other);
            let outcome = rig.step(layer, &right);
            judge(tally, outcome, "vectors of other lengths");
            rig.vectors.swap(i, other);
        }
    }
    std::mem::swap(&mut rig.x, &mut rig.out);
    let outcome = rig.step(layer, &right);
    judge(tally, outcome, "a buffer that is too small");
    Ok(())
}
