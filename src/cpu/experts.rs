//! Mixture of experts. A step's rows are grouped by expert, so an expert's weights are read once for all its rows.

mod lent;
mod routes;

pub use lent::{LentExperts, LentWork, ROWS as LENT_ROWS};
pub use routes::NO_EXPERT;
pub(super) use routes::Routes;

use super::activation;
use super::linear::{LinearScratch, PackedMatrix, Product, Store, multiply_each};
use super::pool::ThreadPool;
use super::simd::Isa;
use super::split::for_rows;
use super::storage::Storage;
use crate::backend::ExpertSpec;

/// The experts of one layer.
#[derive(Debug)]
pub struct Experts {
    pub(super) spec: ExpertSpec,
    pub(super) router: PackedMatrix,
    /// Added to the scores that choose experts; `None` if the model has no such bias.
    pub(super) choice_bias: Option<Storage<f32>>,
    /// Factors on the experts' weights; `None` if the model has none.
    pub(super) output_scales: Option<Storage<f32>>,
    /// Gate (if any) and up of each expert as one stack, and down as one matrix.
    pub(super) gate_up: Vec<PackedMatrix>,
    pub(super) down: Vec<PackedMatrix>,
}

/// Buffers for a step of up to `rows` rows, apart from its residuals. A *pair* is a row and one of its experts. Pairs
/// are ordered by expert, and pair `used * row + rank` has the place `places[pair]` in that order.
#[derive(Debug)]
pub struct ExpertWork {
    pub(super) spec: ExpertSpec,
    pub(super) rows: usize,
    /// `[rows][num]`
    pub(super) logits: Storage<f32>,
    /// The experts' inputs, later their outputs, in the order of places.
    pub(super) values: Storage<f32>,
    pub(super) gate_up: Storage<f32>,
    pub(super) gated: Storage<f32>,
    pub(super) routes: Routes,
}

/// Returns the sizes of an `ExpertWork`'s f32 buffers: logits, values, gate and up, gated.
pub(super) fn work_sizes(spec: &ExpertSpec, rows: usize) -> [[usize; 2]; 4] {
    let pairs = rows.saturating_mul(spec.used);
    [[rows, spec.num], [pairs, spec.hidden_size], [pairs, spec.product_cols()], [pairs, spec.ffn_size]]
}

/// The destination of the sums over each row's experts: `[rows][hidden]`.
pub(super) struct Sum<'a> {
    pub(super) rows: &'a mut [f32],
    pub(super) store: Store,
}

/// Writes the experts' results for `x` to `out`. The router chooses them from the rows of `routed`.
pub(super) fn run(
    experts: &Experts,
    [x, routed]: [&[f32]; 2],
    work: &mut ExpertWork,
    out: Sum<'_>,
    isa: Isa,
    scratch: &mut LinearScratch,
    pool: &ThreadPool,
) {
    let Experts { spec, router, choice_bias, output_scales, gate_up, down } = experts;
    let rows = out.rows.len() / spec.hidden_size;
    let ExpertWork { logits, values, gate_up: products, gated, routes, .. } = work;
    let logits = &mut logits[..rows * spec.num];
    router.multiply(routed, rows, logits, Store::Assign, scratch, pool);
    routes.choose(spec, logits, [choice_bias, output_scales].map(|values| values.as_deref().unwrap_or(&[])));
    mix(Chosen { spec, gate_up, down, routes }, x, [values, products, gated], out, isa, scratch, pool);
}

/// Experts, and the assignment of rows to them.
struct Chosen<'a> {
    spec: &'a ExpertSpec,
    gate_up: &'a [PackedMatrix],
    down: &'a [PackedMatrix],
    routes: &'a mut Routes,
}

/// Returns the products of the experts that have rows, each with its matrix.
fn of_experts<'a>(matrices: &'a [PackedMatrix], routes: &Routes) -> Vec<Product<'a>> {
    routes.runs().map(|(expert, first, count)| Product { matrix: &matrices[expert], first, count }).collect()
}

/// Writes the results of the chosen experts for `x` to `out`. `buffers` are values, gate and up, gated.
fn mix(
    chosen: Chosen<'_>,
    x: &[f32],
    [values, products, gated]: [&mut [f32]; 3],
    out: Sum<'_>,
    isa: Isa,
    scratch: &mut LinearScratch,
    pool: &ThreadPool,
) {
    let Chosen { spec, gate_up, down, routes } = chosen;
    let (hidden, ffn) = (spec.hidden_size, spec.ffn_size);
    let pairs = routes.sort(spec, out.rows.len() / hidden * spec.used);
    let routes = &*routes;

    let values = &mut values[..pairs * hidden];
    for_rows(pool, values, hidden, |first, out| {
        for (out, &row) in out.chunks_exact_mut(hidden).zip(&routes.rows[first..]) {
            out.copy_from_slice(&x[row * hidden..][..hidden]);
            if spec.weighs_inputs {
                // A row has a single pair here.
                let weight = routes.choices[row].weight;
                out.iter_mut().for_each(|x| *x *= weight);
            }
        }
    });
    multiply_each(&of_experts(gate_up, routes), values, products, scratch, pool);
    let gated = &mut gated[..pairs * ffn];
    match spec.gate {
        true => activation::gated(pool, isa, products, spec.activation, ffn, gated),
        false => activation::plain(pool, isa, products, spec.activation, ffn, gated),
    }
    multiply_each(&of_experts(down, routes), gated, values, scratch, pool);
    let Sum { rows: sums, store } = out;
    for_rows(pool, sums, hidden, |first, out| {
        if store == Store::Assign {
            out.fill(0.0);
        }
        for (row, out) in out.chunks_exact_mut(hidden).enumerate() {
            let pairs = (first + row) * spec.used..(first + row + 1) * spec.used;
            for (choice, &place) in routes.choices[pairs.clone()].iter().zip(&routes.places[pairs]) {
                if !choice.is_there() {
                    continue;
                }
                let weight = if spec.weighs_inputs { 1.0 } else { choice.weight };
                for (out, value) in out.iter_mut().zip(&values[place * hidden..][..hidden]) {
                    *out += weight * value;
                }
            }
        }
    });
}
