//! A finished run as a folder that `transformers` loads.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use ::safetensors::tensor::{Dtype, SafeTensors};
use anyhow::{Context, Result};
use model::EPSILON;
use serde_json::{Value, json};

use super::{Entry, Family, are_finite, entries, safetensors};
use crate::folder::{BadFile, new_folder, read_file, read_tokenizer};
use crate::{RunConfig, RunFolder, write_whole};

/// Writes `config.json`, `generation_config.json`, `model.safetensors`, `tokenizer.json` and `tokenizer_config.json` for
/// a finished run into `out`.
///
/// # Errors
/// A run that is not finished or damaged, or a model that no class of `transformers` can hold.
pub fn export(run: &RunFolder, out: &Path) -> Result<()> {
    let config = run.finished()?;
    let family = Family::of(&config.model)?;
    let path = run.weights_path();
    let bytes = read_file(&path)?;
    let ours = SafeTensors::deserialize(&bytes).map_err(|error| BadFile::new(&path, format!("is damaged: {error}")))?;
    let entries = entries(family, &config.model, config.vocab_size);
    let known: HashSet<String> = entries.iter().flat_map(|entry| &entry.ours).map(|(name, _)| name.clone()).collect();
    if let Some(name) = ours.names().into_iter().find(|name| !known.contains(*name)) {
        let problem = format!("has a tensor {name:?}, which has no place in the model of config.toml");
        return Err(BadFile::new(&path, problem).into());
    }
    let mut theirs = vec![];
    for entry in entries {
        let numbers = gather(&entry, &ours, config.model.bias).map_err(|problem| BadFile::new(&path, problem))?;
        theirs.push((entry.theirs.clone(), entry.shape(), numbers));
    }
    let file = safetensors(&theirs)?;

    let (tokenizer, _) = read_tokenizer(&run.path)?;
    let settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.model.seq_len,
        "clean_up_tokenization_spaces": false,
    });
    new_folder(out, |folder| {
        let weights = folder.join("model.safetensors");
        fs::write(&weights, &file).with_context(|| format!("{}: cannot be written", weights.display()))?;
        let write = |name: &str, value: &Value| {
            let text = serde_json::to_string_pretty(value).expect("JSON values are writable") + "\n";
            write_whole(&folder.join(name), &text)
        };
        write("config.json", &model_config(family, &config))?;
        write("generation_config.json", &json!({ "do_sample": true }))?;
        write("tokenizer_config.json", &settings)?;
        write_whole(&folder.join("tokenizer.json"), &tokenizer)
    })
}

/// Their tensor as little-endian f32, from ours; biases that a model without biases lacks are zeros.
fn gather(entry: &Entry, ours: &SafeTensors, has_bias: bool) -> Result<Vec<u8>, String> {
    let mut parts = vec![];
    for (i, (name, _)) in entry.ours.iter().enumerate() {
        match ours.tensor(name) {
            Ok(tensor) if tensor.dtype() == Dtype::F32 && tensor.shape() == entry.our_shape(i) => {
                if !are_finite(tensor.data()) {
                    return Err(format!("its tensor {name} holds a number that is not finite"));
                }
                parts.push(Some(tensor))
            }
            Ok(_) => return Err(format!("its tensor {name} has another shape than config.toml says")),
            Err(_) if name.ends_with(".bias") && !has_bias => parts.push(None),
            Err(_) => return Err(format!("has no tensor {name}")),
        }
    }
    let mut bytes = vec![0u8; 4 * entry.rows.unwrap_or(1) * entry.width()];
    for (i, part) in parts.iter().enumerate() {
        for (theirs, ours) in entry.places(i) {
            if let Some(tensor) = part {
                bytes[theirs..theirs + 4].copy_from_slice(&tensor.data()[ours..ours + 4]);
            }
        }
    }
    Ok(bytes)
}

fn model_config(family: Family, config: &RunConfig) -> Value {
    let model = &config.model;
    let act = model.ffn.transformers_name();
    let mut value = json!({
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": true,
        "initializer_range": 0.02,
        "bos_token_id": null,
        "eos_token_id": null,
        "torch_dtype": "float32",
        "dtype": "float32",
        "use_cache": true,
    });
    let own = match family {
        Family::Gpt2 => json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": model.seq_len,
            // transformers has no use for it, but llama.cpp's converter does.
            "n_ctx": model.seq_len,
            "n_embd": model.d_model,
            "n_layer": model.n_layers,
            "n_head": model.n_heads,
            "n_inner": model.d_ff,
            "activation_function": act,
            "layer_norm_epsilon": EPSILON,
            "resid_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
            "attn_pdrop": model.dropout,
            "scale_attn_weights": true,
        }),
        _ => json!({
            "hidden_size": model.d_model,
            "intermediate_size": model.d_ff,
            "num_hidden_layers": model.n_layers,
            "num_attention_heads": model.n_heads,
            "num_key_value_heads": model.n_kv_heads,
            "hidden_act": act,
            "max_position_embeddings": model.seq_len,
            "attention_dropout": model.dropout,
            // Version 4 of transformers reads the first, version 5 the second.
            "rope_theta": model.rope_theta,
            "rope_parameters": { "rope_theta": model.rope_theta, "rope_type": "default" },
        }),
    };
    let more = match family {
        Family::Gpt2 => json!({}),
        Family::Llama => json!({
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "head_dim": model.head_dim(),
            "rms_norm_eps": EPSILON,
            "attention_bias": model.bias,
            "mlp_bias": model.bias,
        }),
        Family::StableLm => json!({
            "architectures": ["StableLmForCausalLM"],
            "model_type": "stablelm",
            "layer_norm_eps": EPSILON,
            "partial_rotary_factor": 1.0,
            "rope_parameters": {
                "rope_theta": model.rope_theta, "rope_type": "default", "partial_rotary_factor": 1.0
            },
            "use_qkv_bias": false,
            "qk_layernorm": false,
            "use_parallel_residual": false,
            "hidden_dropout": model.dropout,
        }),
        Family::Starcoder2 => json!({
            "architectures": ["Starcoder2ForCausalLM"],
            "model_type": "starcoder2",
            "norm_epsilon": EPSILON,
            "use_bias": model.bias,
            "sliding_window": null,
            "residual_dropout": model.dropout,
            "embedding_dropout": model.dropout,
        }),
    };
    for part in [own, more] {
        let (Value::Object(all), Value::Object(part)) = (&mut value, part) else { unreachable!("objects all") };
        all.extend(part);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn gpt2_s_context_has_both_of_its_names() {
        let config = model_config(Family::Gpt2, &tiny());
        assert_eq!((&config["n_positions"], &config["n_ctx"]), (&json!(16), &json!(16)));
    }

    #[test]
    fn weights_that_are_not_finite_are_not_exported() {
        let config = tiny();
        let entry = &entries(Family::Llama, &config.model, config.vocab_size)[0];
        for (number, expected) in [
            (1.0f32, None),
            (f32::NEG_INFINITY, Some("its tensor token_embedding.weight holds a number that is not finite")),
        ] {
            let shape = entry.our_shape(0);
            let mut numbers = vec![0u8; 4 * shape.iter().product::<usize>()];
            numbers[4..8].copy_from_slice(&number.to_le_bytes());
            let file = safetensors(&[(entry.ours[0].0.clone(), shape, numbers)]).unwrap();
            let error = gather(entry, &SafeTensors::deserialize(&file).unwrap(), false).err();
            assert_eq!(error.as_deref(), expected);
        }
    }
}
