#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rocmforge_fuzz::tokenizer::check(bytes));
