//! The tensor directory: names, shapes, types and offsets, all checked against the file before anything is read.

use super::cursor::Cursor;
use crate::Result;
use crate::quant::GgmlType;

/// The specification's limits.
const MAX_NAME_BYTES: usize = 64;
const MAX_DIMS: u32 = 4;
/// The smallest entry: length of the name, one byte of it, number of dimensions, one of them, type, offset.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// One entry of the tensor directory.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub name: String,
    /// GGUF order: `shape[0]` varies fastest. 1 to 4 dimensions, none zero.
    pub shape: Vec<u64>,
    pub ggml_type: GgmlType,
    pub num_bytes: usize,
    /// The index of the split model's file that holds the data, and the data's offset in that file.
    pub(crate) shard: usize,
    pub(crate) offset: usize,
}

impl TensorInfo {
    /// Returns the elements per row (`shape[0]`) and the number of rows (the product of the rest).
    pub(super) fn cols_and_rows(&self) -> (usize, usize) {
        // The product of all dimensions is known to fit in a usize.
        (self.shape[0] as usize, self.shape[1..].iter().product::<u64>() as usize)
    }
}

/// Reads `count` entries and locates them in the data section, which starts at the next multiple of `alignment`.
pub(super) fn parse(cursor: &mut Cursor, count: u64, alignment: u32, shard: usize) -> Result<Vec<TensorInfo>> {
    let count = cursor.check_count(count, MIN_ENTRY_BYTES, &"header", "tensors")?;
    let mut tensors = Vec::with_capacity(count);
    let mut relative_offsets = Vec::with_capacity(count);
    for i in 0..count {
        let (tensor, relative) = parse_entry(cursor, i, shard)?;
        tensors.push(tensor);
        relative_offsets.push(relative);
    }
    let data_start = (cursor.position() as u64).next_multiple_of(u64::from(alignment));
    for (tensor, relative) in tensors.iter_mut().zip(relative_offsets) {
        place(cursor, tensor, data_start, relative, alignment)?;
    }
    check_overlaps(cursor, &tensors)?;
    Ok(tensors)
}

/// Reads one entry, not yet located, and its offset within the data section.
fn parse_entry(cursor: &mut Cursor, index: usize, shard: usize) -> Result<(TensorInfo, u64)> {
    let number = format!("tensor number {index}");
    let name = cursor.str(&number, "the name")?;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        let len = name.len();
        return Err(cursor.error(number, format!("the name has {len} bytes, expected 1 to {MAX_NAME_BYTES}")));
    }
    let num_dims = cursor.u32(&name, "the number of dimensions")?;
    if !(1..=MAX_DIMS).contains(&num_dims) {
        return Err(cursor.error(name, format!("{num_dims} dimensions, expected 1 to {MAX_DIMS}")));
    }
    let shape = cursor.numbers(u64::from(num_dims), &name, u64::from_le_bytes)?;
    let id = cursor.u32(&name, "the type")?;
    let ggml_type = GgmlType::from_id(id).ok_or_else(|| {
        let why = if GgmlType::is_removed_id(id) { "was removed from the format" } else { "is not known" };
        cursor.error(name, format!("tensor type {id} {why}"))
    })?;
    let num_bytes = num_bytes(cursor, name, &shape, ggml_type)?;
    let relative = cursor.u64(&name, "the offset")?;
    Ok((TensorInfo { name: name.to_owned(), shape, ggml_type, num_bytes, shard, offset: 0 }, relative))
}

fn num_bytes(cursor: &Cursor, name: &str, shape: &[u64], ggml_type: GgmlType) -> Result<usize> {
    if shape.contains(&0) {
        return Err(cursor.error(name, format!("shape {shape:?} has a dimension of zero")));
    }
    let too_large = || cursor.error(name, format!("shape {shape:?} is larger than any file"));
    let elements = shape.iter().try_fold(1, |product: usize, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    let elements = elements.ok_or_else(too_large)?;
    let block = ggml_type.block_elements();
    if !shape[0].is_multiple_of(block as u64) {
        let name_of_type = ggml_type.name();
        let problem = format!("rows of {} elements are not whole {name_of_type} blocks of {block}", shape[0]);
        return Err(cursor.error(name, problem));
    }
    // If each row has whole blocks, all of them together do.
    ggml_type.row_bytes(elements).ok_or_else(too_large)
}

fn place(cursor: &Cursor, tensor: &mut TensorInfo, data_start: u64, relative: u64, alignment: u32) -> Result<()> {
    if !relative.is_multiple_of(u64::from(alignment)) {
        let problem = format!("offset {relative} is not a multiple of the alignment {alignment}");
        return Err(cursor.error(&tensor.name, problem));
    }
    let file_len = cursor.file_len();
    let start = data_start.checked_add(relative).and_then(|start| usize::try_from(start).ok());
    let inside = start.filter(|start| start.checked_add(tensor.num_bytes).is_some_and(|end| end <= file_len));
    tensor.offset = inside.ok_or_else(|| {
        let bytes = tensor.num_bytes;
        let problem = format!(
            "its {bytes} bytes at offset {relative} of the data, which starts at byte {data_start}, end beyond the \
             file's {file_len} bytes. The file was cut short (an incomplete download?) or is damaged"
        );
        cursor.error(&tensor.name, problem)
    })?;
    Ok(())
}

fn check_overlaps(cursor: &Cursor, tensors: &[TensorInfo]) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].num_bytes > pair[1].offset {
            return Err(cursor.error(&pair[1].name, format!("its data overlaps that of {}", pair[0].name)));
        }
    }
    Ok(())
}
