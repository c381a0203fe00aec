//! The argument structs of Rust and C++ are the same bytes.

use std::fmt::Write;
use std::process::Command;

use crate::backend::hip::args::layouts;

/// G: a field that moved in one of the two languages would be an address where a count belongs.
#[test]
fn sizes_and_offsets_are_those_of_the_cpp_compiler() {
    let mut expected = String::new();
    let mut program = String::from(
        "#include <cstddef>\n#include <cstdio>\nusing u8 = unsigned char;\nusing u16 = unsigned short;\n\
         using u32 = unsigned;\nusing u64 = unsigned long long;\n#include \"args.h\"\nint main() {\n",
    );
    for (name, size, fields) in layouts() {
        writeln!(expected, "{name} {size}").unwrap();
        writeln!(program, "  std::printf(\"{name} %zu\\n\", sizeof({name}));").unwrap();
        for (field, offset) in fields {
            writeln!(expected, "{name}.{field} {offset}").unwrap();
            writeln!(program, "  std::printf(\"{name}.{field} %zu\\n\", offsetof({name}, {field}));").unwrap();
        }
    }
    program.push_str("}\n");
    // Structs that Rust does not know would go unseen.
    let header = include_str!("../../../../kernels/args.h");
    let structs = header.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    assert_eq!(structs.collect::<Vec<_>>(), layouts().iter().map(|(name, ..)| *name).collect::<Vec<_>>());

    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("args.cpp"), folder.path().join("args"));
    std::fs::write(&source, program).unwrap();
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
    let compiled = Command::new("c++").args(["-std=c++17", "-I", kernels, "-o"]).arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else {
        println!("skipped: no C++ compiler (c++)");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
}
