//! A mixture of experts. Few (row, expert) pairs go through `gemv`, each with its expert's weights. Many pairs are
//! grouped by expert and go through the matrix units, which read an expert's weights once for its rows.

mod cpu;

use super::linear::GemvRows;
use super::rows::{Gated, Norm, gemv_norm, is_plain};
use crate::Result;
use crate::backend::{Activation, ExpertSpec, Linear, MixExperts, NormExperts};
use crate::buffer::expert_copies::{Cached, Uses};
use crate::buffer::{Buffer, ExpertMatrix, ExpertWork, Experts, count};
use crate::compute::Compute;
use crate::launch::args::{
    ADD_EXPERTS_COLS, ActivationCode, AddExpertsArgs, CHOOSE_EXPERTS_ROWS, ChooseExpertsArgs, Format, GatherPairsArgs,
    GemvArgs, MatmulArgs, MatmulExpertsArgs, MatmulGatedExpertsArgs, PlaceExpertsArgs,
};
use crate::launch::catalog::{
    ADD_EXPERTS, CHOOSE_EXPERTS, GATHER_PAIRS, MATMUL_EXPERTS, MATMUL_GATED_EXPERTS, ONCE, PLACE_EXPERTS, Variant,
};
use crate::launch::launcher::Launcher;
use crate::weights::staging::STAGED_ROWS;
use crate::{DeviceBuffer, DeviceSlice, GpuBackend};

/// Inputs or outputs of `gemv` over pairs.
#[derive(Clone, Copy)]
struct Rows<'b> {
    memory: DeviceSlice<'b>,
    stride: usize,
    /// Number of pairs that share one of these rows.
    share: usize,
}

/// Products of pairs, each with the matrix of its expert.
#[derive(Clone, Copy)]
struct PairProducts<'b> {
    matrix: &'b ExpertMatrix,
    /// A second matrix per expert. The outputs are then the activation of both products.
    up: Option<(&'b ExpertMatrix, Activation)>,
    x: Rows<'b>,
    /// Weights of a fused RMSNorm of the rows.
    norm: Option<DeviceSlice<'b>>,
    eps: f32,
    pairs: usize,
    /// The expert's number, per pair.
    experts: DeviceSlice<'b>,
    out: Rows<'b>,
}

/// Products of `runs` runs of `run` rows, each with the matrix of its expert.
struct RunProducts<'b> {
    matrix: &'b ExpertMatrix,
    /// In the format of the matrix units.
    x: DeviceSlice<'b>,
    out: DeviceSlice<'b>,
    /// Columns between the starts of consecutive rows of `out`.
    out_stride: usize,
    run: u32,
    runs: usize,
    /// The expert's number, per run.
    experts: DeviceSlice<'b>,
}

/// Input of the experts: rows, or the norm of a single row.
struct Input<'b> {
    x: &'b Buffer,
    /// Rows that the router reads.
    routed: &'b Buffer,
    norm: Norm<'b>,
    rows: usize,
    /// Slots of the rows in the KV cache, if some rows are padding.
    slot_mapping: Option<DeviceSlice<'b>>,
}

/// The output of the sum over a row's experts.
#[derive(Clone, Copy)]
struct Sum<'b> {
    memory: DeviceSlice<'b>,
    /// True if the sum is added to the present values.
    add: bool,
}

/// Rows of pairs to add up, `used` per row.
struct RowSum<'b> {
    /// The expert of each pair, and the slots of experts, if pairs without a slot are left out.
    cached: Option<[DeviceSlice<'b>; 2]>,
    values: DeviceSlice<'b>,
    /// `None`: all weights are 1.
    weights: Option<DeviceSlice<'b>>,
    /// `None`: the pairs are in order.
    places: Option<DeviceSlice<'b>>,
    used: usize,
}

impl Compute {
    /// Computes `out = experts(x)`, or adds that to `out`.
    pub(super) fn experts(
        &mut self,
        args: MixExperts<'_, GpuBackend>,
        slot_mapping: Option<DeviceSlice<'_>>,
    ) -> Result<()> {
        let MixExperts { x, routed, experts, rows, work, out, add } = args;
        let (what, hidden) = ("the experts' output", experts.spec.hidden_size);
        let memory = match add {
            true => out.read_f32(what, rows, hidden)?,
            false => out.write(what, rows, hidden, Format::F32)?,
        };
        let input = Input { x, routed: routed.unwrap_or(x), norm: None, rows, slot_mapping };
        self.mix_experts(input, experts, work, Sum { memory, add })
    }

    /// Computes `residual += experts(n(residual))`, where n is the norm.
    pub(super) fn norm_experts(
        &mut self,
        args: NormExperts<'_, GpuBackend>,
        slot_mapping: Option<DeviceSlice<'_>>,
    ) -> Result<()> {
        let NormExperts { norm, experts, rows, normed, work, residual } = args;
        let hidden = experts.spec.hidden_size;
        let out = Sum { memory: residual.read_f32("the experts' residual", rows, hidden)?, add: true };
        // For a single row the norm is fused into the `gemv` of the router and of the experts, if it supports the norm.
        let takes_norm = is_plain(Some(norm)) && !experts.spec.weighs_inputs && experts.on_cpu.is_none();
        if rows <= self.launcher().tuning().gemv.most_rows && takes_norm {
            let input = Input { x: residual, routed: residual, norm: Some(norm), rows, slot_mapping };
            return self.mix_experts(input, experts, work, out);
        }
        self.launcher().norm_rows(residual, Some(norm), rows, hidden, normed, Format::F32)?;
        let input = Input { x: normed, routed: normed, norm: None, rows, slot_mapping };
        self.mix_experts(input, experts, work, out)
    }

    fn mix_experts(
        &mut self,
        Input { x, routed, norm, rows, slot_mapping }: Input<'_>,
        experts: &Experts,
        work: &mut ExpertWork,
        out: Sum<'_>,
    ) -> Result<()> {
        let spec = experts.spec;
        let hidden = spec.hidden_size;
        if rows == 0 {
            return Ok(());
        }
        let choice = Linear { x: routed, matrix: &experts.router, rows, out: &mut work.logits, add: false };
        self.linear(choice, norm, Format::F32)?;
        let copies = self.copies_experts(experts, rows);
        // Other steps do not read the cache.
        let uses = experts.uses.as_ref().filter(|_| rows < STAGED_ROWS && !copies);
        self.launcher().choose(experts, rows, (uses, slot_mapping), work)?;
        let input = x.read_f32("the experts' input", rows, hidden)?;
        let Some(layer) = experts.on_cpu.filter(|_| !copies) else {
            return self.products_of_device(input, norm, experts, rows, work, (out, false));
        };
        self.send_to_cpu(experts, layer, input, rows, work)?;
        // The device computes experts in the cache meanwhile.
        let is_beside = experts.slots_beside_cpu().is_some();
        if is_beside {
            self.products_of_device(input, norm, experts, rows, work, (out, true))?;
            self.join_host()?;
        }
        self.add_sums_of_cpu(rows, work, Sum { add: out.add || is_beside, ..out })
    }

    /// Computes the chosen experts on the device. With `is_beside_cpu`, only those with a slot in the cache.
    fn products_of_device(
        &mut self,
        input: DeviceSlice<'_>,
        norm: Norm<'_>,
        experts: &Experts,
        rows: usize,
        work: &mut ExpertWork,
        (out, is_beside_cpu): (Sum<'_>, bool),
    ) -> Result<()> {
        let spec = experts.spec;
        let hidden = spec.hidden_size;
        let launcher = self.launcher();
        let run = launcher.tuning().expert_run(rows, spec.used, spec.num);
        let mut x = input;
        // A second handle of the same memory.
        let weighed = work.weighed.clone();
        if let Some(weighed) = &weighed {
            let sum = RowSum { cached: None, values: x, weights: Some(work.weights.slice()), places: None, used: 1 };
            launcher.add_experts(&sum, rows, hidden, Sum { memory: weighed.slice(), add: false })?;
            x = weighed.slice();
        }
        let places = match (run, experts.formats()) {
            (Some(run), Some(formats)) => {
                self.products_of_runs(experts, x, rows, run, formats, work)?;
                Some(work.places.slice())
            }
            _ => {
                let (norm, eps) = gemv_norm(norm, hidden)?;
                self.products_of_pairs(experts, x, norm, eps, rows, work)?;
                None
            }
        };
        let weights = (!spec.weighs_inputs).then(|| work.weights.slice());
        let slots = experts.slots_beside_cpu();
        let cached = slots.map(|slots| [work.experts.slice(), slots]).filter(|_| is_beside_cpu);
        let sum = RowSum { cached, values: work.values.memory(), weights, places, used: spec.used };
        self.launcher().add_experts(&sum, rows, hidden, out)
    }
}

impl Launcher {
    /// Computes `out[r]`, the weighted sum over the pairs of row `r`.
    fn add_experts(&self, sum: &RowSum<'_>, rows: usize, cols: usize, out: Sum<'_>) -> Result<()> {
        let [experts, slots] = [0, 1].map(|index| sum.cached.map(|of_pairs| of_pairs[index]));
        let args = AddExpertsArgs {
            experts: experts.into(),
            slots: slots.into(),
            values: sum.values.ptr(),
            weights: sum.weights.into(),
            places: sum.places.into(),
            out: out.memory.ptr(),
            cols: count(cols)?,
            used: count(sum.used)?,
            add: u32::from(out.add),
        };
        let grid = [count(rows)?, count(cols.div_ceil(ADD_EXPERTS_COLS as usize))?, 1];
        // SAFETY: see `ops`.
        unsafe { self.launch(ADD_EXPERTS, ONCE, grid, &args) }
    }

    fn choose(
        &self,
        experts: &Experts,
        rows: usize,
        (uses, slot_mapping): (Option<&Uses>, Option<DeviceSlice<'_>>),
        work: &ExpertWork,
    ) -> Result<()> {
        let spec = &experts.spec;
        let args = ChooseExpertsArgs {
            logits: work.logits.memory().ptr(),
            bias: experts.choice_bias.as_ref().map(DeviceBuffer::slice).into(),
            factors: experts.output_scales.as_ref().map(DeviceBuffer::slice).into(),
            experts: work.experts.ptr(),
            weights: work.weights.ptr(),
            rows: count(rows)?,
            num: count(spec.num)?,
            used: count(spec.used)?,
            gating: spec.gating.into(),
            groups: spec.groups.map_or(Ok(0), |groups| count(groups.num))?,
            used_groups: spec.groups.map_or(Ok(0), |groups| count(groups.used))?,
            normalize: u32::from(spec.normalize),
            scale: spec.scale,
            uses: uses.map(|uses| uses.counts.slice()).into(),
            hits: uses.map(|uses| uses.hits.slice()).into(),
            slots: uses.map(|uses| uses.slots.slice()).into(),
            slot_mapping: slot_mapping.into(),
        };
        let blocks = count(rows.div_ceil(CHOOSE_EXPERTS_ROWS as usize))?;
        // SAFETY: see `ops`; the loader checked the numbers of experts against the kernel's.
        unsafe { self.launch(CHOOSE_EXPERTS, ONCE, [blocks, 1, 1], &args) }
    }

    /// Computes `out`, the activation of the products of gate and up, or of up alone.
    fn activation_of(
        &self,
        experts: &Experts,
        products: DeviceSlice<'_>,
        out: DeviceSlice<'_>,
        rows: usize,
        format_out: Format,
    ) -> Result<()> {
        let ExpertSpec { ffn_size: cols, activation, gate, .. } = experts.spec;
        let products = Gated { activation, gate_up: products, out, rows, cols, format_in: Format::F32, format_out };
        if gate { self.gated_activation(&products) } else { self.activation(&products) }
    }

    fn gemv_of_pairs(&self, products: &PairProducts<'_>) -> Result<()> {
        let &PairProducts { matrix, up, x, norm, eps, pairs, experts, out } = products;
        let grid_x = self.tuning().expert_gemv_blocks(matrix.rows, pairs, self.multiprocessors());
        let args = GemvArgs {
            weights: matrix.tiles()?.ptr(),
            weights_up: up.map(|(up, _)| up.tiles()).transpose()?.into(),
            x: x.memory.ptr(),
            norm: norm.into(),
            bias: matrix.bias().into(),
            bias_up: up.and_then(|(up, _)| up.bias()).into(),
            out: out.memory.ptr(),
            // The kernel before this one writes only valid expert numbers.
            experts: experts.ptr(),
            expert_bytes: matrix.expert_bytes(),
            out_rows: count(matrix.rows)?,
            cols: count(matrix.cols)?,
            rows: count(pairs)?,
            x_stride: count(x.stride)?,
            out_stride: count(out.stride)?,
            flags: 0,
            activation: up.map_or(ActivationCode::SILU, |(_, activation)| activation.into()),
            grid_x,
            eps,
            share: count(x.share)?,
            cached: Cached::args(matrix.cached.as_ref(), up.and_then(|(up, _)| up.cached.as_ref())),
        };
        self.launch_gemv(matrix.ty, GemvRows { x: x.memory, out: out.memory, experts: Some(experts) }, &args)
    }
}

impl Compute {
    /// Multiplies each pair separately. The results are in the order of the pairs.
    fn products_of_pairs(
        &mut self,
        experts: &Experts,
        x: DeviceSlice<'_>,
        norm: Option<DeviceSlice<'_>>,
        eps: f32,
        rows: usize,
        work: &mut ExpertWork,
    ) -> Result<()> {
        let ExpertSpec { used, hidden_size: hidden, ffn_size: ffn, activation, .. } = experts.spec;
        let (pairs, product_cols) = (rows * used, experts.spec.product_cols());
        let gated = work.gated.write("the experts' activation", pairs, ffn, Format::F32)?;
        let values = work.values.write("the experts' output", pairs, hidden, Format::F32)?;
        let x = Rows { memory: x, stride: hidden, share: used };
        let up = &experts.up;
        let numbers = work.experts.slice();
        let gated_rows = Rows { memory: gated, stride: ffn, share: 1 };
        let base = PairProducts { matrix: up, up: None, x, norm: None, eps, pairs, experts: numbers, out: gated_rows };
        if let Some(gate) = experts.gate.as_ref().filter(|gate| gate.ty == up.ty) {
            let [gate_copy, up_copy] = [self.staged_experts(gate, rows)?, self.staged_experts(up, rows)?];
            let (gate, up) = (gate_copy.as_ref().unwrap_or(gate), up_copy.as_ref().unwrap_or(up));
            let up = Some((up, activation));
            self.launcher().gemv_of_pairs(&PairProducts { matrix: gate, up, norm, ..base })?;
            self.release_staged()?;
        } else {
            let products = work.gate_up.write("the experts' products", pairs, product_cols, Format::F32)?;
            for (matrix, first) in experts.wide_matrices() {
                let out = Rows { memory: products.after(4 * first as u64)?, stride: product_cols, share: 1 };
                let copy = self.staged_experts(matrix, rows)?;
                let matrix = copy.as_ref().unwrap_or(matrix);
                self.launcher().gemv_of_pairs(&PairProducts { matrix, norm, out, ..base })?;
                self.release_staged()?;
            }
            self.launcher().activation_of(experts, products, gated, pairs, Format::F32)?;
        }
        let out = Rows { memory: values, stride: hidden, share: 1 };
        let copy = self.staged_experts(&experts.down, rows)?;
        let matrix = copy.as_ref().unwrap_or(&experts.down);
        self.launcher().gemv_of_pairs(&PairProducts { matrix, x: gated_rows, out, ..base })?;
        self.release_staged()
    }

    /// Multiplies runs of `run` pairs of one expert on the matrix units. The results are at the pairs' places.
    fn products_of_runs(
        &mut self,
        experts: &Experts,
        x: DeviceSlice<'_>,
        rows: usize,
        run: u32,
        [format_in, format_down]: [Format; 2],
        work: &mut ExpertWork,
    ) -> Result<()> {
        let ExpertSpec { num, used, hidden_size: hidden, ffn_size: ffn, activation, .. } = experts.spec;
        let pairs = rows * used;
        let runs = most_runs(pairs, num, run as usize);
        let places = runs * run as usize;
        let args = PlaceExpertsArgs {
            experts: work.experts.ptr(),
            places: work.places.ptr(),
            rows: work.rows_of_places.ptr(),
            run_experts: work.run_experts.ptr(),
            pairs: count(pairs)?,
            used: count(used)?,
            runs: count(runs)?,
            run,
        };
        // SAFETY: see `ops`; `most_runs` is what the pairs may need, and there is room for it.
        unsafe { self.launcher().launch(PLACE_EXPERTS, ONCE, [1, 1, 1], &args)? };
        let args = GatherPairsArgs {
            x: x.ptr(),
            rows: work.rows_of_places.ptr(),
            out: work.values.write("the experts' inputs", places, hidden, format_in)?.ptr(),
            cols: count(hidden)?,
            format_out: format_in,
        };
        // SAFETY: see `ops`; runs are of 16 places and more.
        unsafe { self.launcher().launch(GATHER_PAIRS, ONCE, [count(places)? / 8, 1, 1], &args)? };

        // Places without a pair are computed too, from stale values, and never read.
        let numbers = work.run_experts.slice();
        let x = work.values.memory();
        let gated = work.gated.write("the experts' activation", places, ffn, format_down)?;
        if let Some(gate) = experts.gate.as_ref().filter(|gate| gate.ty == experts.up.ty) {
            let [gate_copy, up_copy] = [self.staged_experts(gate, rows)?, self.staged_experts(&experts.up, rows)?];
            let (matrix, up) = (gate_copy.as_ref().unwrap_or(gate), up_copy.as_ref().unwrap_or(&experts.up));
            let of_gate = RunProducts { matrix, x, out: gated, out_stride: ffn, run, runs, experts: numbers };
            self.gated_matmul_of_runs(&of_gate, up, activation, format_down)?;
            self.release_staged()?;
        } else {
            let out_stride = experts.spec.product_cols();
            let products = work.gate_up.write("the experts' products", places, out_stride, Format::F32)?;
            for (matrix, first) in experts.wide_matrices() {
                let out = products.after(4 * first as u64)?;
                let copy = self.staged_experts(matrix, rows)?;
                let matrix = copy.as_ref().unwrap_or(matrix);
                self.matmul_of_runs(&RunProducts { matrix, x, out, out_stride, run, runs, experts: numbers })?;
                self.release_staged()?;
            }
            self.launcher().activation_of(experts, products, gated, places, format_down)?;
        }
        let values = work.values.write("the experts' outputs", places, hidden, Format::F32)?;
        let copy = self.staged_experts(&experts.down, rows)?;
        self.matmul_of_runs(&RunProducts {
            matrix: copy.as_ref().unwrap_or(&experts.down),
            x: gated,
            out: values,
            out_stride: hidden,
            run,
            runs,
            experts: numbers,
        })?;
        self.release_staged()
    }

    fn matmul_of_runs(&self, products: &RunProducts<'_>) -> Result<()> {
        let args = self.run_args(products, None)?;
        let (launcher, &RunProducts { matrix, run, .. }) = (self.launcher(), products);
        let plan = launcher.tuning().expert_matmul(run, args.product.rows, args.product.out_rows);
        // SAFETY: see `ops`; each run is one of an expert that there is, or of none.
        unsafe { launcher.launch(MATMUL_EXPERTS, Variant::with_rows(matrix.ty, run), plan.grid, &args) }
    }

    /// Stores the activation of the products with gate, which `products` describes, and with `up`.
    fn gated_matmul_of_runs(
        &self,
        products: &RunProducts<'_>,
        up: &ExpertMatrix,
        activation: Activation,
        format_out: Format,
    ) -> Result<()> {
        let args = MatmulGatedExpertsArgs {
            gate: self.run_args(products, up.cached.as_ref())?,
            weights_up: up.tiles()?.ptr(),
            bias_up: up.bias().into(),
            activation: activation.into(),
            format_out,
        };
        let (launcher, &RunProducts { matrix, run, .. }) = (self.launcher(), products);
        let plan = launcher.tuning().expert_gated_matmul(run, args.gate.product.rows, args.gate.product.out_rows);
        // SAFETY: see `ops`; each run is one of an expert that there is, or of none.
        unsafe { launcher.launch(MATMUL_GATED_EXPERTS, Variant::with_rows(matrix.ty, run), plan.grid, &args) }
    }

    /// `up` is the cache of a second matrix.
    fn run_args(&self, products: &RunProducts<'_>, up: Option<&Cached>) -> Result<MatmulExpertsArgs> {
        let &RunProducts { matrix, x, out, out_stride, run, runs, experts } = products;
        let workspace = self.workspace();
        let product = MatmulArgs {
            weights: matrix.tiles()?.ptr(),
            x: x.ptr(),
            bias: matrix.bias().into(),
            out: out.ptr(),
            partial: workspace.partial().ptr(),
            counters: workspace.counters().ptr(),
            out_rows: count(matrix.rows)?,
            cols: count(matrix.cols)?,
            rows: count(runs * run as usize)?,
            out_stride: count(out_stride)?,
            splits: 1,
            flags: 0,
        };
        let cached = Cached::args(matrix.cached.as_ref(), up);
        Ok(MatmulExpertsArgs { product, experts: experts.ptr(), expert_bytes: matrix.expert_bytes(), cached })
    }
}

/// Returns the most runs that `pairs` pairs may need: an expert with any pairs fills all of its runs but the last.
pub(crate) fn most_runs(pairs: usize, num_experts: usize, run: usize) -> usize {
    (pairs + pairs.min(num_experts) * (run - 1)) / run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_suffice_for_every_distribution() {
        for pairs in 1..200usize {
            for experts in [1, 2, 7, 64] {
                for run in [16, 64] {
                    let most = most_runs(pairs, experts, run);
                    // In the worst case as many experts as possible have one pair more than fills their runs.
                    let rest = pairs.saturating_sub(experts.min(pairs));
                    let worst = experts.min(pairs) + rest / run;
                    assert!(most >= worst && most <= pairs, "{pairs} {experts} {run}: {most}, {worst}");
                }
            }
        }
    }
}
