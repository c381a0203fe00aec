//! Damaged files cause no panic, no access outside the file, and no more memory than a small multiple of the file.

use proptest::prelude::*;

use super::header::Header;
use super::parse;
use crate::quant::GgmlType;
use crate::writer::{Tensor, Writer};
use crate::{Array, Value};

/// Returns a small file with every kind of content.
fn sample() -> Vec<u8> {
    let tokens = (0..20).map(|i| format!("token {i}")).collect();
    Writer::new()
        .key("general.architecture", &Value::String("llama".to_owned()))
        .key("general.alignment", &Value::U32(32))
        .key("llama.block_count", &Value::U32(2))
        .key("flag", &Value::Bool(true))
        .key("tokens", &Value::Array(Array::String(tokens)))
        .key("scores", &Value::Array(Array::F32(vec![0.5; 20])))
        .key("bools", &Value::Array(Array::Bool(vec![true; 9])))
        .key("wide", &Value::Array(Array::U64(vec![3; 3])))
        .tensor(Tensor::new("a.weight", &[64, 3], GgmlType::Q4_0, &[1; 108]))
        .tensor(Tensor::ones("b.weight", 5))
        .tensor(Tensor::new("c.weight", &[256, 1, 2], GgmlType::Q6_K, &[2; 420]))
        .bytes()
}

fn heap_bytes(value: &Value) -> usize {
    match value {
        Value::String(v) => v.capacity(),
        Value::Array(Array::U8(v)) => v.capacity(),
        Value::Array(Array::I8(v)) => v.capacity(),
        Value::Array(Array::U16(v)) => v.capacity() * 2,
        Value::Array(Array::I16(v)) => v.capacity() * 2,
        Value::Array(Array::U32(v)) => v.capacity() * 4,
        Value::Array(Array::I32(v)) => v.capacity() * 4,
        Value::Array(Array::F32(v)) => v.capacity() * 4,
        Value::Array(Array::Bool(v)) => v.capacity(),
        Value::Array(Array::U64(v)) => v.capacity() * 8,
        Value::Array(Array::I64(v)) => v.capacity() * 8,
        Value::Array(Array::F64(v)) => v.capacity() * 8,
        Value::Array(Array::String(v)) => {
            v.capacity() * size_of::<String>() + v.iter().map(String::capacity).sum::<usize>()
        }
        _ => 0,
    }
}

/// Checks the invariants of every accepted header.
fn check_accepted(header: &Header, data: &[u8]) {
    let mut places: Vec<_> = header.tensors.iter().map(|t| (t.offset, t.offset + t.num_bytes)).collect();
    places.sort_unstable();
    assert!(places.iter().all(|&(_, end)| end <= data.len()));
    assert!(places.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    for tensor in &header.tensors {
        let (cols, rows) = tensor.cols_and_rows();
        assert_eq!(tensor.ggml_type.row_bytes(cols).map(|row| row * rows), Some(tensor.num_bytes));
    }
    let metadata: usize =
        header.metadata.iter().map(|(key, value)| key.len() + size_of::<(String, Value)>() + heap_bytes(value)).sum();
    assert!(metadata <= 8 * data.len(), "{metadata} bytes of metadata from a file of {}", data.len());
}

/// L4: a file truncated at any byte is an error.
#[test]
fn test_every_truncation_is_an_error() {
    let data = sample();
    check_accepted(&parse(&data).unwrap(), &data);
    for len in 0..data.len() {
        assert!(parse(&data[..len]).is_err(), "cut to {len} of {} bytes", data.len());
    }
}

/// L1: each byte of the header is set to extreme values.
#[test]
fn test_every_byte_at_its_extremes() {
    let data = sample();
    for at in 0..data.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut damaged = data.clone();
            damaged[at] = value;
            if let Ok(header) = parse(&damaged) {
                check_accepted(&header, &damaged);
            }
        }
    }
}

/// Returns 64-bit numbers with many extreme ones: powers of two, and numbers near 0 from both sides.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), (0u32..64).prop_map(|bit| 1 << bit), (0u64..300).prop_map(|n| n.wrapping_sub(150))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// L1, L11: random bytes and random numbers are written at random positions.
    #[test]
    fn prop_damage_is_safe(
        bytes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        numbers in prop::collection::vec((any::<prop::sample::Index>(), number()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut data = sample();
        for (at, byte) in bytes {
            let at = at.index(data.len());
            data[at] = byte;
        }
        for (at, number) in numbers {
            let at = at.index(data.len() - 8);
            data[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        if let Some(cut) = cut {
            data.truncate(cut.index(data.len()));
        }
        if let Ok(header) = parse(&data) {
            check_accepted(&header, &data);
        }
    }

    /// Random data follows a valid magic and version.
    #[test]
    fn prop_noise_is_safe(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let data = [&b"GGUF\x03\0\0\0"[..], &noise].concat();
        if let Ok(header) = parse(&data) {
            check_accepted(&header, &data);
        }
    }
}
