//! Seeded values for the cases and trials of a device.

/// Seeded values from splitmix64, which is cheap enough for many cases.
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    #[allow(clippy::should_implement_trait)] // An iterator would return options.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Returns a uniform number in -1..1.
    pub fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}
