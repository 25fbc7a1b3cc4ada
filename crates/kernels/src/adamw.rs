//! One step of AdamW in one pass. Loshchilov and Hutter, 2019.

use rayon::prelude::*;

use crate::math::{dot, fma, simd};
use crate::rows::NUMBERS;

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

/// Updates a parameter and its moments by its gradient.
pub(crate) fn update(step: &AdamWStep, parameter: &mut [f32], grad: &[f32], first: &mut [f32], second: &mut [f32]) {
    let given = (parameter.par_chunks_mut(NUMBERS), grad.par_chunks(NUMBERS));
    (given.0, given.1, first.par_chunks_mut(NUMBERS), second.par_chunks_mut(NUMBERS))
        .into_par_iter()
        .for_each(|(parameter, grad, first, second)| update_part(step, parameter, grad, first, second));
}

/// The sum of squares: in f32 within parts, in f64 over them.
pub(crate) fn sum_of_squares(x: &[f32]) -> f64 {
    let parts: Vec<f64> = x.par_chunks(NUMBERS).map(squares).collect();
    parts.iter().sum()
}

simd! {
    fn update_part<F>(step: &AdamWStep, parameter: &mut [f32], grad: &[f32], first: &mut [f32], second: &mut [f32]) {
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

    fn squares<F>(x: &[f32]) -> f64 {
        let mut sum = 0.0;
        for part in x.chunks(4096) {
            sum += f64::from(dot::<F>(part, part));
        }
        sum
    }
}
