//! The compilation plan: the units of the kernels' sources, from the table, and the generic targets. The build script
//! includes this file and the table, so they use nothing of the crate.

use super::kernel_table::{with_kernel_types, with_kernels};

macro_rules! declare_kernel_types {
    ($($variant:ident $ggml:ident $operands:ident)*) => {
        /// A tensor type that has kernels.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum KernelType {
            $($variant,)*
        }

        impl KernelType {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns ggml's name, the value of `-DTYPE=`. Kernels' names contain it in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($ggml),)*
                }
            }

            /// Returns the numbers in which the matrix units multiply weights of this type.
            pub const fn operands(self) -> Operands {
                match self {
                    $(Self::$variant => Operands::$operands,)*
                }
            }
        }
    };
}

with_kernel_types!(declare_kernel_types);

/// The numbers that the matrix units multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operands {
    F16,
    Bf16,
    /// The matrix units have no kernels for the type.
    Nothing,
}

impl KernelType {
    /// Types that share a stack in common files (the V of every other layer has more bits than Q and K). One launch
    /// computes their products.
    pub const PAIRS: [[Self; 2]; 2] = [[Self::Q4K, Self::Q6K], [Self::Q5K, Self::Q6K]];
}

/// The things that a kernel is compiled for, with one compilation each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Per {
    /// A single compilation.
    Once,
    /// Each element type of the KV cache.
    Cache,
    /// Each element type of latent rows.
    LatentCache,
    /// Each element type of the KV cache with each head size.
    Head,
    /// Like `Head`, for decode attention on the vector units, and on the matrix units. The platform decides which heads
    /// go where.
    VectorHead,
    MatrixHead,
    /// Each tensor type; on the matrix units, each that they multiply.
    Type,
    /// Each of `KernelType::PAIRS`.
    Pair,
}

/// The hardware that the kernels of a file multiply on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Multiplies {
    Plainly,
    OnMatrixUnits,
}

struct File {
    name: &'static str,
    multiplies: Multiplies,
    /// One entry for each of its kernels.
    kernels: &'static [Per],
}

macro_rules! declare_files {
    ($($file:literal $needed:ident $multiplies:ident {
        $($name:ident $(as $symbol:ident)?: $args:ident, $per:ident, $threads:expr $(, $op:literal)?;)*
    })*) => {
        const FILES: &[File] = &[$(
            File { name: $file, multiplies: Multiplies::$multiplies, kernels: &[$(Per::$per),*] },
        )*];
    };
}

with_kernels!(declare_files);

/// A unit of compilation: a file, or a file for one type or pair of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unit {
    pub file: &'static str,
    pub ty: Option<KernelType>,
    /// The second type of a pair.
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

    /// Yields no type, one type, or the two of a pair.
    pub fn types(self) -> impl Iterator<Item = KernelType> {
        self.ty.into_iter().chain(self.second)
    }

    /// `gemv.q4_k`, `gemv.q4_k_q6_k`, `rows`.
    pub fn name(self) -> String {
        let stem = self.file.trim_end_matches(".hip");
        let types: Vec<_> = self.types().map(|ty| ty.name().to_lowercase()).collect();
        if types.is_empty() { stem.to_string() } else { format!("{stem}.{}", types.join("_")) }
    }

    /// Returns the compiler's definitions.
    pub fn defines(self) -> Vec<String> {
        self.types().zip(["TYPE", "SECOND"]).map(|(ty, macro_name)| format!("-D{macro_name}={}", ty.name())).collect()
    }

    /// True if the kernels of this unit compute on matrix units.
    pub fn on_matrix_units(self) -> bool {
        FILES.iter().any(|file| file.name == self.file && file.multiplies == Multiplies::OnMatrixUnits)
    }

    /// Returns every unit of the table's files.
    pub fn all() -> Vec<Self> {
        FILES.iter().flat_map(Self::all_of).collect()
    }

    fn all_of(file: &File) -> Vec<Self> {
        let (name, has) = (file.name, |per| file.kernels.contains(&per));
        let plain = [Per::Once, Per::Cache, Per::LatentCache, Per::Head, Per::VectorHead, Per::MatrixHead];
        let plain = plain.into_iter().any(has).then(|| Self::plain(name));
        let typed = KernelType::ALL.iter().filter(|_| has(Per::Type)).map(|&ty| Self::typed(name, ty));
        let typed =
            typed.filter(|unit| !unit.on_matrix_units() || unit.types().all(|ty| ty.operands() != Operands::Nothing));
        let paired = KernelType::PAIRS.into_iter().filter(|_| has(Per::Pair)).map(|pair| Self::paired(name, pair));
        plain.into_iter().chain(typed).chain(paired).collect()
    }
}

/// GPUs with their own code objects; every other GPU needs the code object of its family (`GENERIC_TARGETS`).
pub(crate) const EXACT_TARGETS: [&str; 7] = ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151"];
/// Targets that run on several GPUs, with those GPUs (LLVM, "AMDGPU Usage", table of generic processors).
pub(crate) const GENERIC_TARGETS: [(&str, &[&str]); 5] = [
    ("gfx9-generic", &["gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c"]),
    ("gfx10-1-generic", &["gfx1010", "gfx1011", "gfx1012", "gfx1013"]),
    ("gfx10-3-generic", &["gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"]),
    (
        "gfx11-generic",
        &["gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1154"],
    ),
    ("gfx12-generic", &["gfx1200", "gfx1201"]),
];
