//! Tests the mappings that a process has for kernel threads. One test only, since others would map at the same time.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CStr;
use std::fs;
use std::ptr::null_mut;

use common::{Gpu, ScaleArgs, ok};
use hipsim::api::stream::*;

const DEVICES: &CStr = c"cpu-wave32,cpu-wave64";

/// Counts the inaccessible single pages: one below every stack.
fn guards() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_guard = |line: &&str| {
        let (range, rest) = line.split_once(' ').unwrap();
        let [start, end] = range.split_once('-').map(|(a, b)| [a, b]).unwrap();
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).unwrap());
        rest.starts_with("---p") && end - start == 4096
    };
    maps.lines().filter(is_guard).count()
}

/// A process may have 65,530 mappings, and hundreds of objects with kernels of 256 threads and more.
#[test]
fn objects_share_the_stacks_of_their_threads() {
    let before = guards();
    for index in [0, 1] {
        let gpu = Gpu::new(DEVICES, index);
        let a = gpu.malloc(4 * 256);
        for options in [&[][..], &["-DGPU_DROP_BARRIER=0"], &["-DGPU_DROP_BARRIER=1"]] {
            // The module stays loaded.
            let (_, function) = gpu.kernel(c"normalize", options);
            let args = ScaleArgs { x: a, out: a, rows: 1, cols: 64, scale: 1.0 };
            ok(gpu.launch(function, [1, 1, 1], 256, &args, null_mut()));
            ok(hipStreamSynchronize(null_mut()));
            let now = guards() - before;
            assert!((256..300).contains(&now), "{now} pages are guarded");
        }
    }
}
