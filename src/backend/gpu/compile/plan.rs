//! What is compiled: the units of the kernels' sources, and the generic targets. The build
//! script includes this file, so it uses nothing of the crate.

/// The types whose kernels work on the file's own quantised blocks: our name, and ggml's, which kernels/ has too. A new
/// one is a line here, beside its files in kernels/.
macro_rules! with_kernel_types {
    ($then:ident) => {
        $then! {
            F32 F32
            F16 F16
            Bf16 BF16
            Q4_0 Q4_0
            Q4_1 Q4_1
            Q5_0 Q5_0
            Q5_1 Q5_1
            Q8_0 Q8_0
            Q2K Q2_K
            Q3K Q3_K
            Q4K Q4_K
            Q5K Q5_K
            Q6K Q6_K
            Iq4Nl IQ4_NL
            Iq4Xs IQ4_XS
            Mxfp4 MXFP4
        }
    };
}

macro_rules! declare_kernel_types {
    ($($variant:ident $ggml:ident)*) => {
        /// A type with kernels of its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum KernelType {
            $($variant,)*
        }

        impl KernelType {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// ggml's name: what `-DTYPE=` takes. Kernels have it in their names in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($ggml),)*
                }
            }
        }
    };
}

with_kernel_types!(declare_kernel_types);
#[allow(unused_imports)] // the build script needs no more than the enumeration
pub(crate) use with_kernel_types;

impl KernelType {
    /// Types that lie in one stack in common files (the V of every other layer has more bits than Q and K), and whose
    /// products are made in one launch.
    pub const PAIRS: [[Self; 2]; 2] = [[Self::Q4K, Self::Q6K], [Self::Q5K, Self::Q6K]];
}

/// Files that are compiled once for each type.
pub const TYPED_FILES: [&str; 4] = ["weights.hip", "gemv.hip", "matmul.hip", "matmul_experts.hip"];
/// Those of them that are also compiled once for each pair.
pub const PAIRED_FILES: [&str; 2] = ["gemv.hip", "matmul.hip"];
/// Files that are compiled once.
pub const PLAIN_FILES: [&str; 8] = [
    "step.hip",
    "rows.hip",
    "rope.hip",
    "experts.hip",
    "attention_decode.hip",
    "attention_prefill.hip",
    "sampling.hip",
    "probe.hip",
];

/// What is compiled at once: a file, or a file for one type or pair of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    pub file: &'static str,
    pub ty: Option<KernelType>,
    /// Of a pair.
    pub second: Option<KernelType>,
}

impl Unit {
    pub const fn plain(file: &'static str) -> Self {
        Self { file, ty: None, second: None }
    }

    pub const fn typed(file: &'static str, ty: KernelType) -> Self {
        Self { file, ty: Some(ty), second: None }
    }

    pub const fn paired(file: &'static str, [first, second]: [KernelType; 2]) -> Self {
        Self { file, ty: Some(first), second: Some(second) }
    }

    /// None, one, or the two of a pair.
    pub fn types(self) -> impl Iterator<Item = KernelType> {
        self.ty.into_iter().chain(self.second)
    }

    /// `gemv.q4_k`, `gemv.q4_k_q6_k`, `rows`.
    pub fn name(self) -> String {
        let stem = self.file.trim_end_matches(".hip");
        let types: Vec<_> = self.types().map(|ty| ty.name().to_lowercase()).collect();
        if types.is_empty() { stem.to_string() } else { format!("{stem}.{}", types.join("_")) }
    }

    /// The compiler's definitions.
    pub fn defines(self) -> Vec<String> {
        self.types().zip(["TYPE", "SECOND"]).map(|(ty, macro_name)| format!("-D{macro_name}={}", ty.name())).collect()
    }

    pub fn all() -> Vec<Self> {
        let typed = TYPED_FILES.iter().flat_map(|&file| KernelType::ALL.iter().map(move |&ty| Self::typed(file, ty)));
        // No matrix unit takes f32 exactly: such matrices go through `gemv`, whatever the number of rows.
        let typed = typed.filter(|unit| !(unit.file.starts_with("matmul") && unit.ty == Some(KernelType::F32)));
        let paired = PAIRED_FILES.iter().flat_map(|&file| KernelType::PAIRS.map(|pair| Self::paired(file, pair)));
        typed.chain(paired).chain(PLAIN_FILES.map(Self::plain)).collect()
    }
}

/// Targets that run on several GPUs, with those GPUs (LLVM, "AMDGPU Usage", table of generic processors).
pub const GENERIC_TARGETS: [(&str, &[&str]); 5] = [
    ("gfx9-generic", &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"]),
    ("gfx9-4-generic", &["gfx940", "gfx941", "gfx942", "gfx950"]),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"]),
    ("gfx11-generic", &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"]),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];
