//! Exponential, hyperbolic tangent and error function as polynomials, so that loops over them become vector instructions.
//!
//! Coefficients are fitted by `tests/fixtures/coefficients.py`. Not-a-number goes in and comes out.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LOG2_E};

/// Compiles each function three times: for AVX-512, for AVX2 with FMA, and for any processor. A call takes the best that this
/// processor has. Within the body, `F` says whether multiplication and addition are one instruction.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident<F>($($arg:ident: $type:ty),* $(,)?) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "a kernel has its inputs, outputs and sizes")]
        $vis fn $name($($arg: $type),*) $(-> $out)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "a kernel has its inputs, outputs and sizes")]
            fn body<const F: bool>($($arg: $type),*) $(-> $out)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "a kernel has its inputs, outputs and sizes")]
                fn avx512($($arg: $type),*) $(-> $out)? {
                    body::<true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments, reason = "a kernel has its inputs, outputs and sizes")]
                fn avx2($($arg: $type),*) $(-> $out)? {
                    body::<true>($($arg),*)
                }
                let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
                let wide = is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq");
                if fma && wide {
                    // SAFETY: this processor has all of these.
                    return unsafe { avx512($($arg),*) };
                }
                if fma {
                    // SAFETY: this processor has both.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body::<false>($($arg),*)
        }
    )*};
}
pub(crate) use simd;

/// a * b + c, in one instruction where there is one.
#[inline(always)]
pub(crate) fn fma<const F: bool>(a: f32, b: f32, c: f32) -> f32 {
    if F { a.mul_add(b, c) } else { a * b + c }
}

/// A polynomial by Horner's rule, the constant first.
#[inline(always)]
fn polynomial<const F: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[N - 1];
    // By index: the compiler sees through this form of the loop, and makes vectors of the loop around it.
    for i in (0..N - 1).rev() {
        sum = fma::<F>(sum, x, coefficients[i]);
    }
    sum
}

/// e^x within 2e-7 of itself between -87 and 88, and the value at the nearer bound outside.
#[inline(always)]
pub(crate) fn exp<const F: bool>(x: f32) -> f32 {
    // Written so that not-a-number passes both comparisons.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    // 1.5 * 2^23: what is added to it is rounded to a whole number, which stands in the lowest bits.
    let whole = fma::<F>(x, LOG2_E, 12_582_912.0);
    let n = whole - 12_582_912.0;
    // ln 2 in two parts, the first exact in few bits.
    let r = fma::<F>(n, 2.121_944_4e-4, fma::<F>(n, -0.693_359_375, x));
    let p = polynomial::<F, 5>(r, [0.499_999_94, 0.166_665_21, 0.041_668_389, 0.008_368_71, 0.001_381_461]);
    let fraction = fma::<F>(p, r * r, r) + 1.0;
    fraction * f32::from_bits(whole.to_bits().wrapping_sub(0x4B40_0000).wrapping_add(127) << 23)
}

/// 1 / (1 + e^-x) within 4e-7 of itself.
#[inline(always)]
pub(crate) fn sigmoid<const F: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<F>(-x))
}

/// tanh(x) within 3e-7 of itself.
#[inline(always)]
pub(crate) fn tanh<const F: bool>(x: f32) -> f32 {
    let magnitude = x.abs();
    let square = x * x;
    let p = polynomial::<F, 5>(square, [-0.333_332_8, 0.133_314_42, -0.053_739_715, 0.020_639_09, -0.005_704_990_6]);
    let near = fma::<F>(p * square, x, x);
    let far = 1.0 - 2.0 / (exp::<F>(2.0 * magnitude) + 1.0);
    if magnitude < 0.625 { near } else { far.copysign(x) }
}

/// The standard normal distribution at x: (Phi(x), phi(x)), each within 2e-7.
#[inline(always)]
pub(crate) fn normal<const F: bool>(x: f32) -> (f32, f32) {
    let z = x * FRAC_1_SQRT_2;
    let magnitude = z.abs();
    let square = z * z;
    let bell = exp::<F>(-square);
    let near = z * polynomial::<F, 7>(
        square,
        [FRAC_2_SQRT_PI, -0.376_126_26, 0.112_835_854, -0.026_853_815, 0.005_188_334, -8.010_242e-4, 7.854_009e-5],
    );
    let t = 1.0 / fma::<F>(magnitude, 0.5, 1.0);
    let tail = bell
        * polynomial::<F, 8>(
            t,
            [
                -8.950_545e-5,
                0.284_118_41,
                0.263_829_9,
                0.335_906_95,
                -0.083_303_44,
                0.542_666_55,
                -0.459_705_05,
                0.116_629_17,
            ],
        );
    let far = (1.0 - tail).copysign(z);
    let erf = if magnitude < 1.0 { near } else { far };
    // 1 / sqrt(2 pi)
    (fma::<F>(erf, 0.5, 0.5), bell * 0.398_942_3)
}

/// The sum of products, in 32 strands.
#[inline(always)]
pub(crate) fn dot<const F: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut strands = [0.0; 32];
    let (a_parts, b_parts) = (a.chunks_exact(32), b.chunks_exact(32));
    let rest: f32 = a_parts.remainder().iter().zip(b_parts.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_parts.zip(b_parts) {
        for i in 0..32 {
            strands[i] = fma::<F>(a[i], b[i], strands[i]);
        }
    }
    folded(strands) + rest
}

/// The sum, in 32 strands.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    let mut strands = [0.0; 32];
    let parts = x.chunks_exact(32);
    let rest: f32 = parts.remainder().iter().sum();
    for part in parts {
        for i in 0..32 {
            strands[i] += part[i];
        }
    }
    folded(strands) + rest
}

#[inline(always)]
fn folded(mut strands: [f32; 32]) -> f32 {
    for half in [16, 8, 4, 2, 1] {
        for i in 0..half {
            strands[i] += strands[i + half];
        }
    }
    strands[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    simd! {
        fn map_exp<F>(x: &[f32]) -> Vec<f32> { x.iter().map(|&x| exp::<F>(x)).collect() }
        fn map_sigmoid<F>(x: &[f32]) -> Vec<f32> { x.iter().map(|&x| sigmoid::<F>(x)).collect() }
        fn map_tanh<F>(x: &[f32]) -> Vec<f32> { x.iter().map(|&x| tanh::<F>(x)).collect() }
        fn map_phi<F>(x: &[f32]) -> Vec<f32> { x.iter().map(|&x| normal::<F>(x).0).collect() }
    }

    /// The largest error of `got` against `exact`, taken in f64; as a share of the exact value if `relative`.
    fn worst(x: &[f32], got: &[f32], exact: impl Fn(f64) -> f64, relative: bool) -> f64 {
        let error = |(&x, &got): (&f32, &f32)| {
            let exact = exact(f64::from(x));
            (f64::from(got) - exact).abs() / if relative { exact.abs().max(1e-37) } else { 1.0 }
        };
        x.iter().zip(got).map(error).fold(0.0, f64::max)
    }

    fn range(from: f32, to: f32) -> Vec<f32> {
        (0..=400_000).map(|i| from + (to - from) * i as f32 / 400_000.0).collect()
    }

    #[test]
    fn errors_are_as_stated() {
        let x = range(-87.0, 88.0);
        assert!(worst(&x, &map_exp(&x), f64::exp, true) < 2e-7);
        let x = range(-40.0, 40.0);
        assert!(worst(&x, &map_sigmoid(&x), |x| 1.0 / (1.0 + (-x).exp()), true) < 4e-7);
        for x in [range(-12.0, 12.0), range(-1e-3, 1e-3)] {
            assert!(worst(&x, &map_tanh(&x), f64::tanh, true) < 3e-7);
        }
    }

    #[test]
    fn the_normal_distribution_is_exact_enough() {
        // Phi by its own series in f64: 1/2 + phi(x) (x + x^3/3 + x^5/15 + ...).
        let phi = |x: f64| {
            let (mut term, mut sum) = (x, x);
            for k in 1..300 {
                term *= x * x / (2 * k + 1) as f64;
                sum += term;
            }
            0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
        };
        let x = range(-6.0, 6.0);
        assert!(worst(&x, &map_phi(&x), phi, false) < 2e-7);
    }

    #[test]
    fn nothing_is_made_up() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, -0.0, 200.0, -200.0];
        for map in [map_exp, map_sigmoid, map_tanh, map_phi] {
            let got = map(&odd);
            assert!(got[0].is_nan(), "{got:?}");
            assert!(got[1..].iter().all(|y| y.is_finite()), "{got:?}");
        }
        assert_eq!(map_tanh(&odd)[1..3], [1.0, -1.0]);
        assert_eq!(map_phi(&odd)[1..3], [1.0, 0.0]);
    }
}
