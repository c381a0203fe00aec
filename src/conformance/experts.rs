//! Mixtures of experts, with their router and the norm before it, compared with f64.

use super::linear::Weights;
use super::reference::{HostNorm, gated, plain};
use super::{Random, Tally, bytes_of, fill, matrix, two_buffers, vector, within};
use crate::backend::{
    Activation, Backend, ExpertGroups, ExpertSpec, ExpertTensors, Fusions, Gating, Loader, MixExperts, Norm,
    NormExperts, NormKind, NormRows, Ops,
};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
use crate::{Error, Result};

const EPS: f32 = 1e-5;
/// The smallest distance between the last chosen logit and the first other one. Closer logits could change places in
/// f32. All cases keep this distance, except for exact ties.
const CLEAR: f64 = 1e-5;

struct Case {
    rows: usize,
    num: usize,
    used: usize,
    /// Columns of the hidden state and of an expert, rounded up to whole blocks of the types.
    hidden: usize,
    ffn: usize,
    /// Tensor types of gate, up and down.
    types: [GgmlType; 3],
    /// True if experts 0 and 1, 2 and 3 and so on have the same logit.
    ties: bool,
    normalize: bool,
    style: Style,
}

/// The use of the sum over a row's experts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Sum {
    /// It replaces the contents of the output.
    Alone,
    /// It is added to the row.
    Added,
}

/// The mixture of a model family.
#[derive(Clone, Copy)]
struct Style {
    activation: Activation,
    gate: bool,
    gating: Gating,
    groups: Option<ExpertGroups>,
    router_bias: bool,
    choice_bias: bool,
    biases: bool,
    /// True if gate and up are one tensor of one type.
    fused: bool,
    /// True if the router reads separate rows, the router's weights have a factor, and the experts' weights have
    /// factors.
    routed: bool,
    weighs_inputs: bool,
}

const PLAIN: Style = Style {
    activation: Activation::Silu,
    gate: true,
    gating: Gating::Softmax,
    groups: None,
    router_bias: false,
    choice_bias: false,
    biases: false,
    fused: false,
    routed: false,
    weighs_inputs: false,
};
/// The styles of gpt-oss, of GLM and MiniMax, of Gemma 4, of Nemotron 3, of Llama 4, and a combination that none of
/// them has.
const GPT_OSS: Style = Style { activation: Activation::ClampedSwiglu, router_bias: true, biases: true, ..PLAIN };
const GLM: Style = Style { gating: Gating::Sigmoid, choice_bias: true, ..PLAIN };
const GEMMA: Style = Style { activation: Activation::Gelu, fused: true, routed: true, ..PLAIN };
const NEMOTRON: Style = Style { activation: Activation::SquaredRelu, gate: false, ..GLM };
const LLAMA4: Style = Style { gating: Gating::Sigmoid, weighs_inputs: true, ..PLAIN };
const OTHER: Style = Style { activation: Activation::Gelu, choice_bias: true, router_bias: true, ..PLAIN };

/// Returns the style of DeepSeek V3.
const fn grouped(num: usize, used: usize) -> Style {
    Style { groups: Some(ExpertGroups { num, used }), ..GLM }
}

const fn case(rows: usize, num: usize, used: usize, hidden: usize, ffn: usize, ty: GgmlType) -> Case {
    Case { rows, num, used, hidden, ffn, types: [ty; 3], ties: false, normalize: true, style: PLAIN }
}

const CASES: [Case; 53] = [
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
    Case { style: GPT_OSS, ..case(1, 8, 3, 33, 47, GgmlType::F32) },
    Case { style: GLM, ..case(9, 40, 6, 33, 17, GgmlType::F32) },
    Case { style: GLM, normalize: false, ..case(3, 5, 2, 65, 33, GgmlType::F32) },
    Case { style: OTHER, normalize: false, ..case(5, 40, 6, 33, 17, GgmlType::F32) },
    Case { style: Style { gating: Gating::Sigmoid, ..PLAIN }, ..case(4, 7, 7, 32, 16, GgmlType::F32) },
    Case { style: GPT_OSS, ..case(1, 32, 4, 320, 96, GgmlType::MXFP4) },
    Case { style: GPT_OSS, ..case(40, 6, 4, 96, 64, GgmlType::MXFP4) },
    Case { style: GPT_OSS, ..case(70, 4, 2, 64, 96, GgmlType::MXFP4) },
    case(3, 6, 2, 128, 64, GgmlType::NVFP4),
    Case { style: Style { fused: true, ..PLAIN }, ..case(20, 5, 3, 64, 128, GgmlType::NVFP4) },
    Case {
        style: GPT_OSS,
        types: [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_1],
        ..case(2, 5, 3, 64, 96, GgmlType::Q8_0)
    },
    Case { style: OTHER, ..case(33, 16, 3, 64, 32, GgmlType::F16) },
    Case { style: GEMMA, ..case(1, 6, 2, 33, 47, GgmlType::F32) },
    Case { style: GEMMA, ..case(9, 40, 6, 65, 17, GgmlType::F32) },
    Case { style: GEMMA, ..case(2, 5, 3, 96, 40, GgmlType::F16) },
    Case { style: GEMMA, ..case(70, 8, 2, 64, 33, GgmlType::F16) },
    Case {
        style: GEMMA,
        types: [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K],
        ..case(1, 12, 4, 256, 256, GgmlType::Q4_K)
    },
    Case { style: Style { fused: true, ..PLAIN }, ..case(20, 5, 3, 64, 96, GgmlType::Q8_0) },
    Case { style: NEMOTRON, ..case(1, 6, 2, 33, 47, GgmlType::F32) },
    Case { style: NEMOTRON, ..case(9, 40, 6, 65, 17, GgmlType::F32) },
    Case { style: NEMOTRON, ..case(70, 8, 2, 64, 33, GgmlType::F16) },
    Case { style: NEMOTRON, ..case(2, 5, 3, 256, 96, GgmlType::Q8_0) },
    Case { style: grouped(4, 2), ..case(9, 8, 3, 33, 17, GgmlType::F32) },
    Case { style: grouped(5, 2), ..case(20, 40, 6, 65, 17, GgmlType::F32) },
    Case { style: grouped(3, 2), ..case(7, 99, 4, 33, 17, GgmlType::F32) },
    Case { style: grouped(8, 4), normalize: false, ..case(3, 256, 8, 64, 32, GgmlType::Q8_0) },
    Case { style: Style { choice_bias: false, ..grouped(3, 1) }, ..case(6, 12, 4, 33, 17, GgmlType::F32) },
    Case { style: grouped(2, 2), ..case(5, 6, 3, 64, 33, GgmlType::F16) },
    Case { style: LLAMA4, normalize: false, ..case(1, 6, 1, 33, 47, GgmlType::F32) },
    Case { style: LLAMA4, normalize: false, ..case(9, 40, 1, 65, 17, GgmlType::F32) },
    Case { style: LLAMA4, normalize: false, ..case(70, 4, 1, 64, 33, GgmlType::F16) },
    Case { style: LLAMA4, normalize: false, ..case(2, 5, 1, 256, 96, GgmlType::Q8_0) },
    // More super-blocks than a kernel loads at once, in groups of 64 and of 16 rows.
    case(34, 2, 1, 1280, 32, GgmlType::Q8_0),
    Case { types: [GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q8_0], ..case(34, 2, 1, 1280, 32, GgmlType::Q4_K) },
    Case { types: [GgmlType::IQ2_XS, GgmlType::IQ2_S, GgmlType::IQ3_S], ..case(20, 4, 2, 256, 256, GgmlType::IQ2_XS) },
    Case { types: [GgmlType::IQ1_S, GgmlType::IQ1_S, GgmlType::IQ1_M], ..case(5, 4, 2, 256, 256, GgmlType::IQ1_S) },
];

pub fn check<L: Loader>(loader: impl Fn(usize) -> Result<L>, tally: &mut Tally<'_>) -> Result<()> {
    tally.group("experts");
    for (seed, case) in tally.part(&CASES) {
        tally.begin(&case.name())?;
        let layer = Layer::new(case, seed as u64)?;
        let mut rig = Rig::new(loader(case.rows)?, &layer)?;
        // All rows, then fewer rows in the used buffers.
        let few = case.rows.div_ceil(3);
        for rows in [case.rows, few] {
            layer.compare(case, rows, &rig.run(rows)?, Sum::Added, tally)?;
        }
        for sum in [Sum::Alone, Sum::Added] {
            layer.compare(case, few, &rig.run_op(few, sum)?, sum, tally)?;
        }
    }
    Ok(())
}

/// A row's result has the same bits alone and together with any other rows.
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
        let Self { rows, num, used, types, style: Style { gating, activation, groups, .. }, .. } = self;
        let groups = groups.map_or(String::new(), |ExpertGroups { num, used }| format!(" in {used} of {num} groups"));
        let types = types.map(GgmlType::name);
        format!("{used} of {num} experts{groups} of {types:?}, {gating:?}, {activation:?}, {rows} rows")
    }
}

#[derive(Clone)]
struct Layer {
    spec: ExpertSpec,
    x: Vec<f32>,
    norm: Vec<f32>,
    router: Vec<f32>,
    /// Weights of gate, up and down.
    weights: [Weights; 3],
    /// Biases of gate, up and down, if the spec has them.
    biases: [Vec<f32>; 3],
    router_bias: Vec<f32>,
    choice_bias: Vec<f32>,
    fused: bool,
    /// Weights of the norm of the router's separate rows, and the factors of the experts.
    routed: Option<[Vec<f32>; 2]>,
}

impl Layer {
    fn new(case: &Case, seed: u64) -> Result<Self> {
        let mut random = Random(seed);
        let [gate, up, down] = case.types;
        let hidden_size = case.hidden.next_multiple_of(gate.block_elements().max(up.block_elements()));
        let ffn_size = case.ffn.next_multiple_of(down.block_elements());
        let Case { num, used, normalize, style, .. } = *case;
        let Style { activation, gate: has_gate, gating, groups, router_bias, choice_bias, biases, fused, .. } = style;
        let Style { routed, weighs_inputs, .. } = style;
        let spec = ExpertSpec {
            num,
            used,
            hidden_size,
            ffn_size,
            activation,
            gate: has_gate,
            gating,
            groups,
            router_bias,
            choice_bias,
            biases,
            normalize,
            scale: if normalize { 1.0 } else { 2.5 },
            router_scale: if routed { 0.75 } else { 1.0 },
            output_scales: routed,
            weighs_inputs,
        };
        let mut router = random.values(num * hidden_size);
        if case.ties {
            for pair in router.chunks_exact_mut(2 * hidden_size) {
                let (first, second) = pair.split_at_mut(hidden_size);
                second.copy_from_slice(first);
            }
        }
        let weights = [
            Weights::random(gate, num * ffn_size * if fused { 2 } else { 1 }, hidden_size, seed)?.scaled(num),
            Weights::random(up, num * ffn_size, hidden_size, seed + 100)?.scaled(num),
            Weights::random(down, num * hidden_size, ffn_size, seed + 200)?.scaled(num),
        ];
        let (x, norm) = (random.values(case.rows * hidden_size), random.values(hidden_size));
        let biases = [ffn_size, ffn_size, hidden_size].map(|rows| random.values(num * rows));
        let (router_bias, choice_bias) = (random.values(num), random.values(num));
        let routed = routed.then(|| [hidden_size, num].map(|len| random.values(len)));
        Ok(Self { spec, x, norm, router, weights, biases, router_bias, choice_bias, fused, routed })
    }

    /// Returns the layer with only its rows from `first` on.
    fn rows_from(&self, first: usize) -> Self {
        Self { x: self.x[first * self.spec.hidden_size..].to_vec(), ..self.clone() }
    }

    /// Compares `got`, the first `rows` rows after the op. The tolerance of an element is relative to the largest
    /// change of its row. It covers the roundings of two products to f32, 16 bits or 8 bits.
    fn compare(&self, case: &Case, rows: usize, got: &[f32], sum: Sum, tally: &mut Tally<'_>) -> Result<()> {
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
            let before = |x: f32| if sum == Sum::Added { f64::from(x) } else { 0.0 };
            expected.extend(x.iter().zip(&change).map(|(&x, change)| (before(x) + change, tolerance * largest)));
        }
        tally.compare(&format!("{}, {rows} at once, {sum:?}", case.name()), got, expected.into_iter());
        Ok(())
    }

    /// Returns the experts that may be chosen: all, or those of the groups with the largest sums of two best scores.
    fn open_experts(&self, compared: &[f64]) -> Result<Vec<usize>> {
        let Some(ExpertGroups { num, used }) = self.spec.groups else { return Ok((0..compared.len()).collect()) };
        let of_group = compared.len() / num;
        let sum = |group: &[f64]| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted[0] + sorted[1]
        };
        let sums: Vec<f64> = compared.chunks(of_group).map(sum).collect();
        let mut order: Vec<usize> = (0..num).collect();
        order.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
        if used < num && sums[order[used - 1]] - sums[order[used]] <= CLEAR {
            return Err(Error::internal(format!("sums of {num} groups are too near: another seed")));
        }
        Ok(order[..used].iter().flat_map(|group| group * of_group..(group + 1) * of_group).collect())
    }

    /// Returns the sum that the experts add to the row `x`.
    fn reference(&self, x: &[f32], ties: bool) -> Result<Vec<f64>> {
        let ExpertSpec { num, used, hidden_size: hidden, ffn_size: ffn, normalize, scale, .. } = self.spec;
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let normed = |weight| HostNorm { kind: NormKind::Rms, weight, bias: None, eps: EPS }.of(&x);
        let routed = normed(self.routed.as_ref().map_or(&self.norm, |[norm, _]| norm));
        let products = multiply(&self.router, &routed).into_iter().map(|y| y * f64::from(self.spec.router_scale));
        let x = normed(&self.norm);
        let logits = plus(products.collect(), self.spec.router_bias.then_some(&self.router_bias));
        let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shares: Vec<f64> = match self.spec.gating {
            Gating::Softmax => {
                let sum: f64 = logits.iter().map(|logit| (logit - top).exp()).sum();
                logits.iter().map(|logit| (logit - top).exp() / sum).collect()
            }
            Gating::Sigmoid => logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect(),
        };
        // Without a choice bias, compare logits: they have the same order, at larger distances.
        let compared = match (self.spec.choice_bias, self.spec.groups) {
            (false, None) => logits,
            (has_bias, _) => plus(shares.clone(), has_bias.then_some(&self.choice_bias)),
        };
        let mut order = self.open_experts(&compared)?;
        order.sort_by(|&a, &b| compared[b].total_cmp(&compared[a]).then(a.cmp(&b)));
        if used < order.len() {
            let (last, next) = (order[used - 1], order[used]);
            let equal = ties && last / 2 == next / 2;
            if !equal && compared[last] - compared[next] <= CLEAR {
                return Err(Error::internal(format!("logits of {num} experts are too near: another seed")));
            }
        }
        let chosen = &order[..used];
        let sum: f64 = if normalize { chosen.iter().map(|&e| shares[e]).sum() } else { 1.0 };
        let mut change = vec![0.0; hidden];
        for &expert in chosen {
            let factor = self.routed.as_ref().map_or(1.0, |[_, factors]| f64::from(factors[expert]));
            let weight = factor * f64::from(scale) * shares[expert] / sum;
            let [of_input, of_output] = if self.spec.weighs_inputs { [weight, 1.0] } else { [1.0, weight] };
            let x: Vec<f64> = x.iter().map(|x| of_input * x).collect();
            let of_expert = |part: usize, rows: usize, x: &[f64]| {
                let (part_of, place) = match self.fused && part < 2 {
                    true => (0, 2 * expert + part),
                    false => (part, expert),
                };
                let weights = &self.weights[part_of].values[place * rows * x.len()..][..rows * x.len()];
                let bias = &self.biases[part][expert * rows..][..rows];
                plus(multiply(weights, x), self.spec.biases.then_some(bias))
            };
            let (gate, up) = (of_expert(0, ffn, &x), of_expert(1, ffn, &x));
            let pairs = gate.iter().zip(&up);
            let activated = |(&gate, &up): (&f64, &f64)| match self.spec.gate {
                true => gated(self.spec.activation, gate, up),
                false => plain(self.spec.activation, up),
            };
            let gated: Vec<f64> = pairs.map(activated).collect();
            for (change, y) in change.iter_mut().zip(of_expert(2, hidden, &gated)) {
                *change += of_output * y;
            }
        }
        Ok(change)
    }
}

fn plus<T: AsRef<[f32]>>(mut values: Vec<f64>, bias: Option<T>) -> Vec<f64> {
    if let Some(bias) = bias {
        values.iter_mut().zip(bias.as_ref()).for_each(|(value, &bias)| *value += f64::from(bias));
    }
    values
}

fn multiply(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

fn view<'a>(name: &'a str, rows: usize, cols: usize, data: &'a [u8]) -> TensorView<'a> {
    TensorView { name, ggml_type: GgmlType::F32, rows, cols, data, scales: &[] }
}

/// A layer on a backend.
struct Rig<L: Loader> {
    backend: L::Backend,
    spec: ExpertSpec,
    table: <L::Backend as Backend>::Matrix,
    norm: <L::Backend as Backend>::Vector,
    /// The norm of the router's input, and a buffer for it.
    router_norm: Option<<L::Backend as Backend>::Vector>,
    routed: super::BufferOf<L>,
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
        let router_norm = layer.routed.as_ref().map(|[norm, _]| vector(&mut loader, norm)).transpose()?;
        let data = bytes_of(&layer.router);
        let [gate, up, down] = layer.weights.each_ref().map(Weights::view);
        let [router_bias, choice_bias] = [&layer.router_bias, &layer.choice_bias].map(|values| bytes_of(values));
        let biases = layer.biases.each_ref().map(|values| bytes_of(values));
        let of_num = |data| view("bias of experts", 1, spec.num, data);
        let of_each = |part: usize| {
            let cols = layer.biases[part].len() / spec.num;
            view("biases of experts", spec.num, cols, &biases[part])
        };
        let output_scales = layer.routed.as_ref().map(|[_, factors]| bytes_of(factors));
        let tensors = ExpertTensors {
            spec,
            router: view("router", spec.num, hidden, &data),
            gate: spec.gate.then_some(gate),
            up: if layer.fused { gate } else { up },
            down,
            fused: layer.fused,
            output_scales: output_scales.as_ref().map(|data| of_num(data)),
            router_bias: spec.router_bias.then(|| of_num(&router_bias)),
            choice_bias: spec.choice_bias.then(|| of_num(&choice_bias)),
            biases: spec.biases.then(|| [0, 1, 2].map(of_each)),
        };
        let experts = loader.upload_experts(&tensors, &mut |_| Ok(()))?;
        let work = loader.alloc_expert_work(&spec, rows)?;
        let [residual, normed] = two_buffers(&mut loader, rows, hidden)?;
        let routed = loader.alloc_buffer(rows, hidden)?;
        Ok(Self { backend: loader.finish()?, spec, table, norm, router_norm, routed, experts, work, residual, normed })
    }

    /// Passes the first `rows` rows of the table through the layer.
    fn run(&mut self, rows: usize) -> Result<Vec<f32>> {
        // The fused op has one norm for router and experts.
        if self.router_norm.is_some() {
            return self.run_op(rows, Sum::Added);
        }
        let Self { backend, table, norm, experts, work, residual, normed, .. } = self;
        fill(backend, table, rows, residual)?;
        let norm = Norm::rms(norm, EPS);
        within(backend, rows, |step| step.norm_experts(NormExperts { norm, experts, rows, normed, work, residual }))?;
        Ok(backend.to_host(residual, rows, self.spec.hidden_size)?.to_vec())
    }

    /// Runs the op alone after a separate norm. Fills the rows beforehand.
    fn run_op(&mut self, rows: usize, sum: Sum) -> Result<Vec<f32>> {
        let Self { backend, table, norm, router_norm, routed, experts, work, residual, normed, .. } = self;
        fill(backend, table, rows, residual)?;
        let (norm, add) = (Norm::rms(norm, EPS), sum == Sum::Added);
        within(backend, rows, |step| {
            step.norm_rows(NormRows { x: residual, norm, rows, out: normed })?;
            let routed = match &*router_norm {
                Some(norm) => {
                    step.norm_rows(NormRows { x: residual, norm: Norm::rms(norm, EPS), rows, out: routed })?;
                    Some(&*routed)
                }
                None => None,
            };
            step.experts(MixExperts { x: normed, routed, experts, rows, work, out: residual, add })
        })?;
        Ok(backend.to_host(residual, rows, self.spec.hidden_size)?.to_vec())
    }
}
