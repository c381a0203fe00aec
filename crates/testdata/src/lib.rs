//! Test support that several crates share: golden data, made by independent implementations (`tests/data/<name>.xz`),
//! and temporary files. No crate has it but as a dev-dependency, and it knows no other crate.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns `tests/data`. A test binary that was copied to another machine runs in a checkout there.
pub fn folder() -> PathBuf {
    let here = PathBuf::from("tests/data");
    if here.is_dir() { here } else { PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data") }
}

/// Returns the names of the golden models with float weights, sorted; every architecture is among them.
pub fn architectures() -> Vec<String> {
    let files = std::fs::read_dir(folder().join("arch")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = files.filter_map(|name| name.to_str()?.strip_suffix(".gguf.xz").map(str::to_owned));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The golden bidirectional models in `embedding`; every architecture is among them.
pub const ENCODERS: [&str; 7] =
    ["bert", "eurobert", "gemma_embedding", "modern_bert", "modern_bert_silu", "nomic_bert", "t5encoder"];

/// Returns the decompressed bytes of `tests/data/<name>.xz`.
pub fn bytes(name: &str) -> Vec<u8> {
    let path = folder().join(format!("{name}.xz"));
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = Vec::new();
    liblzma::read::XzDecoder::new(file).read_to_end(&mut out).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    out
}

pub fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&bytes(name)).unwrap()
}

/// Returns `(name, bytes)` of every member of a tar archive of plain files.
pub fn tar(name: &str) -> Vec<(String, Vec<u8>)> {
    let data = bytes(name);
    let text = |b: &[u8]| String::from_utf8(b.iter().copied().take_while(|&c| c != 0).collect()).unwrap();
    let mut members = Vec::new();
    let mut at = 0;
    while data[at] != 0 {
        let size = usize::from_str_radix(text(&data[at + 124..at + 136]).trim(), 8).unwrap();
        members.push((text(&data[at..at + 100]), data[at + 512..at + 512 + size].to_vec()));
        at += 512 + size.next_multiple_of(512);
    }
    members
}

/// A file on disk that is removed when the value is dropped.
pub struct TempFile(pub PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// Writes `contents` to a new file whose name ends in `name`.
pub fn temp_file(name: &str, contents: &[u8]) -> TempFile {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = format!("rocmforge-{}-{}-{name}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(unique);
    std::fs::write(&path, contents).unwrap();
    TempFile(path)
}

/// Writes `tests/data/<name>.xz`, decompressed, to a temporary file.
pub fn file(name: &str) -> TempFile {
    temp_file(&name.replace('/', "-"), &bytes(name))
}

/// Returns the names of a value's fields, which its debug text indents by four spaces.
pub fn field_names(value: &impl std::fmt::Debug) -> Vec<String> {
    let text = format!("{value:#?}");
    let names = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    names.map(|(name, _)| name.to_owned()).filter(|name| !name.starts_with(' ')).collect()
}

/// A numpy archive of uncompressed little-endian arrays.
pub struct Npz(HashMap<String, (String, Vec<usize>, Vec<u8>)>);

/// Reads `tests/data/<name>.npz.xz`.
pub fn npz(name: &str) -> Npz {
    let data = bytes(&format!("{name}.npz"));
    let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]) as usize;
    let u32_at = |at: usize| u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
    // The central directory has the sizes; numpy's local headers may leave them to zip64 extras.
    let end = (0..=data.len() - 22).rev().find(|&i| data[i..].starts_with(b"PK\x05\x06")).unwrap();
    let mut at = u32_at(end + 16);
    let mut arrays = HashMap::new();
    for _ in 0..u16_at(end + 10) {
        let (size, name_len, local) = (u32_at(at + 24), u16_at(at + 28), u32_at(at + 42));
        let name = std::str::from_utf8(&data[at + 46..at + 46 + name_len]).unwrap().trim_end_matches(".npy");
        let start = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        arrays.insert(name.to_owned(), parse_npy(&data[start..start + size]));
        at += 46 + name_len + u16_at(at + 30) + u16_at(at + 32);
    }
    Npz(arrays)
}

fn parse_npy(npy: &[u8]) -> (String, Vec<usize>, Vec<u8>) {
    assert!(npy.starts_with(b"\x93NUMPY\x01"));
    let header_len = u16::from_le_bytes([npy[8], npy[9]]) as usize;
    let header = std::str::from_utf8(&npy[10..10 + header_len]).unwrap();
    let after = |key: &str| &header[header.find(key).unwrap() + key.len()..];
    let descr = after("'descr': '").split('\'').next().unwrap().to_owned();
    assert!(header.contains("'fortran_order': False"));
    let shape = after("'shape': (").split(')').next().unwrap();
    let shape = shape.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    (descr, shape, npy[10 + header_len..].to_vec())
}

macro_rules! getter {
    ($name:ident, $ty:ty, $descr:literal) => {
        pub fn $name(&self, key: &str) -> Vec<$ty> {
            let (descr, _, data) = &self.0[key];
            assert_eq!(descr, $descr, "{key}");
            data.chunks_exact(size_of::<$ty>()).map(|c| <$ty>::from_le_bytes(c.try_into().unwrap())).collect()
        }
    };
}

impl Npz {
    pub fn shape(&self, key: &str) -> &[usize] {
        &self.0[key].1
    }
    getter!(u8, u8, "|u1");
    getter!(i32, i32, "<i4");
    getter!(f32, f32, "<f4");
    getter!(f64, f64, "<f8");
}

#[test]
fn test_data_is_read() {
    let z = npz("quant/Q4_K");
    assert_eq!(z.shape("values")[1], 512);
    assert_eq!(z.f32("values").len(), z.shape("values").iter().product::<usize>());
    assert_eq!(z.u8("raw").len(), z.shape("raw").iter().product::<usize>());
    let bad = tar("bad_gguf.tar");
    assert!(bad.iter().any(|(name, data)| name == "good.gguf" && data.starts_with(b"GGUF")));
}
