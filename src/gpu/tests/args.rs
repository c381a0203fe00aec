//! The argument structs of Rust and C++ have the same layout.

use std::fmt::Write;
use std::process::Command;

use crate::config::Platform;
use crate::launch::args::{EmbedArgs, RopeStoreArgs, RotationArgs, constants, layouts};
use crate::testing::devices::skip;
use crate::tuning::ALL;
use crate::{DevicePtr, KernelArgs};

/// Yields the names of a header's constants and of its enums' values, in order.
fn numbers_of(header: &str) -> impl Iterator<Item = &str> {
    let mut in_enum = false;
    let lists = header.lines().filter_map(move |line| {
        let code = line.split_once("//").map_or(line, |(code, _)| code).trim();
        match code.strip_prefix("constexpr u32 ") {
            Some(list) => return list.strip_suffix(';'),
            None if code.starts_with("enum ") => in_enum = true,
            None if code == "};" => in_enum = false,
            None => return in_enum.then_some(code),
        }
        None
    });
    lists.flat_map(|list| list.split(',')).filter_map(|one| Some(one.split_once(" = ")?.0.trim()))
}

/// G: if a field moved in only one of the two languages, an address would be read as a count.
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
    for (name, value) in constants() {
        writeln!(expected, "{name} {value}").unwrap();
        writeln!(program, "  std::printf(\"{name} %u\\n\", {name});").unwrap();
    }
    program.push_str("}\n");
    // The test must also see structs that Rust does not know.
    let of_states = include_str!("../../../kernels/args_states.h");
    let of_attention = include_str!("../../../kernels/args_attention.h");
    let header = include_str!("../../../kernels/args.h")
        .replace("#include \"args_experts.h\"\n", include_str!("../../../kernels/args_experts.h"))
        .replace("#include \"args_attention.h\"\n", of_attention)
        .replace("#include \"args_states.h\"\n", of_states);
    let structs = header.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    assert_eq!(structs.collect::<Vec<_>>(), layouts().iter().map(|(name, ..)| *name).collect::<Vec<_>>());

    // It must also see constants and enum values that Rust does not know, except for a mark that no launch uses.
    let named = numbers_of(&header).filter(|name| *name != "NO_ROW");
    assert_eq!(named.collect::<Vec<_>>(), constants().iter().map(|(name, _)| *name).collect::<Vec<_>>());

    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("args.cpp"), folder.path().join("args"));
    std::fs::write(&source, program).unwrap();
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels");
    let compiled = Command::new("c++").args(["-std=c++17", "-I", kernels, "-o"]).arg(&binary).arg(&source).output();
    let Ok(compiled) = compiled else {
        skip("no C++ compiler (c++)");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&binary).output().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
}

/// Padding between and after the numbers is zero instead of stale stack bytes. AMD's driver copies whole structs, and
/// the stand-in takes words of them for addresses.
#[test]
fn what_lies_between_the_numbers_is_zero() {
    let mut bytes = [0; size_of::<EmbedArgs>()];
    let [table, ones] = [0x0102_0304_0506_0708, u64::MAX].map(DevicePtr::of_bits);
    EmbedArgs { table, token_ids: ones, out: ones, rows: 9, cols: 8, scale: 1.0 }.store(&mut bytes);
    let numbers = [9u32.to_ne_bytes(), 8u32.to_ne_bytes(), 1f32.to_ne_bytes(), [0; 4]].concat();
    let expected = [&0x0102_0304_0506_0708u64.to_ne_bytes()[..], &[0xff; 16], &numbers];
    assert_eq!(bytes, *expected.concat());

    // A nested struct, and four bytes behind the last number.
    let ones = |bytes: &[u8]| bytes.iter().filter(|byte| **byte != 0).count();
    let rotation = RotationArgs {
        slot_mapping: DevicePtr::of_bits(u64::MAX),
        q_norm: DevicePtr::of_bits(u64::MAX),
        k_norm: DevicePtr::of_bits(u64::MAX),
        angles: DevicePtr::of_bits(u64::MAX),
        positions: DevicePtr::of_bits(u64::MAX),
        num_pairs: u32::MAX,
        flags: u32::MAX,
        eps: f32::from_bits(u32::MAX),
        temperature: f32::from_bits(u32::MAX),
        temperature_context: u32::MAX,
        temperature_offset: u32::MAX,
    };
    let args = RopeStoreArgs {
        rotation,
        qkv: DevicePtr::of_bits(u64::MAX),
        k_cache: DevicePtr::of_bits(u64::MAX),
        v_cache: DevicePtr::of_bits(u64::MAX),
        rows: u32::MAX,
        num_heads: u32::MAX,
        num_kv_heads: u32::MAX,
        row_cols: u32::MAX,
        value_dim: u32::MAX,
        head_dim: u32::MAX,
        block_size: u32::MAX,
    };
    let mut bytes = [0; size_of::<RopeStoreArgs>()];
    args.store(&mut bytes);
    assert_eq!((ones(&bytes[..116]), ones(&bytes[116..]), bytes.len()), (116, 0, 120));
}

/// Rust and the kernel agree on the rows per block of the prefill kernel, on either platform.
#[test]
fn rows_of_prefill_are_those_of_the_kernel() {
    let header = include_str!("../../../kernels/attention/attention_prefill.h");
    for (platform, tuning) in ALL {
        let rows = tuning.attention.prefill_rows;
        let declared = match platform {
            Platform::Nvidia => format!("constexpr u32 ATTENTION_PREFILL_ROWS = GPU_NV ? {rows} : "),
            Platform::Amd => format!(" : {rows};"),
        };
        let mut lines = header.lines().filter(|line| line.starts_with("constexpr u32 ATTENTION_PREFILL_ROWS"));
        assert!(lines.any(|line| line.contains(&declared)), "{}", tuning.family);
    }
}
