//! Keeps the library loaded once it was opened: signal handlers and devices outlive whoever opened it first.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
