//! Exchange with Hugging Face `transformers`: which of its classes can hold a model, and under which names.

mod export;
mod import;

pub use export::export;
pub use import::{Imported, import};

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
            return refuse("model.norm_placement = \"post\" is in none of them");
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
            (NormKind::LayerNorm | NormKind::RmsNorm, Position::Learned, _) => {
                refuse("model.position = \"learned\" is GPT-2's, which has LayerNorm and a feed-forward without gate")
            }
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

    /// Shape of their tensor.
    fn shape(&self) -> Vec<usize> {
        match (self.rows, self.transposed) {
            (None, _) => vec![self.width()],
            (Some(rows), false) => vec![rows, self.width()],
            (Some(rows), true) => vec![self.width(), rows],
        }
    }
}

/// Every tensor of a model of this family.
fn entries(family: Family, config: &ModelConfig, vocab_size: usize) -> Vec<Entry> {
    let (d, d_ff) = (config.d_model, config.d_ff);
    let d_kv = config.n_kv_heads * config.head_dim();
    let mut all = vec![];
    let mut add = |theirs: String, ours: Vec<(String, usize)>, rows: Option<usize>, transposed: bool| {
        all.push(Entry { theirs, ours, rows, transposed });
    };
    let norm_kind = if config.norm == NormKind::RmsNorm { "RmsNorm" } else { "LayerNorm" };
    let has_beta = config.norm == NormKind::LayerNorm;
    let table = "token_embedding.weight".to_string();
    if family == Family::Gpt2 {
        add("transformer.wte.weight".into(), vec![(table, d)], Some(vocab_size), false);
        let positions = vec![("position_embedding.weight".into(), d)];
        add("transformer.wpe.weight".into(), positions, Some(config.seq_len), false);
    } else {
        add("model.embed_tokens.weight".into(), vec![(table, d)], Some(vocab_size), false);
    }
    let norm = |theirs: &str, ours: &str, add: &mut dyn FnMut(String, Vec<(String, usize)>, Option<usize>, bool)| {
        add(format!("{theirs}.weight"), vec![(format!("{ours}.{norm_kind}.gamma"), d)], None, false);
        if has_beta {
            add(format!("{theirs}.bias"), vec![(format!("{ours}.{norm_kind}.beta"), d)], None, false);
        }
    };
    for l in 0..config.n_layers {
        let ours = format!("blocks.{l}");
        let block = if family == Family::Gpt2 { format!("transformer.h.{l}") } else { format!("model.layers.{l}") };
        let (first, second) = match family {
            Family::Gpt2 => ("ln_1", "ln_2"),
            _ => ("input_layernorm", "post_attention_layernorm"),
        };
        norm(&format!("{block}.{first}"), &format!("{ours}.attn_norm"), &mut add);
        norm(&format!("{block}.{second}"), &format!("{ours}.ffn_norm"), &mut add);
        // (their name, our names with their widths, inputs)
        let projections: Vec<(&str, Vec<(&str, usize)>, usize)> = match family {
            Family::Gpt2 => vec![
                ("attn.c_attn", vec![("attn.q", d), ("attn.k", d), ("attn.v", d)], d),
                ("attn.c_proj", vec![("attn.o", d)], d),
                ("mlp.c_fc", vec![("ffn.up", d_ff)], d),
                ("mlp.c_proj", vec![("ffn.down", d)], d_ff),
            ],
            _ => {
                let mut all = vec![
                    ("self_attn.q_proj", vec![("attn.q", d)], d),
                    ("self_attn.k_proj", vec![("attn.k", d_kv)], d),
                    ("self_attn.v_proj", vec![("attn.v", d_kv)], d),
                    ("self_attn.o_proj", vec![("attn.o", d)], d),
                ];
                if family == Family::Starcoder2 {
                    all.extend([("mlp.c_fc", vec![("ffn.up", d_ff)], d), ("mlp.c_proj", vec![("ffn.down", d)], d_ff)]);
                } else {
                    all.extend([
                        ("mlp.gate_proj", vec![("ffn.gate", d_ff)], d),
                        ("mlp.up_proj", vec![("ffn.up", d_ff)], d),
                        ("mlp.down_proj", vec![("ffn.down", d)], d_ff),
                    ]);
                }
                all
            }
        };
        for (theirs, parts, rows) in projections {
            let part =
                |what: &str| parts.iter().map(|(name, width)| (format!("{ours}.{name}.{what}"), *width)).collect();
            // GPT-2's Conv1D keeps inputs first, as we do.
            add(format!("{block}.{theirs}.weight"), part("weight"), Some(rows), family != Family::Gpt2);
            // GPT-2 has biases always; without ours they are zeros.
            if config.bias || family == Family::Gpt2 {
                add(format!("{block}.{theirs}.bias"), part("bias"), None, false);
            }
        }
    }
    let last = if family == Family::Gpt2 { "transformer.ln_f" } else { "model.norm" };
    norm(last, "final_norm", &mut add);
    all
}
