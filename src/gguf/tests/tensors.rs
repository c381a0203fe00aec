//! Malformed and unusual tensor directories, and the views of valid ones.

use super::{assert_rejected, parse, validate_values};
use crate::quant::{GgmlType, dequantize};
use crate::testdata;
use crate::writer::{Tensor, Writer};
use crate::{GgufFile, Value};

/// Returns three small tensors, of which the cases change the second.
fn with_second(change: impl FnOnce(&mut Tensor)) -> Writer {
    let mut second = Tensor::new("second", &[4, 2], GgmlType::F32, &[0; 32]);
    change(&mut second);
    Writer::new().tensor(Tensor::ones("first", 8)).tensor(second).tensor(Tensor::ones("third", 4))
}

fn changed(change: impl FnOnce(&mut Tensor)) -> crate::Result<super::Header> {
    parse(&with_second(change).bytes())
}

#[test]
fn test_tensor_cases() {
    changed(|_| ()).unwrap();
    let long = |len: usize| changed(move |t| t.name = vec![b'n'; len]);
    long(64).unwrap();
    assert_rejected("TENSORS_BAD_NAME_SIZE", long(65), "tensor number 1: the name has 65 bytes, expected 1 to 64");
    assert_rejected("TENSORS_EMPTY_NAME", long(0), "tensor number 1: the name has 0 bytes");
    changed(|t| t.shape = vec![2, 2, 1, 2]).unwrap();
    assert_rejected("TENSORS_BAD_N_DIMS", changed(|t| t.shape = vec![1; 5]), "second: 5 dimensions, expected 1 to 4");
    assert_rejected("TENSORS_NO_DIMS", changed(|t| t.shape = vec![]), "second: 0 dimensions");
    assert_rejected("TENSORS_BAD_SHAPE", changed(|t| t.shape = vec![u64::MAX, 2]), "is larger than any file");
    assert_rejected(
        "TENSORS_ZERO_DIM",
        changed(|t| t.shape = vec![4, 0]),
        "second: shape [4, 0] has a dimension of zero",
    );
    assert_rejected("TENSORS_ZERO_DIM_OF_HUGE", changed(|t| t.shape = vec![u64::MAX, 0]), "has a dimension of zero");
    let unknown = |id| changed(move |t| t.type_id = id);
    assert_rejected("TENSORS_BAD_TYPE", unknown(43), "second: tensor type 43 is not known");
    assert_rejected("TENSORS_NEGATIVE_TYPE", unknown(u32::MAX), "second: tensor type 4294967295 is not known");
    for removed in [4, 5, 31, 32, 33, 36, 37, 38] {
        assert_rejected("TENSORS_REMOVED_TYPE", unknown(removed), "was removed from the format");
    }
    assert_rejected("TENSORS_BAD_OFFSET", changed(|t| t.offset = Some(33)), "second: offset 33 is not a multiple");
    assert_rejected("TENSORS_OVERLAP", changed(|t| t.offset = Some(0)), "second: its data overlaps that of first");
    let same_name = changed(|t| t.name = b"first".to_vec());
    assert_eq!(same_name.unwrap().tensors.len(), 3, "names are unique over all parts, which `open` checks");
    let file = testdata::temp_file("twice.gguf", &with_second(|t| t.name = b"first".to_vec()).bytes());
    assert_rejected("TENSORS_DUPLICATE_NAME", GgufFile::open(&file.0), "first: the tensor is there twice");
}

/// L1: no product of dimensions or sizes wraps around.
#[test]
fn test_sizes_that_overflow() {
    let sized = |shape: &[u64], id: u32| changed(|t| (t.shape, t.type_id) = (shape.to_vec(), id));
    let wraps: [&[u64]; 4] = [&[1 << 32, 1 << 32], &[1 << 16; 4], &[1 << 62, 4], &[u64::MAX, u64::MAX, 2, 2]];
    for shape in wraps {
        assert_rejected("TENSORS_NE_TOO_BIG", sized(shape, GgmlType::I8.id()), "is larger than any file");
    }
    assert_rejected("TENSORS_NBYTES_TOO_BIG", sized(&[1 << 62], GgmlType::F64.id()), "is larger than any file");
    let end_wraps = changed(|t| t.offset = Some(u64::MAX - 31));
    assert_rejected("DATA_MEM_SIZE_OVERFLOW", end_wraps, "end beyond the file's");
    let size_wraps = sized(&[u64::MAX >> 1], GgmlType::I8.id());
    assert_rejected("DATA_SIZE_OVERFLOW", size_wraps, "end beyond the file's");
}

/// L11: alignment, offsets and ends are checked against each other and the file.
#[test]
fn test_data_cases() {
    let whole = with_second(|_| ()).bytes();
    assert_rejected("DATA_NOT_ENOUGH_DATA", parse(&whole[..whole.len() - 1]), "third: its 16 bytes");
    parse(&[&whole[..], b"trailing bytes"].concat()).unwrap();
    let shorter = with_second(|t| (t.shape, t.data) = (vec![3], vec![0; 12]));
    let packed = Writer { alignment: 8, ..shorter };
    // The parser's data section starts later than the writer's, so the file needs more room.
    let packed = parse(&[packed.bytes(), vec![0; 32]].concat());
    assert_rejected("TENSORS_BAD_ALIGN", packed, "third: offset 48 is not a multiple of the alignment 32");
    let packed = Writer { alignment: 32, ..with_second(|_| ()) }.key("general.alignment", &Value::U32(64));
    assert_rejected("DATA_INCONSISTENT_ALIGN", parse(&packed.bytes()), "not a multiple of the alignment 64");
    let aligned = Writer { alignment: 64, ..with_second(|_| ()) }.key("general.alignment", &Value::U32(64));
    let header = parse(&aligned.bytes()).unwrap();
    assert!(header.tensors.iter().all(|t| t.offset % 64 == 0));
    let gaps = with_second(|t| t.offset = Some(0));
    let gaps = Writer { tensors: gaps.tensors.into_iter().skip(1).collect(), ..gaps };
    parse(&gaps.bytes()).unwrap();
}

/// Each row must consist of whole blocks, not only all rows together.
#[test]
fn test_rows_of_partial_blocks() {
    let result = changed(|t| (t.shape, t.type_id) = (vec![16, 2], GgmlType::Q8_0.id()));
    assert_rejected("TENSORS_PARTIAL_BLOCKS", result, "second: rows of 16 elements are not whole Q8_0 blocks of 32");
}

/// L13: views work at odd addresses, up to the last byte of the file, with and without trailing bytes.
#[test]
fn test_views_at_odd_offsets() {
    let floats: Vec<u8> = [1.5f32, -2.0, 3.25].iter().flat_map(|v| v.to_le_bytes()).collect();
    for pad in 1..9 {
        for trailing in [0, 1, 5] {
            let writer = Writer { alignment: 1, ..Writer::new() }
                .key("general.alignment", &Value::U32(1))
                .key(&"p".repeat(pad), &Value::U8(0))
                .tensor(Tensor::new("byte", &[1], GgmlType::I8, &[7]))
                .tensor(Tensor::new("floats", &[3], GgmlType::F32, &floats));
            let bytes = [writer.bytes(), vec![0xee; trailing]].concat();
            let path = testdata::temp_file("odd.gguf", &bytes);
            let file = GgufFile::open(&path.0).unwrap();
            let info = file.tensor("floats").unwrap();
            assert_eq!(info.offset + info.num_bytes + trailing, bytes.len());
            let mut got = [0.0; 3];
            dequantize(GgmlType::F32, file.view(info).data, &mut got).unwrap();
            assert_eq!(got, [1.5, -2.0, 3.25]);
            file.release_pages(info);
            assert_eq!(file.view(file.tensor("byte").unwrap()).data, [7]);
        }
    }
}

/// L13: a view never leaves its file.
#[test]
#[should_panic(expected = "range")]
fn test_view_of_another_file() {
    let small = testdata::temp_file("small.gguf", &Writer::new().tensor(Tensor::ones("a", 1)).bytes());
    let large = testdata::temp_file("large.gguf", &Writer::new().tensor(Tensor::ones("a", 100)).bytes());
    let (small, large) = (GgufFile::open(&small.0).unwrap(), GgufFile::open(&large.0).unwrap());
    small.view(&large.tensors()[0]);
}

/// The scan checks every element of every float type, in any row.
#[test]
fn test_scan_finds_the_element() {
    let scan = |tensor: Tensor| {
        let path = testdata::temp_file("scan.gguf", &Writer::new().tensor(tensor).bytes());
        validate_values(&GgufFile::open(&path.0).unwrap())
    };
    let (rows, cols) = (50, 200);
    for (bad, row, col) in [(f32::NAN, 0, 199), (f32::INFINITY, 20, 96), (f32::NEG_INFINITY, 49, 199)] {
        let mut values = vec![1f32; rows * cols];
        values[row * cols + col] = bad;
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = Tensor::new("w", &[cols as u64, rows as u64], GgmlType::F32, &data);
        assert_rejected("f32", scan(tensor), &format!("w: the value in row {row}, column {col} is not finite"));
    }
    let mut blocks = [1u8; 34 * 8];
    scan(Tensor::new("w", &[64, 4], GgmlType::Q8_0, &blocks)).unwrap();
    blocks[34 * 5 + 1] = 0x7c;
    let damaged = scan(Tensor::new("w", &[64, 4], GgmlType::Q8_0, &blocks));
    assert_rejected("scale", damaged, "w: the value in row 2, column 32 is not finite");
    let doubles: Vec<u8> = [1.0, f64::NAN].iter().flat_map(|v: &f64| v.to_le_bytes()).collect();
    assert_rejected("f64", scan(Tensor::new("w", &[2], GgmlType::F64, &doubles)), "row 0, column 1");
    scan(Tensor::new("w", &[2], GgmlType::I32, &[0xff; 8])).unwrap();
    let undecodable = scan(Tensor::new("w", &[256], GgmlType::Q8_K, &[0; 292]));
    assert_rejected("no decoder", undecodable, "w: Q8_K has no decoder");
}
