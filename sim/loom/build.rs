//! Has the sources of this crate, and of no other, compiled with loom's primitives in place of the standard library's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
