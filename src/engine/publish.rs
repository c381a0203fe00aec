//! What the engine thread shows to the other threads.

use super::core::Core;
use super::ids::RequestId;
use super::output::FinishReason;
use super::request::Work;
use super::stats::Stats;
use crate::Error;

impl Core {
    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Publishes the counters, then hands out the outputs: who sees the last output of a request sees its blocks free.
    pub(super) fn flush(&mut self) {
        self.publish();
        self.outputs.send(&mut self.outbox);
    }

    /// Also before a step is computed, which may take long: what it holds is shown while it runs.
    pub(super) fn publish(&mut self) {
        self.counters.num_waiting = self.scheduler.num_waiting();
        self.counters.num_running = self.scheduler.num_running();
        self.counters.num_preemptions = self.scheduler.num_preemptions();
        self.counters.kv_cache = self.shared.kv_cache.read().stats();
        self.counters.device_allocations = self.executor.device_allocations();
        self.shared.publish(&self.counters, std::mem::take(&mut self.num_taken));
    }

    /// Tells the consumer of a request that could not be ended in order.
    pub(super) fn abandon(&mut self, id: RequestId, reason: FinishReason, error: Option<Error>) {
        let Some(mut request) = self.requests.remove(&id) else { return };
        let metrics = request.metrics;
        if let Work::Generate(generation) = &mut request.work {
            for output in generation.end_all(id, reason, error.as_ref(), metrics) {
                self.outbox.push((generation.sink.clone(), output));
            }
        }
        self.retire(request, reason, error, self.shared.clock.now());
    }
}

impl Stats {
    pub(super) fn finished_mut(&mut self, reason: FinishReason) -> &mut u64 {
        match reason {
            FinishReason::Stop => &mut self.num_finished_stop,
            FinishReason::Length => &mut self.num_finished_length,
            FinishReason::Abort => &mut self.num_finished_abort,
            FinishReason::Timeout => &mut self.num_finished_timeout,
            FinishReason::Error => &mut self.num_finished_error,
        }
    }
}
