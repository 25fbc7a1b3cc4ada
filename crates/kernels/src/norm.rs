//! Norms over the last axis: rows of `d` numbers, each by itself.

use crate::math::{self, dot, fma, simd, sum};

/// Added to variances and mean squares, inside the root.
pub const EPSILON: f64 = 1e-5;

simd! {
    /// y = x / sqrt(mean(x^2) + 1e-5) gamma
    pub(crate) fn rms_forward<F>(x: &[f32], gamma: &[f32], y: &mut [f32]) {
        let d = gamma.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            let scale = 1.0 / (dot::<F>(x, x) / d as f32 + EPSILON as f32).sqrt();
            for ((y, &x), &gamma) in y.iter_mut().zip(x).zip(gamma) {
                *y = x * scale * gamma;
            }
        }
    }

    /// dx in the place of dy; dgamma is added to.
    pub(crate) fn rms_backward<F>(x: &[f32], gamma: &[f32], dy: &mut [f32], dgamma: &mut [f32]) {
        let d = gamma.len();
        for (x, dy) in x.chunks_exact(d).zip(dy.chunks_exact_mut(d)) {
            let scale = 1.0 / (dot::<F>(x, x) / d as f32 + EPSILON as f32).sqrt();
            for (((dy, dgamma), &x), &gamma) in dy.iter_mut().zip(dgamma.iter_mut()).zip(x).zip(gamma) {
                *dgamma = fma::<F>(*dy, x * scale, *dgamma);
                *dy *= gamma;
            }
            let along = dot::<F>(dy, x) * scale * scale / d as f32;
            for (dy, &x) in dy.iter_mut().zip(x) {
                *dy = scale * fma::<F>(-along, x, *dy);
            }
        }
    }

    /// y = (x - mean) / sqrt(variance + 1e-5) gamma + beta
    pub(crate) fn layer_forward<F>(x: &[f32], gamma: &[f32], beta: &[f32], y: &mut [f32]) {
        let d = gamma.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            let mean = sum(x) / d as f32;
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x - mean;
            }
            let scale = 1.0 / (dot::<F>(y, y) / d as f32 + EPSILON as f32).sqrt();
            for ((y, &gamma), &beta) in y.iter_mut().zip(gamma).zip(beta) {
                *y = fma::<F>(*y * scale, gamma, beta);
            }
        }
    }

    /// dx in the place of dy; dgamma and dbeta are added to.
    pub(crate) fn layer_backward<F>(x: &[f32], gamma: &[f32], dy: &mut [f32], dgamma: &mut [f32], dbeta: &mut [f32]) {
        let d = gamma.len();
        let mut centered = vec![0.0; d];
        for (x, dy) in x.chunks_exact(d).zip(dy.chunks_exact_mut(d)) {
            let mean = sum(x) / d as f32;
            for (centered, &x) in centered.iter_mut().zip(x) {
                *centered = x - mean;
            }
            let scale = 1.0 / (dot::<F>(&centered, &centered) / d as f32 + EPSILON as f32).sqrt();
            for i in 0..d {
                dgamma[i] = fma::<F>(dy[i], centered[i] * scale, dgamma[i]);
                dbeta[i] += dy[i];
                dy[i] *= gamma[i];
            }
            let shift = sum(dy) / d as f32;
            let along = dot::<F>(dy, &centered) * scale * scale / d as f32;
            for (dy, &centered) in dy.iter_mut().zip(centered.iter()) {
                *dy = scale * (fma::<F>(-along, centered, *dy) - shift);
            }
        }
    }

    /// y = gamma tanh(alpha x) + beta
    pub(crate) fn dyt_forward<F>(x: &[f32], alpha: f32, gamma: &[f32], beta: &[f32], y: &mut [f32]) {
        let d = gamma.len();
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact_mut(d)) {
            for (((y, &x), &gamma), &beta) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                *y = fma::<F>(math::tanh::<F>(alpha * x), gamma, beta);
            }
        }
    }

    /// dx in the place of dy; dgamma, dbeta and dalpha are added to, the last feature by feature.
    pub(crate) fn dyt_backward<F>(
        x: &[f32],
        alpha: f32,
        gamma: &[f32],
        dy: &mut [f32],
        dgamma: &mut [f32],
        dbeta: &mut [f32],
        dalpha: &mut [f32],
    ) {
        let d = gamma.len();
        let (dgamma, dbeta, dalpha) = (&mut dgamma[..d], &mut dbeta[..d], &mut dalpha[..d]);
        for (x, dy) in x.chunks_exact(d).zip(dy.chunks_exact_mut(d)) {
            for i in 0..d {
                let t = math::tanh::<F>(alpha * x[i]);
                dgamma[i] = fma::<F>(dy[i], t, dgamma[i]);
                dbeta[i] += dy[i];
                let inner = dy[i] * gamma[i] * fma::<F>(-t, t, 1.0);
                dalpha[i] = fma::<F>(inner, x[i], dalpha[i]);
                dy[i] = inner * alpha;
            }
        }
    }
}
