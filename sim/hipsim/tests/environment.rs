//! Tests the environment settings in one test, since the environment and the devices belong to the process.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ptr::null_mut;

use common::{Gpu, compile, ok};
use hipsim::api::{device::*, memory::*, rtc::*};

#[test]
fn variables_choose_devices_order_and_definitions() {
    // No other thread reads the environment here.
    for (name, value) in [
        ("HIPSIM_TARGET", "cpu-wave64,gfx1030"),
        ("HIPSIM_EAGER", "1"),
        ("HIPSIM_MEMORY_MB", "2"),
        ("HIPSIM_DEFINES", "-DGPU_DROP_BARRIER=0 -DANSWER=42"),
    ] {
        unsafe { std::env::set_var(name, value) };
    }
    let mut count = 0;
    ok(unsafe { hipGetDeviceCount(&mut count) });
    assert_eq!(count, 2);
    let gpu = Gpu::new(c"cpu-wave64,gfx1030", 0);
    let (mut free, mut total) = (0, 0);
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    assert_eq!((free, total), (2 << 20, 2 << 20));

    let a = gpu.malloc(4);
    let mut target = [0u8; 4];
    ok(unsafe { hipMemsetD8Async(a, 5, 4, null_mut()) });
    ok(gpu.download(&mut target, a, null_mut()));
    assert_eq!(target, [5; 4], "eager: nothing was synchronized");

    let program = c"#include \"gpu.h\"\nstatic_assert(ANSWER == 42 && GPU_DROP_BARRIER == 0, \"\");";
    compile(program, "cpu-wave64", &[]).unwrap();
    let mut minor = 0;
    assert_eq!(unsafe { hiprtcVersion(&mut 0, &mut minor) }, RtcStatus::SUCCESS);
    assert!(minor > 0, "a changed compiler is another version, for caches");
}
