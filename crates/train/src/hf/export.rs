//! A finished run as a folder that `transformers` loads.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

use super::{Entry, Family, entries};
use crate::folder::BadFile;
use crate::{RunConfig, RunFolder, State, write_whole};

/// Writes `config.json`, `generation_config.json`, `model.safetensors`, `tokenizer.json` and `tokenizer_config.json` for
/// a finished run into `out`.
///
/// # Errors
/// A run that is not finished or damaged, or a model that no class of `transformers` can hold.
pub fn export(run: &RunFolder, out: &Path) -> Result<()> {
    if run.status()?.is_none_or(|status| status.state != State::Done) {
        return Err(BadFile::new(&run.path, "is not the folder of a finished run").into());
    }
    let config = run.config()?;
    let family = Family::of(&config.model)?;
    let path = run.weights_path();
    let bytes = fs::read(&path).map_err(|error| BadFile::new(&path, format!("cannot be read: {error}")))?;
    let ours = SafeTensors::deserialize(&bytes).map_err(|error| BadFile::new(&path, format!("is damaged: {error}")))?;
    let mut theirs = vec![];
    for entry in entries(family, &config.model, config.vocab_size) {
        let numbers = gather(&entry, &ours).map_err(|problem| BadFile::new(&path, problem))?;
        theirs.push((entry.theirs.clone(), entry.shape(), numbers));
    }
    let views = theirs.iter().map(|(name, shape, numbers)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), numbers).expect("as many bytes as the shape holds");
        (name.as_str(), view)
    });
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let file = safetensors::serialize(views, Some(metadata)).context("writing safetensors")?;

    fs::create_dir_all(out).with_context(|| format!("{}: cannot be created", out.display()))?;
    let weights = out.join("model.safetensors");
    fs::write(&weights, file).with_context(|| format!("{}: cannot be written", weights.display()))?;
    let write = |name: &str, value: Value| {
        write_whole(&out.join(name), &(serde_json::to_string_pretty(&value).expect("JSON values are writable") + "\n"))
    };
    write("config.json", model_config(family, &config))?;
    write("generation_config.json", json!({ "do_sample": true, "max_length": config.model.seq_len }))?;
    let tokenizer = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.model.seq_len,
        "clean_up_tokenization_spaces": false,
    });
    write("tokenizer_config.json", tokenizer)?;
    write_whole(&out.join("tokenizer.json"), &run.read("tokenizer.json")?)
}

/// Their tensor as little-endian f32, from ours; biases that we do not have are zeros.
fn gather(entry: &Entry, ours: &SafeTensors) -> Result<Vec<u8>, String> {
    let rows = entry.rows.unwrap_or(1);
    let width = entry.width();
    let mut numbers = vec![0f32; rows * width];
    let mut left = 0;
    for (name, own_width) in &entry.ours {
        match ours.tensor(name) {
            Ok(tensor) => {
                if tensor.dtype() != Dtype::F32 || tensor.data().len() != 4 * rows * own_width {
                    return Err(format!("its tensor {name} has another shape than config.toml says"));
                }
                let values =
                    tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
                for (i, value) in values.enumerate() {
                    let (row, column) = (i / own_width, left + i % own_width);
                    let at = if entry.transposed { column * rows + row } else { row * width + column };
                    numbers[at] = value;
                }
            }
            Err(_) if name.ends_with(".bias") => {}
            Err(_) => return Err(format!("has no tensor {name}")),
        }
        left += own_width;
    }
    Ok(numbers.into_iter().flat_map(f32::to_le_bytes).collect())
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
            "n_embd": model.d_model,
            "n_layer": model.n_layers,
            "n_head": model.n_heads,
            "n_inner": model.d_ff,
            "activation_function": act,
            "layer_norm_epsilon": 1e-5,
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
            "rms_norm_eps": 1e-5,
            "attention_bias": model.bias,
            "mlp_bias": model.bias,
        }),
        Family::StableLm => json!({
            "architectures": ["StableLmForCausalLM"],
            "model_type": "stablelm",
            "layer_norm_eps": 1e-5,
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
            "norm_epsilon": 1e-5,
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
