//! Tests every file of the malformed set. `open` rejects those that break the format, with a message that names the
//! fault. Files that break a model's or tokenizer's rules open, and their readers reject them.

use std::collections::BTreeSet;

use super::{assert_rejected, problem, validate_values};
use crate::GgufFile;
use crate::testdata;

/// The file, and a part of the message that names the place and the fault.
const REJECTED: &[(&str, &str)] = &[
    ("empty", "header: the file is empty"),
    ("magic_only", "header: the version needs 4 bytes at byte 4, the file has 0 more"),
    ("magic_swapped", "header: the magic is reversed"),
    ("version_0", "header: version 0 is not known, expected 2 or 3"),
    ("version_99", "header: version 99 is not known, expected 2 or 3"),
    ("version_big_endian", "header: a big-endian file"),
    ("cut_in_counts", "header: the tensor count needs 8 bytes at byte 8, the file has 3 more"),
    ("cut_after_counts", "header: 21 keys announced, but the 0 bytes that follow hold at most 0"),
    ("n_tensors_max", "header: 18446744073709551615 tensors announced"),
    ("n_tensors_1e12", "header: 1000000000000 tensors announced"),
    ("n_kv_1e12", "header: 1000000000000 keys announced"),
    ("n_tensors_plus_1", "tensor number 11: the name has 0 bytes"),
    ("n_kv_minus_1", "tokenizer.chat_template: 8 dimensions, expected 1 to 4"),
    ("cut_in_key_length", "header: 21 keys announced, but the 95 bytes"),
    ("cut_in_value_type", "header: 21 keys announced, but the 117 bytes"),
    ("cut_in_value", "header: 21 keys announced, but the 121 bytes"),
    ("cut_in_array_header", "tokenizer.ggml.scores: the array's count needs 8 bytes"),
    ("cut_in_array", "tokenizer.ggml.scores: 264 array elements announced, but the 401 bytes"),
    ("cut_before_tensor_infos", "header: 11 tensors announced, but the 0 bytes"),
    ("key_length_2_63", "key number 1: the key needs 9223372036854775808 bytes"),
    ("key_length_max", "key number 1: the key needs 18446744073709551615 bytes"),
    ("string_length_1e9", "x.s: the value needs 1000000000 bytes"),
    ("array_count_2_63", "x.a: 9223372036854775808 array elements announced"),
    ("array_count_2_62", "x.a: 4611686018427387904 array elements announced"),
    ("array_string_length", "x.a[1]: the string needs 1099511627776 bytes"),
    ("array_of_array", "x.a: an array of arrays"),
    ("value_type_13", "x.v: value type 13 does not exist"),
    ("value_type_max", "x.v: value type 4294967295 does not exist"),
    ("bool_2", "x.b: a bool stored as 2"),
    ("empty_key", "key number 2: the key is empty"),
    ("key_invalid_utf8", "key number 2: the key is not UTF-8"),
    ("name_invalid_utf8", "general.name: the value is not UTF-8"),
    ("tokens_invalid_utf8", "tokenizer.ggml.tokens[263]: the string is not UTF-8"),
    ("duplicate_key_same", "general.name: the key is there twice"),
    ("alignment_0", "general.alignment: holds u32 0, expected a u32 that is a power of two"),
    ("alignment_48", "general.alignment: holds u32 48, expected a u32 that is a power of two"),
    ("alignment_2_31", "the data, which starts at byte 2147483648, end beyond the file's 43168 bytes"),
    ("cut_in_tensor_name", "header: 11 tensors announced, but the 173 bytes"),
    ("cut_in_dims", "header: 11 tensors announced, but the 197 bytes"),
    ("cut_at_info_end", "token_embd.weight: its 16896 bytes"),
    ("cut_at_data", "token_embd.weight: its 16896 bytes"),
    ("cut_last_64_bytes", "blk.0.ffn_down.weight: its 4096 bytes"),
    ("tensor_name_length_1e9", "tensor number 3: the name needs 1000000000 bytes"),
    ("tensor_name_200", "tensor number 11: the name has 200 bytes, expected 1 to 64"),
    ("tensor_name_invalid_utf8", "tensor number 11: the name is not UTF-8"),
    ("dims_0", "blk.0.attn_q.weight: 0 dimensions, expected 1 to 4"),
    ("dims_5", "x.w: 5 dimensions, expected 1 to 4"),
    ("dim_product_wraps", "blk.0.attn_q.weight: shape [8589934592, 8589934592] is larger than any file"),
    ("dim_product_wraps_zero", "blk.0.attn_q.weight: shape [4294967296, 4294967296] is larger than any file"),
    ("dim_zero", "blk.0.attn_q.weight: shape [32, 0] has a dimension of zero"),
    ("dim_negative", "blk.0.attn_q.weight: shape [32, 18446744073709551615] is larger than any file"),
    ("type_200", "blk.0.attn_q.weight: tensor type 200 is not known"),
    ("type_max", "blk.0.attn_q.weight: tensor type 4294967295 is not known"),
    ("type_removed_4", "blk.0.attn_q.weight: tensor type 4 was removed"),
    ("row_not_whole_blocks", "x.w: rows of 48 elements are not whole Q8_0 blocks of 32"),
    ("offset_wraps", "blk.0.attn_q.weight: its 2048 bytes at offset 18446744073709551584"),
    ("offset_unaligned", "blk.0.attn_q.weight: offset 33 is not a multiple of the alignment 32"),
    ("offset_end_minus_32", "blk.0.attn_q.weight: its 2048 bytes at offset 35680"),
    ("random_damage_0", "key number 0: the key is not UTF-8"),
    ("random_damage_1", "key number 6: the key is not UTF-8"),
    ("random_damage_3", "tokenizer.ggml.tokens[22]: the string is not UTF-8"),
    ("random_damage_4", "tokenizer.ggml.tokens[10]: the string needs 54975581388806 bytes"),
];

/// L1, L4, L11: no malformed file is opened, and no well-formed file is rejected.
#[test]
fn test_malformed_files() {
    let files = testdata::tar("bad_gguf.tar");
    let mut seen = BTreeSet::new();
    for (name, data) in &files {
        let Some(name) = name.strip_suffix(".gguf") else { continue };
        seen.insert(name);
        let file = testdata::temp_file(&format!("{name}.gguf"), data);
        let opened = GgufFile::open(&file.0);
        match REJECTED.iter().find(|(rejected, _)| *rejected == name) {
            Some((_, expected)) => assert_rejected(name, opened, expected),
            None => {
                let opened = opened.unwrap_or_else(|e| panic!("{name} is well-formed, but: {e}"));
                assert!(opened.tensors().iter().all(|t| opened.view(t).data.len() == t.num_bytes), "{name}");
            }
        }
    }
    assert!(seen.len() > 100 && seen.contains("good"), "the archive is not whole");
    for (rejected, _) in REJECTED {
        assert!(seen.contains(rejected), "{rejected} is not in the archive");
    }
}

/// `validate_values` reads all values and finds non-finite ones. `open` reads none.
#[test]
fn test_weights_that_are_not_finite() {
    let expected = [
        ("good.gguf", None),
        ("weights_nan.gguf", Some("token_embd.weight: the value in row 0, column 0 is not finite")),
        ("weights_inf.gguf", Some("blk.0.attn_q.weight: the value in row 0, column 0 is not finite")),
    ];
    let files = testdata::tar("bad_gguf.tar");
    for (name, expected) in expected {
        let (_, data) = files.iter().find(|(n, _)| n == name).unwrap();
        let file = testdata::temp_file(name, data);
        let found = validate_values(&GgufFile::open(&file.0).unwrap());
        assert_eq!(found.err().as_ref().map(problem).as_deref(), expected, "{name}");
    }
}
