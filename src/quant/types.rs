//! The table of ggml tensor types.

/// A tensor type that may occur in a file. Ids as in ggml's enum; removed ids have no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)] // ggml's own names
pub enum GgmlType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q8_1,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    Q8_K,
    IQ2_XXS,
    IQ2_XS,
    IQ3_XXS,
    IQ1_S,
    IQ4_NL,
    IQ3_S,
    IQ2_S,
    IQ4_XS,
    I8,
    I16,
    I32,
    I64,
    F64,
    IQ1_M,
    BF16,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
}

impl GgmlType {
    pub fn from_id(id: u32) -> Option<Self> {
        let _ = id;
        todo!("quant")
    }
    pub fn id(self) -> u32 {
        todo!("quant")
    }
    /// ggml's name, e.g. `Q4_K`.
    pub fn name(self) -> &'static str {
        todo!("quant")
    }
    /// Elements per block.
    pub fn block_elements(self) -> usize {
        todo!("quant")
    }
    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        todo!("quant")
    }
    /// Bytes of a row of `elements`; `None` when it is not a whole number of blocks or overflows.
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        let _ = elements;
        todo!("quant")
    }
}
