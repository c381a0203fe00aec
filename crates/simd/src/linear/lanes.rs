//! The vector operations of the micro-kernels, which are written once. Each instruction set implements the operations.

/// Sixteen lanes, one per output row of a tile (in `q8`, one per activation).
///
/// # Safety
/// Every function may use the instruction set of its implementor. Call it only inside a function compiled for this
/// instruction set, on a processor that has it. Pointers must be valid for the bytes that the function's comment names;
/// they may be unaligned. All implementations return equal bits (NaN payloads aside).
pub(super) trait Lanes: Copy {
    /// 64 bytes: 4 consecutive elements of each of 16 rows.
    type Bytes: Copy;
    /// 16 × i32.
    type Ints: Copy;
    /// 16 × f32.
    type Floats: Copy;
    /// Activation rows that one pass keeps in registers.
    const MAX_ROWS: usize;
    /// True if registers can hold the codes of a block, which are then multiplied with one row after another. Otherwise
    /// each group of codes is extracted in turn and multiplied with all rows before the next one.
    const HOLDS_BLOCK: bool;

    /// Prefetches the cache line at any address, valid or not, into the first-level cache.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches it into the second-level cache.
    unsafe fn prefetch_second(p: *const u8);
    /// Reads 64 bytes.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// Writes 64 bytes.
    unsafe fn store_bytes(p: *mut u8, b: Self::Bytes);
    /// `(byte >> shift) & mask`, `shift < 8`.
    unsafe fn bits(b: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// `a | ((b >> shift) & mask) << left`, `shift < 8`; no bit leaves its byte.
    unsafe fn merge_bits(a: Self::Bytes, b: Self::Bytes, shift: u32, mask: u8, left: u32) -> Self::Bytes;
    /// `table[byte]` for bytes below 16.
    unsafe fn lookup(b: Self::Bytes, table: &[u8; 16]) -> Self::Bytes;
    /// `(byte * power mod 256) * 3 / 256`: a base-three digit of the fraction `byte / 256`. A power of 1 gives the
    /// first digit after the point, 3 the second, and so on.
    unsafe fn trits(b: Self::Bytes, power: u8) -> Self::Bytes;
    /// `table[index]` of each lane, split into its first and last four bytes. Lanes are below `N`.
    unsafe fn entries_of_eight<const N: usize>(table: &[[i8; 8]; N], index: Self::Ints) -> [Self::Bytes; 2];
    /// `table[index]` of each lane. Lanes are below `N`.
    unsafe fn entries_of_four<const N: usize>(table: &[[i8; 4]; N], index: Self::Ints) -> Self::Bytes;
    /// `64 + byte`, or `64 - byte` if bit `FIRST + i` of the lane in `signs` is set for its byte `i`. `FIRST` is 0 or
    /// 4, and bytes are below 64.
    unsafe fn signed<const FIRST: u32>(b: Self::Bytes, signs: Self::Ints) -> Self::Bytes;
    /// Reinterprets the bits: four bytes are a lane, the first is its lowest.
    unsafe fn as_ints(b: Self::Bytes) -> Self::Ints;
    unsafe fn as_bytes(a: Self::Ints) -> Self::Bytes;
    /// `Σ (w - 128) · x` over the groups of `w`, for each of `N` rows. Reads four activations per group and row, none
    /// of which is -128. `neg_sums` has `-Σ x` of each row.
    unsafe fn dot_bytes<W: Groups<Self>, const N: usize>(
        w: &W,
        x: [*const i8; N],
        neg_sums: [i32; N],
    ) -> [Self::Ints; N];
    /// `acc + Σ w · x`, likewise. No byte of `w` exceeds `max_code`, which is below 128.
    unsafe fn dot<W: Groups<Self>, const N: usize>(
        acc: [Self::Ints; N],
        w: &W,
        x: [*const i8; N],
        max_code: u8,
    ) -> [Self::Ints; N];

    /// Reads 16 u8 (or i8, or u16) and widens them.
    unsafe fn load_u8(p: *const u8) -> Self::Ints;
    unsafe fn load_i8(p: *const u8) -> Self::Ints;
    unsafe fn load_u16(p: *const u8) -> Self::Ints;
    unsafe fn splat_i32(v: i32) -> Self::Ints;
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn xor(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn sub(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn max(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn shl(a: Self::Ints, n: u32) -> Self::Ints;
    /// Shifts right by `n` bits and fills with zeros (logical shift).
    unsafe fn shr(a: Self::Ints, n: u32) -> Self::Ints;
    unsafe fn to_f32(a: Self::Ints) -> Self::Floats;
    unsafe fn as_f32(a: Self::Ints) -> Self::Floats;
    unsafe fn as_i32(a: Self::Floats) -> Self::Ints;
    /// Returns the sum, and the maximum, of the lanes.
    unsafe fn reduce_add(a: Self::Ints) -> i32;
    unsafe fn reduce_max(a: Self::Ints) -> i32;
    /// Writes 16 bytes; lanes fit in i8.
    unsafe fn store_i8(p: *mut i8, a: Self::Ints);

    /// Reads 16 f32.
    unsafe fn load_f32(p: *const u8) -> Self::Floats;
    /// Reads 16 f16.
    unsafe fn load_f16(p: *const u8) -> Self::Floats;
    /// Reads 16 bf16.
    unsafe fn load_bf16(p: *const u8) -> Self::Floats;
    unsafe fn splat_f32(v: f32) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Writes 16 f32.
    unsafe fn store(p: *mut f32, a: Self::Floats);
}

/// The groups of four codes of 16 rows in a block or half a block. There are `PARTS * LINES`, which is 8 or 4.
pub(super) trait Groups<L: Lanes> {
    const PARTS: usize;
    /// Groups of a part. The same instructions extract them, so a loop over them need not be unrolled.
    const LINES: usize;
    const COUNT: usize = Self::PARTS * Self::LINES;

    /// # Safety
    /// The conditions of `Lanes` hold; `part` is below `PARTS` and a constant, `line` is below `LINES`.
    unsafe fn group(&self, part: usize, line: usize) -> L::Bytes;
}

/// Repeats `$body` for `$i` in `0..$n`, where `$n <= 16` is a constant. It unrolls in the source: register arrays need
/// constant indices, and LLVM does not unroll bodies of this size.
macro_rules! unroll {
    ($i:ident in 0..$n:expr, $body:block) => {
        unroll!(@ $i $n, $body [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15])
    };
    (@ $i:ident $n:expr, $body:block [$($k:literal)*]) => {
        $(if $k < $n { let $i: usize = $k; $body })*
    };
}
pub(super) use unroll;
