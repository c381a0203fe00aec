//! The state that the engine thread shows to the other threads.

use super::core::Core;

impl Core {
    /// Publishes the counters, then hands out the outputs: who sees the last output of a request sees its blocks free.
    pub(super) fn flush(&mut self) {
        self.publish();
        self.outputs.send(&mut self.outbox);
    }

    /// Shows the counters to other threads. It runs before a step is computed as well as after, since a step may take
    /// long and its requests are to be seen as running meanwhile.
    pub(super) fn publish(&mut self) {
        self.counters.num_waiting = self.scheduler.num_waiting();
        self.counters.num_running = self.scheduler.num_running();
        self.counters.num_preemptions = self.scheduler.num_preemptions();
        self.counters.kv_cache = self.shared.kv_cache.read().stats();
        self.counters.device_allocations = self.executor.device_allocations();
        self.shared.publish(&self.counters, std::mem::take(&mut self.num_taken));
    }
}
