//! How weights start, every tensor from its own random stream.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use rand_distr::{Distribution, Normal};
use random::stream;
use serde::{Deserialize, Serialize};

use crate::Decoder;

/// What matrices of the blocks are drawn from. Embeddings are GPT-2's in either, gains, biases and scalars constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Init {
    /// Normal with standard deviation 0.02, or 0.02 / sqrt(2 n_layers) where they write to the residual stream. Radford et al., 2019.
    Gpt2,
    /// Normal with standard deviation sqrt(2 / (d_input + d_output)), whatever the depth. Glorot and Bengio, 2010, in its normal form; the
    /// one for which Xiong et al., 2020, derive the gradients of Pre-Norm and Post-Norm.
    Xavier,
}

/// Standard deviation of a matrix or an embedding. Radford et al., 2019.
const STD: f64 = 0.02;

/// Draws every matrix and embedding.
pub(crate) fn draw(decoder: Decoder, init: Init, n_layers: usize, seed: u64) -> Decoder {
    decoder.map(&mut Draw { init, residual_std: STD / (2.0 * n_layers as f64).sqrt(), seed, path: vec![] })
}

struct Draw {
    init: Init,
    residual_std: f64,
    seed: u64,
    path: Vec<String>,
}

impl ModuleMapper for Draw {
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
        let std = match self.init {
            Init::Xavier if name.starts_with("blocks.") => {
                let [d_input, d_output] = param.val().shape().dims();
                (2.0 / (d_input + d_output) as f64).sqrt()
            }
            Init::Gpt2 if writes_residual => self.residual_std,
            Init::Gpt2 | Init::Xavier => STD,
        };
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
