//! The table of ggml tensor types: ids as in ggml's enum (`ggml.h`), block sizes as in its `ggml-common.h`.

/// Generates the enum and every column of the table, so that one line describes a type completely.
macro_rules! ggml_types {
    ($($name:ident = $id:literal, $elements:literal elements in $bytes:literal bytes;)*) => {
        /// A tensor type that may occur in a file. Removed ids have no entry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)] // ggml's own names
        pub enum GgmlType {
            $($name = $id,)*
        }

        impl GgmlType {
            /// All types, by ascending id.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the type with this id in a tensor directory; `None` for an unknown or removed id.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns ggml's name, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub const fn block_elements(self) -> usize {
                match self {
                    $(Self::$name => $elements,)*
                }
            }

            pub const fn block_bytes(self) -> usize {
                match self {
                    $(Self::$name => $bytes,)*
                }
            }
        }
    };
}

ggml_types! {
    F32     = 0,    1 elements in   4 bytes;
    F16     = 1,    1 elements in   2 bytes;
    Q4_0    = 2,   32 elements in  18 bytes;
    Q4_1    = 3,   32 elements in  20 bytes;
    Q5_0    = 6,   32 elements in  22 bytes;
    Q5_1    = 7,   32 elements in  24 bytes;
    Q8_0    = 8,   32 elements in  34 bytes;
    Q8_1    = 9,   32 elements in  36 bytes;
    Q2_K    = 10, 256 elements in  84 bytes;
    Q3_K    = 11, 256 elements in 110 bytes;
    Q4_K    = 12, 256 elements in 144 bytes;
    Q5_K    = 13, 256 elements in 176 bytes;
    Q6_K    = 14, 256 elements in 210 bytes;
    Q8_K    = 15, 256 elements in 292 bytes;
    IQ2_XXS = 16, 256 elements in  66 bytes;
    IQ2_XS  = 17, 256 elements in  74 bytes;
    IQ3_XXS = 18, 256 elements in  98 bytes;
    IQ1_S   = 19, 256 elements in  50 bytes;
    IQ4_NL  = 20,  32 elements in  18 bytes;
    IQ3_S   = 21, 256 elements in 110 bytes;
    IQ2_S   = 22, 256 elements in  82 bytes;
    IQ4_XS  = 23, 256 elements in 136 bytes;
    I8      = 24,   1 elements in   1 bytes;
    I16     = 25,   1 elements in   2 bytes;
    I32     = 26,   1 elements in   4 bytes;
    I64     = 27,   1 elements in   8 bytes;
    F64     = 28,   1 elements in   8 bytes;
    IQ1_M   = 29, 256 elements in  56 bytes;
    BF16    = 30,   1 elements in   2 bytes;
    TQ1_0   = 34, 256 elements in  54 bytes;
    TQ2_0   = 35, 256 elements in  66 bytes;
    MXFP4   = 39,  32 elements in  17 bytes;
    NVFP4   = 40,  64 elements in  36 bytes;
    Q1_0    = 41, 128 elements in  18 bytes;
    Q2_0    = 42,  64 elements in  18 bytes;
}

impl GgmlType {
    /// Returns the id in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the type with this name (`Q4_K`, in any case); `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }

    /// True if ggml once gave `id` to a type that no longer exists (repacked or abandoned layouts).
    pub const fn is_removed_id(id: u32) -> bool {
        matches!(id, 4 | 5 | 31..=33 | 36..=38)
    }

    /// True if the type holds integers (indices, tables) rather than weights.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Returns the bytes of a row of `elements`; `None` if it is not a whole number of blocks, or overflows.
    pub const fn row_bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }
}
