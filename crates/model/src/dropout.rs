//! Dropout that is the same however a batch is computed: in one pass, or in micro-batches one after the other.

use burn::module::Module;
use burn::nn::DropoutConfig;
use burn::tensor::{Distribution, Tensor};

/// Which of the equal parts of a batch a pass computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// From 0.
    pub index: usize,
    /// Micro-batches of the batch; 1: the batch is computed in one pass.
    pub n: usize,
}

/// burn's dropout, in a micro-batch with its rows of the mask of the whole batch. For that, all micro-batches of a batch start
/// from the same state of the device's generator.
#[derive(Module, Debug)]
pub(crate) struct Dropout {
    inner: burn::nn::Dropout,
    #[module(skip)]
    pub(crate) micro_batch: MicroBatch,
}

impl Dropout {
    pub(crate) fn new(prob: f64) -> Self {
        Dropout { inner: DropoutConfig::new(prob).init(), micro_batch: MicroBatch { index: 0, n: 1 } }
    }

    pub(crate) fn disable(&mut self) {
        self.inner.prob = 0.0;
    }

    /// Whether it never drops anything.
    pub(crate) fn is_disabled(&self) -> bool {
        self.inner.prob == 0.0
    }

    /// `[rows, ...]` to `[rows, ...]`; the rows of a micro-batch follow those of the one before it.
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let MicroBatch { index, n } = self.micro_batch;
        let device = x.device();
        if n == 1 || self.is_disabled() || !device.is_autodiff() {
            return self.inner.forward(x);
        }
        let mut dims = x.dims();
        let rows = dims[0];
        dims[0] *= n;
        let keep = 1.0 - self.inner.prob;
        let whole = Tensor::<D>::random(dims, Distribution::Bernoulli(keep), &device);
        // A copy, because the whole mask is still in use: a view of it would keep all of it in memory for the backward pass.
        let mask = whole.clone().narrow(0, index * rows, rows) * (1.0 / keep);
        x * mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    /// The only test here that draws from burn's generator, which is one for the process.
    #[test]
    fn masks_of_micro_batches_make_up_that_of_the_batch() {
        let device = Device::flex().autodiff();
        let drop = |index, n| -> Vec<f32> {
            device.seed(3);
            let dropout = Dropout { micro_batch: MicroBatch { index, n }, ..Dropout::new(0.3) };
            let forward = || dropout.forward(Tensor::<3>::ones([12 / n, 5, 7], &device));
            // The second mask begins where the first has ended.
            let _first = forward();
            forward().into_data().try_into_vec().unwrap()
        };
        let whole = drop(0, 1);
        let n_dropped = whole.iter().filter(|x| **x == 0.0).count();
        assert!((80..180).contains(&n_dropped), "of {} numbers {n_dropped} are dropped", whole.len());
        for n in [2, 3, 4, 12] {
            let parts: Vec<f32> = (0..n).flat_map(|index| drop(index, n)).collect();
            assert_eq!(parts, whole, "{n} micro-batches");
        }
        let evaluated = Dropout { micro_batch: MicroBatch { index: 1, n: 2 }, ..Dropout::new(0.3) };
        let ones = evaluated.forward(Tensor::<1>::ones([50], &Device::flex()));
        assert_eq!(ones.into_data().try_into_vec::<f32>().unwrap(), [1.0; 50]);
    }
}
