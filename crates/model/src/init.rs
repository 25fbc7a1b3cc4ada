//! GPT-2's initialization, every tensor from its own random stream.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use rand_distr::{Distribution, Normal};
use random::stream;

use crate::Decoder;

/// Standard deviation of a matrix or an embedding. Radford et al., 2019.
const STD: f64 = 0.02;

/// Draws every matrix and embedding from N(0, 0.02), those that write to the residual stream from
/// N(0, 0.02 / sqrt(2 n_layers)). Gains, biases and scalars keep the constants they were built with.
pub(crate) fn gpt2(decoder: Decoder, n_layers: usize, seed: u64) -> Decoder {
    decoder.map(&mut Gpt2 { residual_std: STD / (2.0 * n_layers as f64).sqrt(), seed, path: vec![] })
}

struct Gpt2 {
    residual_std: f64,
    seed: u64,
    path: Vec<String>,
}

impl ModuleMapper for Gpt2 {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D != 2 {
            return param;
        }
        let name = self.path.join(".");
        let writes_residual = name.ends_with("attn.o.weight") || name.ends_with("ffn.down.weight");
        let std = if writes_residual { self.residual_std } else { STD };
        let normal = Normal::new(0.0, std).expect("a positive standard deviation");
        let mut rng = stream(self.seed, &format!("init/{name}"));
        param.map(|tensor| {
            let shape = tensor.shape();
            let values = (0..shape.num_elements()).map(|_| normal.sample(&mut rng) as f32).collect();
            let drawn = Tensor::from_data(TensorData::new(values, shape), &tensor.device());
            drawn.set_require_grad(tensor.is_require_grad())
        })
    }
}
