//! Compiles the sources of this crate only with loom's primitives instead of the standard library's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
