//! Which units of the feed-forwards are ever active.

use burn::tensor::Tensor;

/// Units whose activation has been given a positive number at some token, block by block.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Units(Vec<Vec<bool>>);

impl Units {
    /// Adds what the activation of a block is given, `[n_tokens, d_ff]`.
    pub(super) fn add(&mut self, block: usize, input: Tensor<2>) {
        let highest: Vec<f32> = input.max_dim(0).into_data().try_into_vec().expect("floats of 32 bits");
        if block == self.0.len() {
            self.0.push(vec![false; highest.len()]);
        }
        self.0[block].iter_mut().zip(highest).for_each(|(active, highest)| *active |= highest > 0.0);
    }

    /// Of each block, the units that have not been active.
    pub fn silent(&self) -> Vec<Vec<usize>> {
        let silent = |units: &Vec<bool>| (0..units.len()).filter(|&unit| !units[unit]).collect();
        self.0.iter().map(silent).collect()
    }

    /// Of each block, the share of units that have not been active.
    pub fn never_active(&self) -> Vec<f64> {
        let share = |(silent, units): (Vec<usize>, &Vec<bool>)| silent.len() as f64 / units.len() as f64;
        self.silent().into_iter().zip(&self.0).map(share).collect()
    }
}
