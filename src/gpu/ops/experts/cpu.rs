//! The CPU's part of a mixture: its inputs, its call, and its sums.

use super::{RowSum, Sum};
use crate::DeviceSlice;
use crate::backend::ExpertSpec;
use crate::buffer::{ExpertWork, Experts, count};
use crate::compute::Compute;
use crate::host_experts::Exchange;
use crate::launch::args::SendExpertsArgs;
use crate::launch::catalog::{ONCE, SEND_EXPERTS};
use crate::{Error, Result};

impl Compute {
    /// Queues the CPU's call for the chosen experts of layer `layer`, without those that have a slot in the cache.
    pub(super) fn send_to_cpu(
        &mut self,
        experts: &Experts,
        layer: usize,
        x: DeviceSlice<'_>,
        rows: usize,
        work: &ExpertWork,
    ) -> Result<()> {
        let ExpertSpec { used, hidden_size: hidden, .. } = work.spec;
        let (exchange, slots) = (exchange_of(work)?, experts.slots_beside_cpu());
        exchange.check_rows(rows)?;
        let [call, x_out, experts_out, weights_out] = exchange.inputs()?;
        let args = SendExpertsArgs {
            x: x.ptr(),
            experts: work.experts.ptr(),
            weights: work.weights.ptr(),
            slots: slots.into(),
            call: call.ptr(),
            x_out: x_out.ptr(),
            experts_out: experts_out.ptr(),
            weights_out: weights_out.ptr(),
            cols: count(hidden)?,
            used: count(used)?,
            rows: count(rows)?,
            layer: count(layer)?,
            turn: self.host_turn(),
        };
        // SAFETY: see `ops`; there is room for the rows. The backend keeps the exchange until it has waited.
        unsafe {
            self.launcher().launch(SEND_EXPERTS, ONCE, [count(rows)?, 1, 1], &args)?;
            self.launch_host(exchange, slots.is_some())
        }
    }

    /// Adds the sums of the CPU's experts to the output, or writes them there.
    pub(super) fn add_sums_of_cpu(&self, rows: usize, work: &ExpertWork, out: Sum<'_>) -> Result<()> {
        let values = exchange_of(work)?.sums()?;
        let sum = RowSum { cached: None, values, weights: None, places: None, used: 1 };
        self.launcher().add_experts(&sum, rows, work.spec.hidden_size, out)
    }
}

/// Returns the memory that the CPU shares.
fn exchange_of(work: &ExpertWork) -> Result<&Exchange> {
    work.exchange.as_deref().ok_or_else(|| Error::internal("no memory shared with the CPU"))
}
