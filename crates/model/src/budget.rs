//! What a model costs: parameters and floating-point operations, counted from its config.

use crate::{ModelConfig, NormPlacement, Position};

/// The size of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// All trained numbers; the tied head is counted once.
    pub n_params: usize,
    /// Trained numbers of all feed-forwards.
    pub n_ffn_params: usize,
    /// Floating-point operations per token of one training step: forward, and twice that for backward. Matrix products
    /// and the full `seq_len x seq_len` attention are counted at two operations per multiply-add, pointwise work is not
    /// (the convention of PaLM, appendix B).
    pub flops_per_token: usize,
}

impl ModelConfig {
    /// The size of this model with `vocab_size` tokens.
    pub fn budget(&self, vocab_size: usize) -> Budget {
        let d = self.d_model;
        let n_norms = 2 * self.n_layers + usize::from(self.norm_placement == NormPlacement::Pre);
        let embedding = vocab_size * d;
        let positions = if self.position == Position::Learned { self.seq_len * d } else { 0 };
        let attention = self.n_layers * 4 * d * d;
        let n_ffn_params = self.n_layers * self.ffn.n_matrices() * d * self.d_ff;
        let scale = usize::from(self.embedding_scale);
        let n_params = embedding + positions + scale + attention + n_ffn_params + n_norms * self.norm.n_params(d);
        let multiply_adds = attention + n_ffn_params + embedding + self.n_layers * 2 * self.seq_len * d;
        Budget { n_params, n_ffn_params, flops_per_token: 3 * 2 * multiply_adds }
    }
}

impl ModelConfig {
    /// Bytes that one training step cannot do without: weights, gradients and two moments; the widest activations of each
    /// layer; the attention weights; logits and their gradient. What a step really takes is more.
    pub fn least_training_bytes(&self, vocab_size: usize, batch_size: usize) -> f64 {
        let tokens = (batch_size * self.seq_len) as f64;
        let attention = (self.n_heads * self.seq_len) as f64;
        let per_token = self.n_layers as f64 * ((4 * self.d_model + self.d_ff) as f64 + attention);
        let numbers = 4.0 * self.budget(vocab_size).n_params as f64 + tokens * (per_token + 2.0 * vocab_size as f64);
        4.0 * numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ffn;
    use crate::config::tests::{combinations, tiny};
    use burn::module::Module;
    use burn::tensor::Device;

    #[test]
    fn the_count_is_the_module_s_own() {
        for config in combinations() {
            let model = config.init(11, 0, &Device::flex());
            assert_eq!(config.budget(11).n_params, model.num_params(), "{config:?}");
        }
    }

    #[test]
    fn nanogpt_s_cpu_model_has_its_published_size() {
        // nanoGPT prints 0.80M parameters for 4 layers, 4 heads, width 128 and 65 characters without biases; it leaves
        // the position table out of the count and its norms have no bias.
        let config = ModelConfig { seq_len: 64, d_model: 128, n_layers: 4, n_heads: 4, d_ff: 512, ..tiny() };
        let norm_biases = 9 * 128;
        assert_eq!(config.budget(65).n_params - norm_biases - 64 * 128, 795_904);
    }

    #[test]
    fn flops_of_one_layer_by_hand() {
        let config = ModelConfig { n_layers: 1, d_ff: 10, ffn: Ffn::SwiGlu, ..tiny() };
        // q, k, v, o; three feed-forward matrices; the head; scores and mixing over 8 positions.
        let multiply_adds = 4 * 16 * 16 + 3 * 16 * 10 + 11 * 16 + 2 * 8 * 16;
        assert_eq!(config.budget(11).flops_per_token, 6 * multiply_adds);
    }
}
