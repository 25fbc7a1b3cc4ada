//! How attention learns the order of tokens.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Where positions enter the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Position {
    /// A learned vector per position, added to the embedding.
    Learned,
    /// Rotary: queries and keys are rotated by their position. Su et al., 2021.
    Rope,
    /// Nowhere: only the causal mask tells positions apart.
    None,
}

/// The rotations of positions `0..seq`, in half-split order: dimension i turns with dimension i + head_dim / 2.
pub(crate) struct Rope {
    cos: Tensor<2>,
    sin: Tensor<2>,
}

impl Rope {
    pub(crate) fn new(seq: usize, head_dim: usize, theta: f64, device: &Device) -> Self {
        let half = head_dim / 2;
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f32> = (0..seq * head_dim)
                .map(|index| {
                    let (position, i) = (index / head_dim, index % head_dim % half);
                    let frequency = theta.powf(-((2 * i) as f64) / head_dim as f64);
                    f(position as f64 * frequency) as f32
                })
                .collect();
            Tensor::from_data(TensorData::new(values, [seq, head_dim]), device)
        };
        Rope { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Rotates `[batch, n_heads, seq, head_dim]`.
    pub(crate) fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let turned = Tensor::cat(vec![x.clone().narrow(3, half, half).neg(), x.clone().narrow(3, 0, half)], 3);
        x * self.cos.clone().unsqueeze() + turned * self.sin.clone().unsqueeze()
    }
}
