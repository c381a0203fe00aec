//! Publishes the engine thread's state to the other threads.

use super::Core;

impl Core {
    /// Publishes the counters, then sends the outputs: a consumer that sees a request's last output sees its blocks
    /// free.
    pub(crate) fn flush(&mut self) {
        self.publish();
        self.unsent.send();
    }

    /// Publishes the counters. It runs before a step is computed as well as after: a step may take long, and meanwhile
    /// its requests should count as running.
    pub(crate) fn publish(&mut self) {
        self.counters.num_waiting = self.scheduler.num_waiting() + self.num_held();
        self.counters.num_running = self.scheduler.num_running();
        self.counters.num_preemptions = self.scheduler.num_preemptions();
        self.counters.kv_offload = self.offload_stats();
        self.counters.kv_cache = self.shared.kv_cache.read().stats();
        self.counters.expert_cache = self.device.executor().expert_cache();
        self.counters.device_allocations = self.device.executor().device_allocations();
        self.shared.publish(&self.counters, self.requests.take_num_taken());
    }
}
