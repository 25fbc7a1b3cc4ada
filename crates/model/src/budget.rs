//! What a model costs: parameters and floating-point operations, counted from its config.

use crate::{ModelConfig, Position};

/// One count for each part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Token embedding, position table and embedding scale.
    pub embedding: usize,
    pub attention: usize,
    pub ffn: usize,
    pub norm: usize,
    /// The output matrix; its parameters are the embedding's.
    pub head: usize,
}

impl Parts {
    pub fn total(&self) -> usize {
        self.embedding + self.attention + self.ffn + self.norm + self.head
    }
}

/// The size of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Trained numbers.
    pub params: Parts,
    /// Floating-point operations per token of one training step: forward, and twice that for backward. Matrix products
    /// and the full `seq_len x seq_len` attention are counted at two operations per multiply-add, pointwise work is not
    /// (the convention of PaLM, appendix B).
    pub flops: Parts,
}

impl ModelConfig {
    /// The size of this model with `vocab_size` tokens.
    pub fn budget(&self, vocab_size: usize) -> Budget {
        let (d, layers) = (self.d_model, self.n_layers);
        let d_kv = self.n_kv_heads * self.head_dim();
        let placement = self.norm_placement;
        let n_norms = placement.n_norms() * layers + usize::from(placement.has_final_norm());
        let positions = if self.position == Position::Learned { self.seq_len * d } else { 0 };
        let attention_matrices = 2 * d * d + 2 * d * d_kv;
        let attention_biases = if self.bias { 2 * d + 2 * d_kv } else { 0 };
        let qk_norms = if self.qk_norm { 2 * self.head_dim() } else { 0 };
        let ffn_matrices = self.ffn.n_matrices() * d * self.d_ff;
        let ffn_biases = if self.bias { (self.ffn.n_matrices() - 1) * self.d_ff + d } else { 0 };
        let training = |multiply_adds: usize| 3 * 2 * multiply_adds;
        Budget {
            params: Parts {
                embedding: vocab_size * d + positions + usize::from(self.embedding_scale),
                attention: layers * (attention_matrices + attention_biases + qk_norms),
                ffn: layers * (ffn_matrices + ffn_biases),
                norm: n_norms * self.norm.n_params(d),
                head: 0,
            },
            flops: Parts {
                embedding: 0,
                attention: training(layers * (attention_matrices + 2 * self.seq_len * d)),
                ffn: training(layers * ffn_matrices),
                norm: 0,
                head: training(vocab_size * d),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ffn;
    use crate::config::tests::{combinations, tiny};
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::{Device, Tensor};
    use kernels::Kernels;

    /// Counts parameters, but for running statistics, which burn visits too.
    struct Trained {
        name: String,
        n_params: usize,
    }

    impl ModuleVisitor for Trained {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.name = name.into();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.name.starts_with("running_") {
                self.n_params += param.shape().num_elements();
            }
        }
    }

    #[test]
    fn the_count_is_the_module_s_own() {
        for config in combinations() {
            let model = config.init(11, 0, Kernels::Plain, &Device::flex());
            let mut trained = Trained { name: String::new(), n_params: 0 };
            model.visit(&mut trained);
            assert_eq!(config.budget(11).params.total(), trained.n_params, "{config:?}");
        }
    }

    #[test]
    fn nanogpt_s_cpu_model_has_its_published_size() {
        // nanoGPT prints 0.80M parameters for 4 layers, 4 heads, width 128 and 65 characters without biases; it leaves
        // the position table out of the count and its norms have no bias.
        let sizes =
            ModelConfig { seq_len: 64, d_model: 128, n_layers: 4, n_heads: 4, n_kv_heads: 4, d_ff: 512, ..tiny() };
        let norm_biases = 9 * 128;
        assert_eq!(sizes.budget(65).params.total() - norm_biases - 64 * 128, 795_904);
    }

    #[test]
    fn flops_of_one_layer_by_hand() {
        let config = ModelConfig { n_layers: 1, d_ff: 10, ffn: Ffn::SwiGlu, ..tiny() };
        // q, k, v, o, and scores and mixing over 8 positions; three feed-forward matrices; the head.
        let expected = Parts {
            embedding: 0,
            attention: 6 * (4 * 16 * 16 + 2 * 8 * 16),
            ffn: 6 * 3 * 16 * 10,
            norm: 0,
            head: 6 * 11 * 16,
        };
        assert_eq!(config.budget(11).flops, expected);
    }

    #[test]
    fn rounding_up_to_256_breaks_equal_budgets() {
        // The rule of several trainers for a gated feed-forward: two thirds of 4 d_model, rounded up to a multiple of 256.
        let excess = |d_model: usize| {
            let plain = ModelConfig { d_model, d_ff: 4 * d_model, ..tiny() };
            let rounded = (8 * d_model / 3).div_ceil(256) * 256;
            let gated = ModelConfig { d_model, d_ff: rounded, ffn: Ffn::SwiGlu, ..tiny() };
            gated.budget(11).params.ffn as f64 / plain.budget(11).params.ffn as f64 - 1.0
        };
        for (d_model, expected) in
            [(64, 0.5), (128, 0.5), (256, 0.125), (512, 0.125), (320, 0.2), (192, 0.0), (384, 0.0), (768, 0.0)]
        {
            assert!((excess(d_model) - expected).abs() < 1e-12, "{d_model}: {}", excess(d_model));
        }
    }

    #[test]
    fn four_key_value_heads_for_sixteen_save_three_eighths_of_the_projections() {
        let config = |n_kv_heads| ModelConfig { d_model: 64, n_heads: 16, n_kv_heads, ..tiny() };
        let params = |n_kv_heads| config(n_kv_heads).budget(11).params.attention as f64;
        assert_eq!(params(4) / params(16), 1.0 - 0.375);
    }
}
