//! Values of every type, the getters, and malformed keys and values.

use super::{assert_rejected, parse};
use crate::writer::{Writer, array_of, encode};
use crate::{Array, Value};

fn every_value() -> Vec<(&'static str, Value)> {
    let strings = vec![String::new(), "α".to_owned(), "a\0b".to_owned()];
    vec![
        ("u8", Value::U8(u8::MAX)),
        ("i8", Value::I8(i8::MIN)),
        ("u16", Value::U16(u16::MAX)),
        ("i16", Value::I16(i16::MIN)),
        ("u32", Value::U32(u32::MAX)),
        ("i32", Value::I32(i32::MIN)),
        ("f32", Value::F32(-1.5e-40)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("naïve 🦀".to_owned())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(1e300)),
        ("a.u8", Value::Array(Array::U8(vec![0, 255]))),
        ("a.i8", Value::Array(Array::I8(vec![-128, 127]))),
        ("a.u16", Value::Array(Array::U16(vec![1, 65535]))),
        ("a.i16", Value::Array(Array::I16(vec![-1, 2]))),
        ("a.u32", Value::Array(Array::U32(vec![7]))),
        ("a.i32", Value::Array(Array::I32(vec![-7, 7]))),
        ("a.f32", Value::Array(Array::F32(vec![0.1, -0.0]))),
        ("a.bool", Value::Array(Array::Bool(vec![true, false, true]))),
        ("a.string", Value::Array(Array::String(strings))),
        ("a.u64", Value::Array(Array::U64(vec![u64::MAX]))),
        ("a.i64", Value::Array(Array::I64(vec![i64::MIN, i64::MAX]))),
        ("a.f64", Value::Array(Array::F64(vec![2.5]))),
        ("a.empty", Value::Array(Array::F32(vec![]))),
    ]
}

fn every_value_file() -> Writer {
    every_value().iter().fold(Writer::new(), |writer, (key, value)| writer.key(key, value))
}

#[test]
fn test_every_value_type_round_trips() {
    for version in [2, 3] {
        let header = parse(&Writer { version, ..every_value_file() }.bytes()).unwrap();
        assert_eq!(header.version, version);
        let got: Vec<_> = header.metadata.iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(got, every_value());
    }
}

#[test]
fn test_getters() {
    let metadata = parse(&every_value_file().bytes()).unwrap().metadata;
    assert_eq!(metadata.u32("u8").unwrap(), 255);
    assert_eq!(metadata.u32("u16").unwrap(), 65535);
    assert_eq!(metadata.u32("u32").unwrap(), u32::MAX);
    assert_eq!(metadata.f32("f32").unwrap(), -1.5e-40);
    let double = parse(&Writer::new().key("eps", &Value::F64(1e-6)).bytes()).unwrap().metadata;
    assert_eq!(double.f32("eps").unwrap(), 1e-6);
    assert_eq!(metadata.opt_bool("bool").unwrap(), Some(true));
    assert_eq!(metadata.str("string").unwrap(), "naïve 🦀");
    assert_eq!(metadata.strings("a.string").unwrap(), ["", "α", "a\0b"]);
    assert_eq!(metadata.opt_f32s("a.f32").unwrap().unwrap(), [0.1, -0.0]);
    assert_eq!(metadata.opt_ints("a.i8").unwrap().unwrap(), [-128, 127]);
    assert_eq!(metadata.opt_ints("a.u32").unwrap().unwrap(), [7]);
    assert_eq!(metadata.opt_ints("a.i64").unwrap().unwrap(), [i64::MIN, i64::MAX]);
}

/// A wrong type is an error that names the key, its value and the expected type, even for an optional key.
#[test]
fn test_getters_reject_other_types() {
    let metadata = parse(&every_value_file().bytes()).unwrap().metadata;
    let integer = "expected an integer from 0 to 4294967295";
    assert_rejected("negative", metadata.u32("i8"), &format!("i8: holds i8 -128, {integer}"));
    assert_rejected("too large", metadata.opt_u32("u64"), &format!("u64: holds u64 18446744073709551615, {integer}"));
    assert_rejected("float", metadata.u32("f32"), integer);
    assert_rejected("out of range", metadata.f32("f64"), "f64: holds f64 1000");
    assert_rejected("integer", metadata.f32("u32"), "u32: holds u32 4294967295, expected a float");
    assert_rejected("string", metadata.opt_f32("string"), "string: holds string \"naïve 🦀\", expected a float");
    assert_rejected("bool", metadata.str("bool"), "bool: holds bool true, expected a string");
    assert_rejected("not a bool", metadata.opt_bool("u8"), "expected a bool");
    assert_rejected("array", metadata.strings("a.u8"), "a.u8: holds array of 2 u8, expected an array of strings");
    assert_rejected("strings", metadata.opt_f32s("a.string"), "holds array of 3 string, expected an array of f32");
    assert_rejected("wide", metadata.opt_ints("a.u64"), "a.u64: holds array of 1 u64, expected an array of integers");
    assert_rejected("floats", metadata.opt_ints("a.f32"), "expected an array of integers");
}

#[test]
fn test_missing_keys() {
    let metadata = parse(&every_value_file().bytes()).unwrap().metadata;
    assert_rejected("u32", metadata.u32("x.y"), "x.y: the key is missing, expected an unsigned integer");
    assert_rejected("f32", metadata.f32("x.y"), "x.y: the key is missing, expected a float");
    assert_rejected("str", metadata.str("x.y"), "x.y: the key is missing, expected a string");
    assert_rejected("strings", metadata.strings("x.y"), "x.y: the key is missing, expected an array of strings");
    assert_eq!(metadata.opt_u32("x.y").unwrap(), None);
    assert_eq!(metadata.opt_f32("x.y").unwrap(), None);
    assert_eq!(metadata.opt_bool("x.y").unwrap(), None);
    assert_eq!(metadata.opt_str("x.y").unwrap(), None);
    assert_eq!(metadata.opt_strings("x.y").unwrap(), None);
    assert_eq!(metadata.opt_f32s("x.y").unwrap(), None);
    assert_eq!(metadata.opt_ints("x.y").unwrap(), None);
    assert!(metadata.get("x.y").is_none());
}

#[test]
fn test_header_cases() {
    let empty = Writer::new();
    assert!(parse(&empty.bytes()).unwrap().metadata.iter().next().is_none());
    let cases = [
        ("HEADER_BAD_MAGIC", Writer { magic: *b"GGML", ..empty.clone() }, "starts with \"GGML\", expected \"GGUF\""),
        ("HEADER_BAD_VERSION_1", Writer { version: 1, ..empty.clone() }, "version 1 is obsolete"),
        ("HEADER_BAD_VERSION_BIG", Writer { version: 3 << 24, ..empty.clone() }, "big-endian"),
        ("HEADER_BAD_VERSION_FUTURE", Writer { version: 4, ..empty.clone() }, "version 4 is not known"),
        ("HEADER_BAD_N_TENSORS", Writer { num_tensors: Some(1 << 59), ..empty.clone() }, "tensors announced"),
        ("HEADER_BAD_N_KV", Writer { num_keys: Some(1 << 59), ..empty.clone() }, "keys announced"),
    ];
    for (case, writer, expected) in cases {
        assert_rejected(case, parse(&writer.bytes()), expected);
    }
    assert_rejected("HEADER_EMPTY", parse(&[]), "the file is empty");
    assert_rejected("HEADER_SHORT", parse(b"GG"), "the magic \"GGUF\" needs 4 bytes at byte 0, the file has 2 more");
}

#[test]
fn test_key_cases() {
    let one = encode(&Value::U32(1));
    let huge_key = |len: u64| {
        let mut bytes = Writer::new().raw_key(b"key", one.clone()).bytes();
        bytes[24..32].copy_from_slice(&len.to_le_bytes());
        parse(&bytes)
    };
    assert_rejected("KV_BAD_KEY_SIZE", huge_key(1 << 63), "the key needs 9223372036854775808 bytes");
    assert_rejected("KV_KEY_BEYOND_FILE", huge_key(12), "the key needs 12 bytes at byte 32, the file has 11 more");

    let with = |key: &[u8], value: &[u8]| parse(&Writer::new().raw_key(key, value.to_vec()).bytes());
    with(&[b'k'; 65535], &one).unwrap();
    assert_rejected("KV_KEY_TOO_LONG", with(&[b'k'; 65536], &one), "the key has 65536 bytes, more than 65535");
    assert_rejected("KV_EMPTY_KEY", with(b"", &one), "key number 0: the key is empty");
    assert_rejected("KV_BAD_TYPE", with(b"k", &[13, 0, 0, 0, 0]), "k: value type 13 does not exist");
    assert_rejected(
        "KV_ARRAY_BAD_TYPE",
        with(b"k", &[&[9, 0, 0, 0][..], &array_of(13, 0, [])].concat()),
        "element type 13",
    );
    assert_rejected("KV_BOOLS", with(b"k", &[&[9, 0, 0, 0][..], &array_of(7, 3, [0, 1, 2])].concat()), "holds a bool");

    let twice = |second: Value| parse(&Writer::new().key("k", &Value::U32(1)).key("k", &second).bytes());
    assert_rejected("KV_DUPLICATE_KEY", twice(Value::U32(2)), "k: the key is there twice");
    assert_rejected("KV_DUPLICATE_KEY_SAME", twice(Value::U32(1)), "k: the key is there twice");

    let aligned = |value: Value| parse(&Writer::new().key("general.alignment", &value).bytes());
    aligned(Value::U32(1)).unwrap();
    assert_rejected("KV_BAD_ALIGN", aligned(Value::U32(13)), "general.alignment: holds u32 13");
    assert_rejected("KV_ZERO_ALIGN", aligned(Value::U32(0)), "general.alignment: holds u32 0");
    assert_rejected("KV_WRONG_TYPE_ALIGN", aligned(Value::U64(32)), "general.alignment: holds u64 32, expected a u32");
}

/// An error shortens a long string at a character boundary.
#[test]
fn test_long_values_are_shortened() {
    let metadata = parse(&Writer::new().key("k", &Value::String("é".repeat(10_000))).bytes()).unwrap().metadata;
    let error = metadata.u32("k").unwrap_err().to_string();
    assert!(error.contains(&format!("\"{}\"…", "é".repeat(40))) && error.len() < 300, "{error}");
}
