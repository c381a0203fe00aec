//! Compares every instruction set of this CPU with f64, and bit for bit with the scalar form.

use half::f16;

use super::{Isa, Kernel, LANES, Simd, exp, silu, tanh};

/// Applies a function on 16 lanes to a whole slice.
struct Map<'a> {
    x: &'a [f32],
    function: Function,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Function {
    Exp,
    Silu,
    Tanh,
    ThroughF16,
    ThroughI8,
    KeepEven,
    Sum,
    Maximum,
}

impl Kernel for Map<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let mut out = Vec::new();
        for x in self.x.chunks(LANES) {
            let v = s.load_partial(x);
            let y = match self.function {
                Function::Exp => exp(s, v),
                Function::Silu => silu(s, v),
                Function::Tanh => tanh(s, v),
                Function::ThroughF16 => s.load_f16(&s.to_f16(v)),
                // The result is defined only for numbers in this range.
                Function::ThroughI8 => s.load_i8(&s.to_i8(s.min(s.max(v, s.splat(-127.0)), s.splat(127.0)))),
                Function::KeepEven => s.keep_lanes(v, 0x5555, f32::NEG_INFINITY),
                Function::Sum => s.splat(s.sum(v)),
                Function::Maximum => s.splat(s.maximum(v)),
            };
            let mut lanes = [0.0; LANES];
            s.store_partial(y, &mut lanes[..x.len()]);
            out.extend_from_slice(&lanes[..x.len()]);
        }
        out
    }
}

fn apply(isa: Isa, function: Function, x: &[f32]) -> Vec<f32> {
    isa.run(Map { x, function })
}

/// Returns numbers from -100 to 100, finer near zero, and the special values.
fn inputs() -> Vec<f32> {
    let mut x: Vec<f32> = (-100_000..100_000).map(|i| i as f32 * 1e-3).collect();
    x.extend((0..40_000).map(|i| (i as f32 - 20_000.0) * 1e-7));
    x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::MIN]);
    x
}

#[test]
fn all_instruction_sets_give_the_same_bits() {
    let x = inputs();
    use Function::*;
    for function in [Exp, Silu, Tanh, ThroughF16, ThroughI8, KeepEven, Sum, Maximum] {
        let expected = apply(Isa::SCALAR, function, &x);
        for isa in Isa::available() {
            for ((a, b), x) in apply(isa, function, &x).iter().zip(&expected).zip(&x) {
                assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{isa:?} {function:?}({x}): {a} {b}");
            }
        }
    }
}

#[test]
fn exp_is_accurate() {
    for isa in Isa::available() {
        let x = inputs();
        for (&y, &x) in apply(isa, Function::Exp, &x).iter().zip(&x) {
            let expected = f64::from(x).exp();
            match x {
                _ if x < -87.3 => assert_eq!(y, 0.0),
                _ if x > 88.0 => assert!(y > 1.6e38 && y.is_finite(), "exp({x}) = {y}"),
                _ => assert!((f64::from(y) / expected - 1.0).abs() < 3e-7, "{isa:?} exp({x}) = {y}, not {expected}"),
            }
        }
        assert_eq!(apply(isa, Function::Exp, &[0.0, -0.0]), [1.0, 1.0]);
        assert!(apply(isa, Function::Exp, &[f32::NAN])[0].is_nan());
    }
}

#[test]
fn silu_and_tanh_are_accurate() {
    for isa in Isa::available() {
        let x: Vec<f32> = inputs().into_iter().filter(|x| x.abs() < 1e30).collect();
        for (&y, &x) in apply(isa, Function::Silu, &x).iter().zip(&x) {
            let expected = f64::from(x) / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(y) - expected).abs() <= 5e-7 * expected.abs() + 1e-36, "silu({x}) = {y}");
        }
        for (&y, &x) in apply(isa, Function::Tanh, &x).iter().zip(&x) {
            assert!((f64::from(y) - f64::from(x).tanh()).abs() < 3e-7, "tanh({x}) = {y}");
        }
        assert!(apply(isa, Function::Silu, &[f32::NAN])[0].is_nan());
        assert!(apply(isa, Function::Tanh, &[f32::NAN])[0].is_nan());
    }
}

#[test]
fn f16_rounds_to_nearest_even() {
    // 1 + 2^-11 is halfway between two f16 values, and so is 1 + 3 * 2^-11.
    let x = [1.000_488_3, 1.001_464_8, 65504.0, 1e-8, -2.5];
    let expected = [1.0, 1.001_953_1, 65504.0, 0.0, -2.5];
    for isa in Isa::available() {
        assert_eq!(apply(isa, Function::ThroughF16, &x), expected);
    }
    assert_eq!(f16::from_f32(x[1]).to_f32(), expected[1]);
}

#[test]
fn i8_rounds_to_nearest_even() {
    let x = [0.5, 1.5, -0.5, -1.5, 126.5, -126.6, 127.0, -127.0, 0.49, -3.51];
    let expected = [0.0, 2.0, 0.0, -2.0, 126.0, -127.0, 127.0, -127.0, 0.0, -4.0];
    for isa in Isa::available() {
        assert_eq!(apply(isa, Function::ThroughI8, &x), expected);
    }
}

struct Nibbles([i8; LANES]);

impl Kernel for Nibbles {
    type Output = [[f32; LANES]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut out = [[0.0; LANES]; 2];
        let halves = s.load_nibbles(&self.0);
        halves.into_iter().zip(&mut out).for_each(|(half, out)| s.store(half, out));
        out
    }
}

#[test]
fn nibbles_are_unsigned_halves_of_bytes() {
    let bytes = std::array::from_fn(|i| (i as u8 | (15 - i as u8) << 4) as i8);
    let expected = [std::array::from_fn(|i| i as f32), std::array::from_fn(|i| 15.0 - i as f32)];
    for isa in Isa::available() {
        assert_eq!(isa.run(Nibbles(bytes)), expected);
    }
}

#[test]
fn names_round_trip_and_unknown_ones_are_errors() {
    for isa in Isa::available() {
        assert_eq!(Isa::from_name(isa.name()), Some(isa));
    }
    assert_eq!(Isa::available().last(), Some(&Isa::detect()));
    assert_eq!(Isa::from_name("avx9"), None);
}
