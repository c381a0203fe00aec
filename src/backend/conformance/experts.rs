//! Mixtures of experts, with their router and the norm before it, against f64.

use super::linear::Weights;
use super::{Random, Tally, bytes_of, fill, matrix, two_buffers, vector, within};
use crate::backend::{Activation, Backend, ExpertSpec, ExpertTensors, Fusions, Loader, Norm, NormExperts};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

const EPS: f32 = 1e-5;
/// The last logit that is chosen and the first that is not could change places in f32 if they were nearer to each other
/// than this; no case has such, but those that are equal.
const CLEAR: f64 = 1e-5;

struct Case {
    rows: usize,
    num: usize,
    used: usize,
    /// Rounded up to whole blocks of the types.
    hidden: usize,
    ffn: usize,
    /// Of gate, up and down.
    types: [GgmlType; 3],
    /// Each two experts that follow each other have the same logit.
    ties: bool,
    normalize: bool,
}

const fn case(rows: usize, num: usize, used: usize, hidden: usize, ffn: usize, ty: GgmlType) -> Case {
    Case { rows, num, used, hidden, ffn, types: [ty; 3], ties: false, normalize: true }
}

const CASES: [Case; 17] = [
    case(1, 1, 1, 1, 1, GgmlType::F32),
    case(1, 4, 2, 33, 47, GgmlType::F32),
    Case { normalize: false, ..case(3, 9, 1, 33, 17, GgmlType::F32) },
    case(9, 8, 8, 65, 64, GgmlType::F32),
    Case { ties: true, ..case(7, 6, 1, 32, 32, GgmlType::F32) },
    Case { ties: true, ..case(40, 34, 5, 64, 32, GgmlType::F16) },
    case(2, 4, 2, 96, 40, GgmlType::F16),
    Case { normalize: false, ..case(70, 4, 2, 140, 90, GgmlType::F16) },
    case(65, 3, 2, 320, 33, GgmlType::BF16),
    case(1, 60, 8, 256, 256, GgmlType::Q4_K),
    Case { types: [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K], ..case(37, 40, 8, 256, 512, GgmlType::Q4_K) },
    Case { types: [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_1], ..case(20, 5, 3, 64, 96, GgmlType::Q8_0) },
    Case { types: [GgmlType::F16, GgmlType::F16, GgmlType::BF16], ..case(9, 2, 1, 64, 48, GgmlType::F16) },
    case(33, 128, 8, 32, 32, GgmlType::Q4_0),
    case(2, 500, 10, 32, 32, GgmlType::Q8_0),
    case(1, 12, 4, 512, 64, GgmlType::Q8_0),
    case(5, 4, 2, 256, 256, GgmlType::IQ2_XXS),
];

pub(crate) fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("experts");
    for (seed, case) in tally.part(&CASES) {
        tally.begin(&case.name())?;
        let layer = Layer::new(case, seed as u64)?;
        let mut rig = Rig::new(loader(case.rows)?, &layer)?;
        // All rows, then fewer in what those have left behind.
        for rows in [case.rows, case.rows.div_ceil(3)] {
            layer.compare(case, rows, &rig.run(rows)?, tally)?;
        }
    }
    Ok(())
}

/// A row's result has the same bits, alone and with others, whichever of them there are.
pub(super) fn check_invariance<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    for (seed, case) in tally.part(&CASES) {
        tally.begin(&case.name())?;
        let layer = Layer::new(case, seed as u64)?;
        let together = Rig::new(loader(case.rows)?, &layer)?.run(case.rows)?;
        let hidden = layer.spec.hidden_size;
        for rows in [1, case.rows.div_ceil(2)] {
            let last = layer.rows_from(case.rows - rows);
            let alone = Rig::new(loader(rows)?, &last)?.run(rows)?;
            let what = format!("{}: {rows} of {} rows", case.name(), case.rows);
            tally.same(&what, &alone, &together[(case.rows - rows) * hidden..]);
        }
    }
    Ok(())
}

impl Case {
    fn name(&self) -> String {
        let Self { rows, num, used, types, .. } = self;
        format!("{used} of {num} experts of {:?}, {rows} rows", types.map(GgmlType::name))
    }
}

#[derive(Clone)]
struct Layer {
    spec: ExpertSpec,
    x: Vec<f32>,
    norm: Vec<f32>,
    router: Vec<f32>,
    /// Gate, up and down.
    weights: [Weights; 3],
}

impl Layer {
    fn new(case: &Case, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let [gate, up, down] = case.types;
        let hidden_size = case.hidden.next_multiple_of(gate.block_elements().max(up.block_elements()));
        let ffn_size = case.ffn.next_multiple_of(down.block_elements());
        let Case { num, used, normalize, .. } = *case;
        let spec = ExpertSpec {
            num,
            used,
            hidden_size,
            ffn_size,
            activation: Activation::Silu,
            normalize,
            scale: if normalize { 1.0 } else { 2.5 },
        };
        let mut router = random.values(num * hidden_size);
        if case.ties {
            for pair in router.chunks_exact_mut(2 * hidden_size) {
                let (first, second) = pair.split_at_mut(hidden_size);
                second.copy_from_slice(first);
            }
        }
        let weights = [
            Weights::random(gate, num * ffn_size, hidden_size, seed)?,
            Weights::random(up, num * ffn_size, hidden_size, seed + 100)?,
            Weights::random(down, num * hidden_size, ffn_size, seed + 200)?,
        ];
        Ok(Self { spec, x: random.values(case.rows * hidden_size), norm: random.values(hidden_size), router, weights })
    }

    /// The same experts, and the rows from `first` on.
    fn rows_from(&self, first: usize) -> Self {
        Self { x: self.x[first * self.spec.hidden_size..].to_vec(), ..self.clone() }
    }

    /// `got` is what became of the first `rows` rows. An element may be off by a part of the largest change of its row:
    /// what two products of roundings to f32, 16 bits or 8 bits may add up to.
    fn compare(&self, case: &Case, rows: usize, got: &[f32], tally: &mut Tally<'_>) -> Result<()> {
        let tolerance = match case.types {
            [GgmlType::F32, ..] => 1e-5,
            [.., GgmlType::F16] => 4e-3,
            [.., GgmlType::BF16] => 3e-2,
            _ => 6e-2,
        };
        let mut expected = Vec::with_capacity(got.len());
        for x in self.x.chunks(self.spec.hidden_size).take(rows) {
            let change = self.reference(x, case.ties)?;
            let largest = change.iter().fold(1e-3, |most: f64, value| most.max(value.abs()));
            expected.extend(x.iter().zip(&change).map(|(&x, change)| (f64::from(x) + change, tolerance * largest)));
        }
        tally.compare(&format!("{}, {rows} at once", case.name()), got, expected.into_iter());
        Ok(())
    }

    /// What the experts add to a row.
    fn reference(&self, x: &[f32], ties: bool) -> Result<Vec<f64>> {
        let ExpertSpec { num, used, hidden_size: hidden, ffn_size: ffn, normalize, scale, .. } = self.spec;
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let rms = (x.iter().map(|x| x * x).sum::<f64>() / hidden as f64 + f64::from(EPS)).sqrt();
        let x: Vec<f64> = x.iter().zip(&self.norm).map(|(x, &w)| x / rms * f64::from(w)).collect();
        let logits = multiply(&self.router, &x);
        let mut order: Vec<usize> = (0..num).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if used < num {
            let (last, next) = (order[used - 1], order[used]);
            let equal = ties && last / 2 == next / 2;
            if !equal && logits[last] - logits[next] <= CLEAR {
                return Err(Error::internal(format!("logits of {num} experts are too near: another seed")));
            }
        }
        let shares: Vec<f64> = logits.iter().map(|logit| (logit - logits[order[0]]).exp()).collect();
        let chosen = &order[..used];
        let sum: f64 = if normalize { chosen.iter().map(|&e| shares[e]).sum() } else { shares.iter().sum() };
        let mut change = vec![0.0; hidden];
        for &expert in chosen {
            let [gate, up, down] = &self.weights;
            let of_expert = |weights: &Weights, rows: usize, x: &[f64]| {
                multiply(&weights.values[expert * rows * x.len()..(expert + 1) * rows * x.len()], x)
            };
            let (gate, up) = (of_expert(gate, ffn, &x), of_expert(up, ffn, &x));
            let gated: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| g / (1.0 + (-g).exp()) * u).collect();
            for (change, y) in change.iter_mut().zip(of_expert(down, hidden, &gated)) {
                *change += f64::from(scale) * shares[expert] / sum * y;
            }
        }
        Ok(change)
    }
}

fn multiply(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

/// A layer on a backend.
struct Rig<L: Loader> {
    backend: L::Backend,
    spec: ExpertSpec,
    table: <L::Backend as Backend>::Matrix,
    norm: <L::Backend as Backend>::Vector,
    experts: <L::Backend as Backend>::Experts,
    work: <L::Backend as Backend>::ExpertWork,
    residual: super::BufferOf<L>,
    normed: super::BufferOf<L>,
}

impl<L: Loader> Rig<L> {
    fn new(mut loader: L, layer: &Layer) -> Result<Self> {
        let spec = layer.spec;
        let (hidden, rows) = (spec.hidden_size, layer.x.len() / spec.hidden_size);
        let table = matrix(&mut loader, &layer.x, hidden)?;
        let norm = vector(&mut loader, &layer.norm)?;
        let data = bytes_of(&layer.router);
        let router = TensorView { name: "router", ggml_type: GgmlType::F32, rows: spec.num, cols: hidden, data: &data };
        let [gate, up, down] = layer.weights.each_ref().map(Weights::view);
        let experts = loader.upload_experts(&ExpertTensors { spec, router, gate, up, down }, &mut |_| Ok(()))?;
        let work = loader.alloc_expert_work(&spec, rows)?;
        let [residual, normed] = two_buffers(&mut loader, rows, hidden)?;
        Ok(Self { backend: loader.finish()?, spec, table, norm, experts, work, residual, normed })
    }

    /// The first `rows` rows of the table through the layer.
    fn run(&mut self, rows: usize) -> Result<Vec<f32>> {
        let Self { backend, table, norm, experts, work, residual, normed, .. } = self;
        fill(backend, table, rows, residual)?;
        let norm = Norm { weight: norm, eps: EPS };
        within(backend, rows, |step| step.norm_experts(NormExperts { norm, experts, rows, normed, work, residual }))?;
        Ok(backend.to_host(residual, rows, self.spec.hidden_size)?.to_vec())
    }
}
