//! The kernels of the table as values: their names, their compilations and their launches.

mod limits;

use std::marker::PhantomData;

pub use limits::{check_experts, check_kv_layers};

use super::args::*;
use crate::compile::kernel_table::{with_kernel_types, with_kernels};
use crate::compile::plan::{KernelType, Operands, Per, Unit};
use crate::config::{KvCacheDtype, Platform};
use crate::driver::{Block, DeviceProperties};
use crate::quant::GgmlType;
use crate::{Error, Result};

/// Head sizes that attention is compiled for; a smaller head uses the next larger one.
pub(crate) const HEAD_SIZES: [u32; 4] = [64, 128, 256, 512];

/// Rows that a block of `matmul` computes, for one matrix or for two of a stack.
pub const MATMUL_ROWS: [u32; 4] = [8, 16, 32, 64];
/// Rows that a block of `matmul_f32` computes.
pub(crate) const MATMUL_F32_ROWS: [u32; 3] = [4, 8, 64];
/// Rows that a block of `matmul_experts` computes: one run of a single expert.
pub const EXPERT_RUNS: [u32; 2] = [16, 64];

/// Threads of a block of the kernels that measure a device.
pub(crate) const PROBE_THREADS: u32 = 256;

/// The element types of caches, and those of latent rows.
pub(crate) const CACHE_TYPES: [KvCacheDtype; 3] = [KvCacheDtype::F16, KvCacheDtype::F32, KvCacheDtype::Int8];
pub(crate) const LATENT_CACHE_TYPES: [KvCacheDtype; 2] = [KvCacheDtype::F16, KvCacheDtype::F32];

/// Returns the blocks of `matmul` with warpgroup instructions: each tile has a warp.
fn matmul_wgmma_block(rows: u32) -> Block {
    let (tiles, shared_bytes) = match rows {
        8 => (MATMUL_WGMMA_TILES_N8, MATMUL_WGMMA_SHARED_N8),
        16 => (MATMUL_WGMMA_TILES_N16, MATMUL_WGMMA_SHARED_N16),
        32 => (MATMUL_WGMMA_TILES_N32, MATMUL_WGMMA_SHARED_N32),
        _ => (MATMUL_WGMMA_TILES_N64, MATMUL_WGMMA_SHARED_N64),
    };
    Block { threads: 32 * tiles, shared_bytes }
}

/// Returns the blocks of `matmul_gated` with warpgroup instructions.
fn gated_wgmma_block(rows: u32) -> Block {
    match rows {
        64 => Block { threads: 32 * MATMUL_GATED_WGMMA_TILES_N64, ..matmul_wgmma_block(rows) },
        _ => matmul_wgmma_block(rows),
    }
}

/// Returns the blocks of `matmul_experts` and `matmul_gated_experts` with warpgroup instructions.
fn experts_wgmma_block(run: u32) -> Block {
    match run {
        64 => Block { shared_bytes: MATMUL_EXPERTS_WGMMA_SHARED_N64, ..matmul_wgmma_block(run) },
        _ => matmul_wgmma_block(run),
    }
}

/// Returns the blocks of `norm_rows_of_parts` with clusters, which every device with `wgmma` has.
fn norm_parts_wgmma_block(_: Subject) -> Option<Block> {
    Some(Block::of_threads(NORM_PARTS_BLOCK_THREADS))
}

/// Returns the blocks of prefill with warpgroup instructions. They serve f16 caches and heads of up to 256.
fn prefill_wgmma_block(subject: Subject) -> Option<Block> {
    let Subject::Head(KvCacheDtype::F16, size) = subject else { return None };
    let shared_bytes = match size {
        64 => ATTENTION_PREFILL_WGMMA_SHARED_D64,
        128 => ATTENTION_PREFILL_WGMMA_SHARED_D128,
        256 => ATTENTION_PREFILL_WGMMA_SHARED_D256,
        _ => return None,
    };
    Some(Block { threads: ATTENTION_PREFILL_WGMMA_THREADS, shared_bytes })
}

fn matmul_threads(rows: u32) -> u32 {
    match rows {
        8 => MATMUL_THREADS_N8,
        16 => MATMUL_THREADS_N16,
        32 => MATMUL_THREADS_N32,
        _ => MATMUL_THREADS_N64,
    }
}

fn matmul_f32_threads(rows: u32) -> u32 {
    match rows {
        4 => MATMUL_F32_THREADS_N4,
        8 => MATMUL_F32_THREADS_N8,
        _ => MATMUL_F32_THREADS_N64,
    }
}

/// Returns the smallest head size of the attention kernels that holds `head_dim`.
///
/// # Errors
/// `Error::Device` beyond the largest.
pub(crate) fn head_size(head_dim: usize) -> Result<u32> {
    HEAD_SIZES.into_iter().find(|&size| head_dim <= size as usize).ok_or_else(|| Error::Device {
        device: "gpu".to_owned(),
        problem: format!(
            "attention heads have {head_dim} elements, the kernels take at most {}; use device=\"cpu\"",
            HEAD_SIZES[HEAD_SIZES.len() - 1]
        ),
    })
}

/// True if decode attention runs on the matrix units for this head size and cache: by `mma.sync` of f16. Up to 256
/// elements, a warp's registers hold the outputs of eight heads. An f32 cache is for exactness. Other platforms have no
/// such kernel yet.
fn decodes_on_matrix_units(platform: Platform, dtype: KvCacheDtype, size: u32) -> bool {
    platform == Platform::Nvidia && dtype != KvCacheDtype::F32 && size <= 256
}

impl KernelType {
    /// Returns the kernels of a file's type.
    ///
    /// # Errors
    /// `Error::Internal` for a type without kernels. Every type that weights may have has some.
    pub fn of(ty: GgmlType) -> Result<Self> {
        macro_rules! find {
            ($($variant:ident $ggml:ident $operands:ident)*) => {
                match ty {
                    $(GgmlType::$ggml => Ok(Self::$variant),)*
                    _ => Err(Error::internal(format!("weights of type {}, which has no kernels", ty.name()))),
                }
            };
        }
        with_kernel_types!(find)
    }

    /// Returns the file's type whose blocks the kernels take.
    pub fn ggml_type(self) -> GgmlType {
        macro_rules! find {
            ($($variant:ident $ggml:ident $operands:ident)*) => {
                match self {
                    $(Self::$variant => GgmlType::$ggml,)*
                }
            };
        }
        with_kernel_types!(find)
    }
}

/// The models that load a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needed {
    Always,
    /// Models with experts.
    Experts,
    /// Models with latent attention.
    Latent,
    /// Models with recurrent layers.
    States,
    /// Models that multiply many rows as 8-bit floats.
    Fp8,
    /// No model: the kernel measures a device.
    Measurement,
}

/// Threads of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Threads {
    One(u32),
    /// A number of threads, and a function that returns other blocks for a variant on devices with `wgmma`, if it has
    /// any.
    OneOrWgmma(u32, fn(Subject) -> Option<Block>),
    /// Threads of a kernel that is compiled for each of these numbers of rows per block; its names end with it
    /// (`_n16`).
    ByRows(&'static [u32], fn(u32) -> u32),
    /// Like `ByRows`, with other blocks on devices with `wgmma`.
    ByRowsOrWgmma(&'static [u32], fn(u32) -> u32, fn(u32) -> Block),
}
use Threads::{ByRows, ByRowsOrWgmma, One, OneOrWgmma};

/// The tensor types or the KV cache that a kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Nothing,
    Cache(KvCacheDtype),
    /// The element type of the cache, and one of `HEAD_SIZES`.
    Head(KvCacheDtype, u32),
    Type(KernelType),
    /// One of `KernelType::PAIRS`.
    Pair([KernelType; 2]),
}

/// One compilation of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    subject: Subject,
    /// Rows of a block, if the kernel is compiled for several numbers of rows.
    rows: Option<u32>,
}

/// The variant of a kernel that is compiled once.
pub(crate) const ONCE: Variant = Variant { subject: Subject::Nothing, rows: None };

impl From<Subject> for Variant {
    fn from(subject: Subject) -> Self {
        Self { subject, rows: None }
    }
}

impl From<KernelType> for Variant {
    fn from(ty: KernelType) -> Self {
        Subject::Type(ty).into()
    }
}

impl From<[KernelType; 2]> for Variant {
    fn from(pair: [KernelType; 2]) -> Self {
        Subject::Pair(pair).into()
    }
}

impl Variant {
    /// Returns the variant for this many rows per block.
    pub fn with_rows(subject: impl Into<Self>, rows: u32) -> Self {
        Self { rows: Some(rows), ..subject.into() }
    }

    pub fn subject(self) -> Subject {
        self.subject
    }

    /// Returns the tensor types of the variant.
    fn types(self) -> Vec<KernelType> {
        match self.subject {
            Subject::Nothing | Subject::Cache(_) | Subject::Head(..) => Vec::new(),
            Subject::Type(ty) => vec![ty],
            Subject::Pair(pair) => pair.to_vec(),
        }
    }

    /// True if every tensor type of the variant is in `types`.
    pub fn is_of_types(self, types: &[KernelType]) -> bool {
        self.types().iter().all(|ty| types.contains(ty))
    }

    /// Returns the suffix that the variant adds to a kernel's name.
    fn suffix(self) -> String {
        let cache = |dtype| match dtype {
            KvCacheDtype::F16 => "_f16",
            KvCacheDtype::F32 => "_f32",
            KvCacheDtype::Int8 => "_int8",
            KvCacheDtype::Int4 => "_int4",
        };
        let subject = match self.subject {
            Subject::Nothing => String::new(),
            Subject::Cache(dtype) => cache(dtype).to_owned(),
            Subject::Head(dtype, size) => format!("{}_d{size}", cache(dtype)),
            Subject::Type(_) | Subject::Pair(_) => {
                self.types().iter().map(|ty| format!("_{}", ty.name().to_lowercase())).collect()
            }
        };
        subject + &self.rows.map_or_else(String::new, |rows| format!("_n{rows}"))
    }
}

/// A row of the table.
pub struct Row {
    constant: &'static str,
    /// The kernel's name, if it differs from the constant's.
    symbol: Option<&'static str>,
    pub file: &'static str,
    pub needed: Needed,
    pub per: Per,
    threads: Threads,
    /// The op's name in `doctor`; `None` if `doctor` does not list the kernel.
    pub op: Option<&'static str>,
    /// The struct in `args.h`.
    #[cfg(test)]
    pub args: &'static str,
}

impl Row {
    /// True if this is the row of `kernel`.
    pub fn is<A>(&self, kernel: Kernel<A>) -> bool {
        std::ptr::eq(self, kernel.row())
    }

    fn symbol(&self) -> String {
        self.symbol.map_or_else(|| self.constant.to_lowercase(), str::to_owned)
    }

    /// Returns every variant that is compiled for a platform.
    pub fn variants(&self, platform: Platform) -> Vec<Variant> {
        let heads = |serves: fn(Platform, KvCacheDtype, u32) -> bool| -> Vec<Subject> {
            let all = CACHE_TYPES.iter().flat_map(|&dtype| HEAD_SIZES.map(|size| (dtype, size)));
            let served = all.filter(|&(dtype, size)| serves(platform, dtype, size));
            served.map(|(dtype, size)| Subject::Head(dtype, size)).collect()
        };
        let subjects: Vec<Subject> = match self.per {
            Per::Once => vec![Subject::Nothing],
            Per::Cache => CACHE_TYPES.map(Subject::Cache).to_vec(),
            Per::LatentCache => LATENT_CACHE_TYPES.map(Subject::Cache).to_vec(),
            Per::Head => heads(|_, _, _| true),
            Per::VectorHead => heads(|platform, dtype, size| !decodes_on_matrix_units(platform, dtype, size)),
            Per::MatrixHead => heads(decodes_on_matrix_units),
            Per::Type => KernelType::ALL.iter().map(|&ty| Subject::Type(ty)).collect(),
            Per::Pair => KernelType::PAIRS.map(Subject::Pair).to_vec(),
        };
        let variants = subjects.into_iter().flat_map(|subject| match self.threads {
            One(_) | OneOrWgmma(..) => vec![Variant::from(subject)],
            ByRows(rows, _) | ByRowsOrWgmma(rows, ..) => {
                rows.iter().map(|&rows| Variant::with_rows(subject, rows)).collect()
            }
        });
        // Kernels of the matrix units do not serve all types.
        let multiplies = |variant: &Variant| variant.types().iter().all(|ty| ty.operands() != Operands::Nothing);
        variants.filter(|variant| !self.unit(*variant).on_matrix_units() || multiplies(variant)).collect()
    }

    fn unit(&self, variant: Variant) -> Unit {
        match variant.subject {
            Subject::Nothing | Subject::Cache(_) | Subject::Head(..) => Unit::plain(self.file),
            Subject::Type(ty) => Unit::typed(self.file, ty),
            Subject::Pair(pair) => Unit::paired(self.file, pair),
        }
    }

    pub fn id(&self, variant: Variant) -> KernelId {
        let rows = variant.rows.unwrap_or(0);
        let (threads, wgmma) = match self.threads {
            One(threads) => (threads, None),
            OneOrWgmma(threads, block) => (threads, block(variant.subject)),
            ByRows(_, threads) => (threads(rows), None),
            ByRowsOrWgmma(_, threads, block) => (threads(rows), Some(block(rows))),
        };
        KernelId { unit: self.unit(variant), name: self.symbol() + &variant.suffix(), threads, wgmma }
    }
}

/// A kernel in the code of a unit, and its block size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelId {
    pub unit: Unit,
    pub name: String,
    pub threads: u32,
    /// Its blocks on devices with `wgmma`, if they differ.
    pub wgmma: Option<Block>,
}

impl KernelId {
    /// Returns its blocks on a device.
    pub fn block(&self, properties: &DeviceProperties) -> Block {
        self.wgmma.filter(|_| properties.has_wgmma()).unwrap_or(Block::of_threads(self.threads))
    }
}

/// A kernel of the table, which takes an `A`.
#[derive(Debug)]
pub struct Kernel<A> {
    place: usize,
    args: PhantomData<fn(A)>,
}

impl<A> Clone for Kernel<A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Kernel<A> {}

impl<A> Kernel<A> {
    const fn at(place: usize) -> Self {
        Self { place, args: PhantomData }
    }

    /// Returns its index in `TABLE`.
    pub fn place(self) -> usize {
        self.place
    }

    pub fn row(self) -> &'static Row {
        &TABLE[self.place]
    }

    pub fn id(self, variant: impl Into<Variant>) -> KernelId {
        self.row().id(variant.into())
    }
}

macro_rules! declare_kernels {
    ($($file:literal $needed:ident $multiplies:ident {
        $($name:ident $(as $symbol:ident)?: $args:ident, $per:ident, $threads:expr $(, $op:literal)?;)*
    })*) => {
        /// All kernels.
        pub(crate) static TABLE: &[Row] = &[$($(
            Row {
                constant: stringify!($name),
                symbol: first(&[$(stringify!($symbol))?]),
                file: $file,
                needed: Needed::$needed,
                per: Per::$per,
                threads: $threads,
                op: first(&[$($op)?]),
                #[cfg(test)]
                args: stringify!($args),
            },
        )*)*];

        /// Indices in `TABLE`.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)] // the names of the constants
        enum Place {
            $($($name,)*)*
        }

        $($(pub(crate) const $name: Kernel<$args> = Kernel::at(Place::$name as usize);)*)*
    };
}

/// Returns the one entry that a row gives, or `None`.
const fn first(given: &[&'static str]) -> Option<&'static str> {
    if let [given, ..] = given { Some(given) } else { None }
}

with_kernels!(declare_kernels);

/// Yields every kernel of every unit on a platform.
#[cfg(test)]
pub(crate) fn all(platform: Platform) -> impl Iterator<Item = KernelId> {
    TABLE.iter().flat_map(move |row| row.variants(platform).into_iter().map(|variant| row.id(variant)))
}
