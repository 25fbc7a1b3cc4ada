//! One step of AdamW in one pass. Loshchilov and Hutter, 2019.

use crate::math::{fma, simd};

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    pub lr: f64,
    pub beta1: f32,
    pub beta2: f32,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Steps taken with this one, from 1.
    pub time: usize,
}

simd! {
    /// Updates a parameter and its moments by its gradient.
    pub(crate) fn update<F>(step: &AdamWStep, parameter: &mut [f32], grad: &[f32], first: &mut [f32], second: &mut [f32]) {
        let (beta1, beta2) = (step.beta1, step.beta2);
        let (rest1, rest2) = (1.0 - beta1, 1.0 - beta2);
        let correction1 = 1.0 - beta1.powi(step.time as i32);
        let correction2 = 1.0 - beta2.powi(step.time as i32);
        let rate = (step.lr / f64::from(correction1)) as f32;
        let root = 1.0 / correction2.sqrt();
        let decay = (1.0 - step.lr * f64::from(step.weight_decay)) as f32;
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((parameter, &grad), (first, second)) in parameter.iter_mut().zip(grad).zip(moments) {
            *first = fma::<F>(*first, beta1, grad * rest1);
            *second = fma::<F>(*second, beta2, grad * grad * rest2);
            *parameter = fma::<F>(*parameter, decay, -(rate * *first / fma::<F>(second.sqrt(), root, step.epsilon)));
        }
    }

    /// The sum of squares, in f64, 16 strands of f32 at a time.
    pub(crate) fn sum_of_squares<F>(x: &[f32]) -> f64 {
        x.chunks(4096)
            .map(|part| {
                let mut strands = [0.0f32; 32];
                let parts = part.chunks_exact(32);
                let rest: f64 = parts.remainder().iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                for part in parts {
                    for i in 0..32 {
                        strands[i] = fma::<F>(part[i], part[i], strands[i]);
                    }
                }
                strands.into_iter().map(f64::from).sum::<f64>() + rest
            })
            .sum()
    }
}
