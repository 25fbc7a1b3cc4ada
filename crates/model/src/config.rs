//! What a model is made of.

use burn::tensor::Device;
use kernels::Kernels;
use serde::{Deserialize, Serialize};

use crate::{Decoder, Ffn, Init, NormKind, NormPlacement, Position, init};

/// Every choice that makes one decoder, all of them final.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Tokens in a training window, and the longest context that learned positions know.
    pub seq_len: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Attention heads; each is `d_model / n_heads` wide.
    pub n_heads: usize,
    /// Heads of keys and values; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Hidden width of the feed-forward.
    pub d_ff: usize,
    /// The function at every norm site.
    pub norm: NormKind,
    /// Where a block applies its norms.
    pub norm_placement: NormPlacement,
    /// The activation of the feed-forward.
    pub ffn: Ffn,
    /// How attention learns the order of tokens.
    pub position: Position,
    /// Base of the rotation frequencies of RoPE.
    pub rope_theta: f64,
    /// Whether the matrices of attention and feed-forward have biases.
    pub bias: bool,
    /// RMSNorm over each head's queries and keys.
    pub qk_norm: bool,
    /// Groups of a token's features, for the norms that have them.
    pub norm_groups: usize,
    /// What matrices are drawn from.
    pub init: Init,
    /// Probability that an element is dropped, after the embedding, in the attention weights and on both branches.
    pub dropout: f64,
    /// DyT only: initial alpha of the norms in front of (or behind) attention.
    pub alpha_attn: f64,
    /// DyT only: initial alpha of the norms of the feed-forward.
    pub alpha_ffn: f64,
    /// DyT only: initial alpha of the final norm.
    pub alpha_final: f64,
    /// Multiplies the embeddings by a learned scalar that starts at sqrt(d_model), as the DyT authors do for language models.
    pub embedding_scale: bool,
}

impl ModelConfig {
    /// Checks that the choices fit together.
    ///
    /// # Errors
    /// One sentence that names the key, its value and what would be right.
    pub fn validate(&self) -> Result<(), String> {
        // Far beyond what trains here, and small enough that no count of parameters or operations overflows.
        for (key, value, most) in [
            ("seq_len", self.seq_len, 1 << 17),
            ("d_model", self.d_model, 1 << 16),
            ("n_layers", self.n_layers, 1 << 10),
            ("n_heads", self.n_heads, 1 << 16),
            ("n_kv_heads", self.n_kv_heads, 1 << 16),
            ("norm_groups", self.norm_groups, 1 << 16),
            ("d_ff", self.d_ff, 1 << 18),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!("model.{key} = {value}: must be between 1 and {most}"));
            }
        }
        if !self.d_model.is_multiple_of(self.n_heads) {
            return Err(format!(
                "model.d_model = {} is not divisible by model.n_heads = {}",
                self.d_model, self.n_heads
            ));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(format!(
                "model.n_heads = {} is not divisible by model.n_kv_heads = {}",
                self.n_heads, self.n_kv_heads
            ));
        }
        if self.norm.has_groups() && !self.d_model.is_multiple_of(self.norm_groups) {
            return Err(format!(
                "model.d_model = {} is not divisible by model.norm_groups = {}",
                self.d_model, self.norm_groups
            ));
        }
        if self.position == Position::Rope && !self.head_dim().is_multiple_of(2) {
            return Err(format!(
                "model.position = \"rope\" rotates pairs, so d_model / n_heads must be even: it is {}",
                self.head_dim()
            ));
        }
        check_fraction("model.dropout", self.dropout)?;
        for (key, value) in [
            ("model.alpha_attn", self.alpha_attn),
            ("model.alpha_ffn", self.alpha_ffn),
            ("model.alpha_final", self.alpha_final),
            ("model.rope_theta", self.rope_theta),
        ] {
            check_positive(key, value)?;
        }
        Ok(())
    }

    /// Keys that these choices leave without effect, each with the choice that would use it.
    pub fn unused_keys(&self) -> Vec<(&'static str, &'static str)> {
        let mut unused = match (self.norm.has_alpha(), self.norm_placement.has_final_norm()) {
            (true, true) => vec![],
            (true, false) => vec![("alpha_final", "norm_placement = \"pre\"")],
            (false, _) => ["alpha_attn", "alpha_ffn", "alpha_final"].map(|key| (key, "norm = \"dyt\"")).to_vec(),
        };
        if self.norm == NormKind::None {
            unused.push(("norm_placement", "norm other than \"none\""));
        }
        if !self.norm.has_groups() {
            unused.push(("norm_groups", "norm = \"groupnorm\""));
        }
        if self.position != Position::Rope {
            unused.push(("rope_theta", "position = \"rope\""));
        } else if self.d_model == 2 * self.n_heads {
            // A single pair turns by its position, whatever the base.
            unused.push(("rope_theta", "d_model above 2 * model.n_heads"));
        }
        unused
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.d_model / self.n_heads
    }

    /// A decoder at its start, every tensor drawn from (`seed`, its name).
    pub fn init(&self, vocab_size: usize, seed: u64, kernels: Kernels, device: &Device) -> Decoder {
        init::draw(Decoder::new(self, vocab_size, kernels, device), self.init, self.n_layers, seed)
    }
}

/// Refuses what is not a positive number in 32 bits, in which it is used.
///
/// # Errors
/// One sentence that names the key, its value and what would be right.
pub fn check_positive(key: &str, value: f64) -> Result<(), String> {
    if (f32::MIN_POSITIVE..=f32::MAX).contains(&(value as f32)) {
        return Ok(());
    }
    Err(format!("{key} = {value:?}: must be a positive number that 32-bit floats hold, from about 1.2e-38 to 3.4e38"))
}

/// Refuses what is not at least 0 and below 1 in 32 bits, in which it is used.
///
/// # Errors
/// One sentence that names the key, its value and what would be right.
pub fn check_fraction(key: &str, value: f64) -> Result<(), String> {
    if value >= 0.0 && (value as f32) < 1.0 {
        return Ok(());
    }
    let rounded = if (0.0..1.0).contains(&value) { ", as a 32-bit float too" } else { "" };
    Err(format!("{key} = {value:?}: must be at least 0 and below 1{rounded}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use strum::VariantArray;

    pub(crate) use crate::contract::probe as tiny;

    /// Every norm at every placement, every feed-forward, every position, and the switches of attention, with all that
    /// interact combined.
    pub(crate) fn combinations() -> Vec<ModelConfig> {
        let mut all = vec![];
        for &norm in NormKind::VARIANTS {
            for &norm_placement in NormPlacement::VARIANTS {
                for &ffn in [Ffn::Gelu, Ffn::SwiGlu].iter() {
                    for &position in Position::VARIANTS {
                        all.push(ModelConfig { norm, norm_placement, ffn, position, ..tiny() });
                    }
                }
                for embedding_scale in [false, true] {
                    all.push(ModelConfig { norm, norm_placement, embedding_scale, bias: true, ..tiny() });
                }
            }
        }
        for &ffn in Ffn::VARIANTS {
            for bias in [false, true] {
                all.push(ModelConfig { ffn, bias, ..tiny() });
            }
        }
        for &position in Position::VARIANTS {
            for n_kv_heads in [1, 2, 4] {
                for qk_norm in [false, true] {
                    all.push(ModelConfig { position, n_heads: 4, n_kv_heads, qk_norm, ..tiny() });
                }
            }
        }
        all
    }

    fn check(change: impl FnOnce(&mut ModelConfig), expected: &str) {
        let mut config = tiny();
        change(&mut config);
        assert_eq!(config.validate().unwrap_err(), expected);
    }

    #[test]
    fn wrong_choices_are_named() {
        tiny().validate().unwrap();
        check(|c| c.n_heads = 3, "model.d_model = 16 is not divisible by model.n_heads = 3");
        check(|c| c.n_kv_heads = 3, "model.n_heads = 2 is not divisible by model.n_kv_heads = 3");
        check(
            |c| {
                c.norm = NormKind::GroupNorm;
                c.norm_groups = 3;
            },
            "model.d_model = 16 is not divisible by model.norm_groups = 3",
        );
        check(|c| c.n_layers = 0, "model.n_layers = 0: must be between 1 and 1024");
        check(|c| c.dropout = 1.0, "model.dropout = 1.0: must be at least 0 and below 1");
        check(|c| c.dropout = f64::NAN, "model.dropout = NaN: must be at least 0 and below 1");
        // burn refuses it too, in a panic.
        check(|c| c.dropout = -1e-50, "model.dropout = -1e-50: must be at least 0 and below 1");
        let rounded = "model.dropout = 0.9999999999: must be at least 0 and below 1, as a 32-bit float too";
        check(|c| c.dropout = 0.9999999999, rounded);
        let positive = "must be a positive number that 32-bit floats hold, from about 1.2e-38 to 3.4e38";
        check(|c| c.alpha_ffn = 0.0, &format!("model.alpha_ffn = 0.0: {positive}"));
        check(|c| c.rope_theta = 1e300, &format!("model.rope_theta = 1e300: {positive}"));
        check(|c| c.alpha_attn = 1e-46, &format!("model.alpha_attn = 1e-46: {positive}"));
        check(
            |c| {
                c.n_heads = 16;
                c.n_kv_heads = 16;
                c.position = Position::Rope;
            },
            "model.position = \"rope\" rotates pairs, so d_model / n_heads must be even: it is 1",
        );
    }

    #[test]
    fn a_placement_without_a_norm_has_no_effect() {
        for &norm in NormKind::VARIANTS {
            let unused = ModelConfig { norm, ..tiny() }.unused_keys();
            let is_unused = unused.iter().any(|(key, _)| *key == "norm_placement");
            assert_eq!(is_unused, norm == NormKind::None, "{norm:?}");
        }
        let rope = |n_heads| ModelConfig { position: Position::Rope, n_heads, ..tiny() };
        assert!(!rope(4).unused_keys().iter().any(|(key, _)| *key == "rope_theta"));
        assert!(rope(8).unused_keys().iter().any(|(key, _)| *key == "rope_theta"));
    }
}
