//! Keeps the library loaded after the first dlopen: signal handlers and devices outlive the program part that opened
//! it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
