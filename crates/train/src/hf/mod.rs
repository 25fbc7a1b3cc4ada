//! Exchange with Hugging Face `transformers`: which of its classes can hold a model, and under which names.

mod export;
mod import;

pub use export::export;
pub use import::{Imported, import};

use std::collections::HashMap;

use ::safetensors::tensor::{Dtype, TensorView};
use model::{ModelConfig, NormKind, NormPlacement, Position};

use crate::ConfigError;

/// A class of `transformers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// LayerNorm, learned positions, a plain feed-forward.
    Gpt2,
    /// RMSNorm, RoPE, a gated feed-forward.
    Llama,
    /// LayerNorm, RoPE, a gated feed-forward.
    StableLm,
    /// LayerNorm, RoPE, a plain feed-forward.
    Starcoder2,
}

impl Family {
    /// The class that computes exactly what this model does.
    ///
    /// # Errors
    /// The switch for which there is none.
    fn of(config: &ModelConfig) -> Result<Self, ConfigError> {
        let refuse = |why: &str| Err(ConfigError(format!("no class of transformers can hold this model: {why}")));
        if config.norm_placement != NormPlacement::Pre {
            let placement: &str = config.norm_placement.into();
            return refuse(&format!("model.norm_placement = \"{placement}\" is in none of them"));
        }
        if config.embedding_scale {
            return refuse("model.embedding_scale = true is in none of them");
        }
        if config.qk_norm {
            return refuse("model.qk_norm = true is in none of GPT-2, Llama, StableLM and Starcoder2");
        }
        if config.ffn.transformers_name().is_none() {
            return refuse(&format!("model.ffn = \"{}\" has no name there", <&str>::from(config.ffn)));
        }
        match (config.norm, config.position, config.ffn.is_gated()) {
            (NormKind::LayerNorm, Position::Learned, false) if config.n_kv_heads != config.n_heads => {
                refuse("model.n_kv_heads differs from model.n_heads, and GPT-2 has no grouped queries")
            }
            (NormKind::LayerNorm, Position::Learned, false) => Ok(Family::Gpt2),
            (NormKind::RmsNorm, Position::Rope, true) => Ok(Family::Llama),
            (NormKind::LayerNorm, Position::Rope, true) if config.bias => refuse(
                "model.bias = true with LayerNorm, RoPE and a gate: StableLM has biases on queries, keys and values only",
            ),
            (NormKind::LayerNorm, Position::Rope, true) => Ok(Family::StableLm),
            (NormKind::LayerNorm, Position::Rope, false) => Ok(Family::Starcoder2),
            (NormKind::RmsNorm, Position::Rope, false) => {
                refuse("model.norm = \"rmsnorm\" with a feed-forward without gate is in none of them")
            }
            (NormKind::LayerNorm | NormKind::RmsNorm, Position::None, _) => {
                refuse("model.position = \"none\" is in none of them")
            }
            (NormKind::LayerNorm | NormKind::RmsNorm, Position::Learned, _) => refuse(
                "model.position = \"learned\" goes with LayerNorm and a feed-forward without gate (GPT-2); train with \"rope\" instead",
            ),
            (norm, _, _) => refuse(&format!("model.norm = \"{}\" is in none of them", <&str>::from(norm))),
        }
    }
}

/// One tensor of `transformers` and the tensors of ours that it is made of.
struct Entry {
    theirs: String,
    /// Names and widths, side by side along the last axis.
    ours: Vec<(String, usize)>,
    /// Length of the first axis of a matrix; a vector has none.
    rows: Option<usize>,
    /// Whether theirs is `[output, input]`, where ours is `[input, output]`.
    transposed: bool,
}

impl Entry {
    fn width(&self) -> usize {
        self.ours.iter().map(|(_, width)| width).sum()
    }

    /// Offsets in bytes of each number of part `i`: in their tensor, and in ours.
    fn places(&self, i: usize) -> impl Iterator<Item = (usize, usize)> {
        let left: usize = self.ours[..i].iter().map(|(_, width)| width).sum();
        let (own, width, rows, transposed) = (self.ours[i].1, self.width(), self.rows.unwrap_or(1), self.transposed);
        (0..rows * own).map(move |at| {
            let (row, column) = (at / own, left + at % own);
            (4 * if transposed { column * rows + row } else { row * width + column }, 4 * at)
        })
    }

    /// Shape of part `i`, a tensor of ours.
    fn our_shape(&self, i: usize) -> Vec<usize> {
        self.rows.into_iter().chain([self.ours[i].1]).collect()
    }

    /// Shape of their tensor.
    fn shape(&self) -> Vec<usize> {
        match (self.rows, self.transposed) {
            (None, _) => vec![self.width()],
            (Some(rows), false) => vec![rows, self.width()],
            (Some(rows), true) => vec![self.width(), rows],
        }
    }
}

/// Whether little-endian f32 are finite numbers all.
fn are_finite(bytes: &[u8]) -> bool {
    bytes.chunks_exact(4).all(|b| f32::from_le_bytes(b.try_into().expect("four bytes")).is_finite())
}

/// The bytes of a safetensors file of f32 tensors, each with its name, shape and bytes.
fn safetensors(tensors: &[(String, Vec<usize>, Vec<u8>)]) -> anyhow::Result<Vec<u8>> {
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many bytes as the shape holds");
        (name.as_str(), view)
    });
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    Ok(::safetensors::serialize(views, Some(metadata))?)
}

/// Every tensor of a model of this family.
fn entries(family: Family, config: &ModelConfig, vocab_size: usize) -> Vec<Entry> {
    let (d, d_ff) = (config.d_model, config.d_ff);
    let d_kv = config.n_kv_heads * config.head_dim();
    let mut names = Names { entries: vec![], family, config };
    if family == Family::Gpt2 {
        names.table("transformer.wte.weight", "token_embedding.weight", vocab_size);
        names.table("transformer.wpe.weight", "position_embedding.weight", config.seq_len);
    } else {
        names.table("model.embed_tokens.weight", "token_embedding.weight", vocab_size);
    }
    for l in 0..config.n_layers {
        let ours = format!("blocks.{l}");
        let our = |name: &str, width: usize| (format!("{ours}.{name}"), width);
        if family == Family::Gpt2 {
            let their = |name: &str| format!("transformer.h.{l}.{name}");
            names.norm(&their("ln_1"), &format!("{ours}.attn_norm"));
            names.projection(&their("attn.c_attn"), &[our("attn.q", d), our("attn.k", d), our("attn.v", d)], d);
            names.projection(&their("attn.c_proj"), &[our("attn.o", d)], d);
            names.norm(&their("ln_2"), &format!("{ours}.ffn_norm"));
            names.projection(&their("mlp.c_fc"), &[our("ffn.up", d_ff)], d);
            names.projection(&their("mlp.c_proj"), &[our("ffn.down", d)], d_ff);
            continue;
        }
        let their = |name: &str| format!("model.layers.{l}.{name}");
        names.norm(&their("input_layernorm"), &format!("{ours}.attn_norm"));
        names.projection(&their("self_attn.q_proj"), &[our("attn.q", d)], d);
        names.projection(&their("self_attn.k_proj"), &[our("attn.k", d_kv)], d);
        names.projection(&their("self_attn.v_proj"), &[our("attn.v", d_kv)], d);
        names.projection(&their("self_attn.o_proj"), &[our("attn.o", d)], d);
        names.norm(&their("post_attention_layernorm"), &format!("{ours}.ffn_norm"));
        let (up, down) = match family {
            Family::Starcoder2 => ("mlp.c_fc", "mlp.c_proj"),
            _ => ("mlp.up_proj", "mlp.down_proj"),
        };
        if config.ffn.is_gated() {
            names.projection(&their("mlp.gate_proj"), &[our("ffn.gate", d_ff)], d);
        }
        names.projection(&their(up), &[our("ffn.up", d_ff)], d);
        names.projection(&their(down), &[our("ffn.down", d)], d_ff);
    }
    names.norm(if family == Family::Gpt2 { "transformer.ln_f" } else { "model.norm" }, "final_norm");
    names.entries
}

/// Collects entries.
struct Names<'a> {
    entries: Vec<Entry>,
    family: Family,
    config: &'a ModelConfig,
}

impl Names<'_> {
    fn add(&mut self, theirs: String, ours: Vec<(String, usize)>, rows: Option<usize>, transposed: bool) {
        self.entries.push(Entry { theirs, ours, rows, transposed });
    }

    /// One vector of the model's width for each of `rows`.
    fn table(&mut self, theirs: &str, ours: &str, rows: usize) {
        self.add(theirs.into(), vec![(ours.into(), self.config.d_model)], Some(rows), false);
    }

    fn norm(&mut self, theirs: &str, ours: &str) {
        let d_model = self.config.d_model;
        let kind = if self.config.norm == NormKind::RmsNorm { "RmsNorm" } else { "LayerNorm" };
        self.add(format!("{theirs}.weight"), vec![(format!("{ours}.{kind}.gamma"), d_model)], None, false);
        if kind == "LayerNorm" {
            self.add(format!("{theirs}.bias"), vec![(format!("{ours}.{kind}.beta"), d_model)], None, false);
        }
    }

    /// A matrix with `rows` inputs and, where there is one, its bias.
    fn projection(&mut self, theirs: &str, ours: &[(String, usize)], rows: usize) {
        let is_gpt2 = self.family == Family::Gpt2;
        let part = |what: &str| ours.iter().map(|(name, width)| (format!("{name}.{what}"), *width)).collect();
        // GPT-2's Conv1D keeps inputs first, as we do.
        self.add(format!("{theirs}.weight"), part("weight"), Some(rows), !is_gpt2);
        // GPT-2 has biases always; without ours they are zeros.
        if self.config.bias || is_gpt2 {
            self.add(format!("{theirs}.bias"), part("bias"), None, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;
    use model::Ffn;

    /// Checks the class of a Llama-like model after a change, or why there is none.
    fn check(change: impl FnOnce(&mut ModelConfig), expected: Result<Family, &str>) {
        let mut config = tiny().model;
        change(&mut config);
        let found = Family::of(&config).map_err(|error| error.0);
        let expected = expected.map_err(|why| format!("no class of transformers can hold this model: {why}"));
        assert_eq!(found, expected);
    }

    #[test]
    fn each_model_has_its_class_or_a_reason() {
        use Family::*;
        let gpt2 = |c: &mut ModelConfig| {
            (c.norm, c.position, c.ffn) = (NormKind::LayerNorm, Position::Learned, Ffn::Gelu);
        };
        check(|_| {}, Ok(Llama));
        check(|c| c.bias = true, Ok(Llama));
        check(gpt2, Ok(Gpt2));
        check(|c| c.norm = NormKind::LayerNorm, Ok(StableLm));
        check(|c| (c.norm, c.ffn) = (NormKind::LayerNorm, Ffn::Relu), Ok(Starcoder2));
        check(|c| c.norm_placement = NormPlacement::Post, Err("model.norm_placement = \"post\" is in none of them"));
        check(|c| c.embedding_scale = true, Err("model.embedding_scale = true is in none of them"));
        let qk_norm = "model.qk_norm = true is in none of GPT-2, Llama, StableLM and Starcoder2";
        check(|c| c.qk_norm = true, Err(qk_norm));
        check(|c| c.ffn = Ffn::Elu, Err("model.ffn = \"elu\" has no name there"));
        check(|c| c.position = Position::None, Err("model.position = \"none\" is in none of them"));
        let learned = "model.position = \"learned\" goes with LayerNorm and a feed-forward without gate (GPT-2); train with \
                       \"rope\" instead";
        check(|c| c.position = Position::Learned, Err(learned));
        let plain = "model.norm = \"rmsnorm\" with a feed-forward without gate is in none of them";
        check(|c| c.ffn = Ffn::Gelu, Err(plain));
        check(
            |c| {
                gpt2(c);
                c.n_kv_heads = 1;
            },
            Err("model.n_kv_heads differs from model.n_heads, and GPT-2 has no grouped queries"),
        );
        check(
            |c| (c.norm, c.bias) = (NormKind::LayerNorm, true),
            Err(
                "model.bias = true with LayerNorm, RoPE and a gate: StableLM has biases on queries, keys and values only",
            ),
        );
        check(|c| c.norm = NormKind::Dyt, Err("model.norm = \"dyt\" is in none of them"));
    }
}
