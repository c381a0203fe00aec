//! Lists the instructions of code objects that the simulator cannot decode:
//! `cargo run -p amdsim --example unsupported -- a.co b.co`
#![allow(clippy::print_stdout)]

use std::error::Error;

use amdsim::CodeObject;

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let object = CodeObject::load(&std::fs::read(&path)?)?;
        for instruction in object.unsupported().map_err(ToString::to_string)? {
            println!("{path} ({}): {instruction}", object.target());
        }
    }
    Ok(())
}
