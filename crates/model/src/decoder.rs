//! The whole model: tokens in, logits out.

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig, Embedding, EmbeddingConfig, Initializer};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor};

use crate::attention::Context;
use crate::position::Rope;
use crate::{Block, ModelConfig, Norm, NormPlacement, Position};

/// A decoder-only language model. Its output matrix is the token embedding's (a tied head).
#[derive(Module, Debug)]
pub struct Decoder {
    token_embedding: Embedding,
    position_embedding: Option<Embedding>,
    embedding_scale: Option<Param<Tensor<1>>>,
    blocks: Vec<Block>,
    final_norm: Option<Norm>,
    dropout: Dropout,
    rope_head_dim: Option<usize>,
}

impl Decoder {
    /// The structure alone: matrices and embeddings are zero until `init` draws them.
    pub(crate) fn new(config: &ModelConfig, vocab_size: usize, device: &Device) -> Self {
        let embedding =
            |n| EmbeddingConfig::new(n, config.d_model).with_initializer(Initializer::Zeros).init(device);
        let scale = Initializer::Constant { value: (config.d_model as f64).sqrt() };
        Decoder {
            token_embedding: embedding(vocab_size),
            position_embedding: (config.position == Position::Learned).then(|| embedding(config.seq_len)),
            embedding_scale: config.embedding_scale.then(|| scale.init([1], device)),
            blocks: (0..config.n_layers).map(|_| Block::new(config, device)).collect(),
            final_norm: (config.norm_placement == NormPlacement::Pre)
                .then(|| config.norm.init(config.d_model, config.alpha_final, device)),
            dropout: DropoutConfig::new(config.dropout).init(),
            rope_head_dim: (config.position == Position::Rope).then(|| config.head_dim()),
        }
    }

    /// Token ids `[batch, seq]` to logits `[batch, seq, vocab]`. With learned positions `seq` is at most `seq_len`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, seq] = tokens.dims();
        let device = tokens.device();
        let mut x = self.token_embedding.forward(tokens);
        if let Some(scale) = &self.embedding_scale {
            x = x * scale.val().unsqueeze();
        }
        if let Some(positions) = &self.position_embedding {
            x = x + positions.forward(Tensor::arange(0..seq as i64, &device).unsqueeze());
        }
        x = self.dropout.forward(x);
        let rope = self.rope_head_dim.map(|head_dim| Rope::new(seq, head_dim, &device));
        let context = Context::new(seq, rope, &device);
        for block in &self.blocks {
            x = block.forward(x, &context);
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(x);
        }
        let head = self.token_embedding.weight.val().transpose();
        let [d_model, vocab] = head.dims();
        x.reshape([batch * seq, d_model]).matmul(head).reshape([batch, seq, vocab])
    }

    /// Negative log-likelihood of each target in nats: inputs and targets `[batch, seq]` to `[batch * seq]`.
    pub fn nll(&self, inputs: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        let [batch, seq, vocab] = {
            let [batch, seq] = inputs.dims();
            [batch, seq, self.token_embedding.weight.dims()[0]]
        };
        let logits = self.forward(inputs).reshape([batch * seq, vocab]);
        log_softmax(logits, 1).gather(1, targets.reshape([batch * seq, 1])).squeeze_dim::<1>(1).neg()
    }
}
