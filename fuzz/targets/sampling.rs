#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rocmforge_fuzz::sampling::check(bytes));
