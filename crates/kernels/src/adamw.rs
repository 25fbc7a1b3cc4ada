//! One step of AdamW in one pass. Loshchilov and Hutter, 2019.

use crate::math::{dot, fma, simd};

/// The numbers of a step.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f32,
    pub weight_decay: f32,
    /// Steps taken with this one, from 1.
    pub time: usize,
}

simd! {
    /// Updates a parameter and its moments by its gradient.
    pub(crate) fn update<F>(step: &AdamWStep, parameter: &mut [f32], grad: &[f32], first: &mut [f32], second: &mut [f32]) {
        let (rest1, rest2) = ((1.0 - step.beta1) as f32, (1.0 - step.beta2) as f32);
        let (beta1, beta2) = (step.beta1 as f32, step.beta2 as f32);
        let correction = |beta: f64| 1.0 - beta.powi(step.time as i32);
        let rate = (step.lr / correction(step.beta1)) as f32;
        let root = (1.0 / correction(step.beta2).sqrt()) as f32;
        let decay = (1.0 - step.lr * f64::from(step.weight_decay)) as f32;
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((parameter, &grad), (first, second)) in parameter.iter_mut().zip(grad).zip(moments) {
            *first = fma::<F>(*first, beta1, grad * rest1);
            *second = fma::<F>(*second, beta2, grad * grad * rest2);
            *parameter = fma::<F>(*parameter, decay, -(rate * *first / fma::<F>(second.sqrt(), root, step.epsilon)));
        }
    }

    /// The sum of squares: in f32 within parts, in f64 over them.
    pub(crate) fn sum_of_squares<F>(x: &[f32]) -> f64 {
        x.chunks(4096).map(|part| f64::from(dot::<F>(part, part))).sum()
    }
}
