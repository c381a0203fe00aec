//! Models where a wave has 64 lanes, which takes minutes: `make test` leaves this module out, `make test-kernels` runs
//! it.

use super::{gpu, gpu_feed};
use crate::backend::gpu::tests::devices::{self, CPU_TARGETS};

#[test]
fn golden_logits_cpu_wave64() {
    gpu::check_all(devices::open(CPU_TARGETS[3]));
}

#[test]
fn steps_begin_with_tokens_that_a_wave64_device_chose() {
    gpu_feed::check_feed(devices::open(CPU_TARGETS[3]), &gpu_feed::NAMES, &[1, 2, 5, 8]);
}
