#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weightfs_fuzz::run("journal", bytes));
