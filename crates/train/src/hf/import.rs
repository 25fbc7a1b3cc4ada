//! A folder of `transformers` as a model of ours.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use ::safetensors::tensor::{Dtype, SafeTensors};
use anyhow::{Context, Result};
use data::MOST_TOKENS;
use model::{EPSILON, Ffn, Init, ModelConfig, NormKind, NormPlacement, Position};
use serde_json::Value;
use strum::VariantArray;

use super::{Entry, Family, are_finite, entries, safetensors};
use crate::folder::{BadFile, new_folder, read_text, read_tokenizer};
use crate::{RunConfig, RunFolder, State};

/// Largest header of a safetensors file that is read, in bytes.
const MOST_HEADER: u64 = 16 << 20;

/// Largest number of tensors that is read.
const MOST_TENSORS: usize = 1 << 16;

/// Tensors that older versions of `transformers` wrote beside the weights: masks and frequencies that follow from the config.
const BUFFERS: [&str; 3] = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];

/// An output matrix of its own.
const HEAD: &str = "lm_head.weight";

/// A model that was read.
pub struct Imported {
    pub model: ModelConfig,
    pub vocab_size: usize,
    /// The text of `tokenizer.json`.
    pub tokenizer: String,
    /// `model.safetensors` under our names.
    pub weights: Vec<u8>,
}

/// Reads a Llama or GPT-2 folder: `config.json`, `model.safetensors`, `tokenizer.json`.
///
/// # Errors
/// Another class, a setting that our decoder does not have, files that are missing, damaged or do not fit each other.
pub fn import(folder: &Path) -> Result<Imported, BadFile> {
    let path = folder.join("config.json");
    let json: Value = serde_json::from_str(&read_text(&path)?)
        .map_err(|error| BadFile::new(&path, format!("is damaged: {error}")))?;
    let settings = Settings { json: &json };
    let (family, model, vocab_size) = settings.model().map_err(|problem| BadFile::new(&path, problem))?;
    model.validate().map_err(|problem| BadFile::new(&path, problem))?;
    let (tokenizer, parsed) = read_tokenizer(folder)?;
    if parsed.vocab_size() > vocab_size {
        let found = parsed.vocab_size();
        return Err(BadFile::new(
            &folder.join("tokenizer.json"),
            format!("has {found} token ids where config.json says vocab_size = {vocab_size}"),
        ));
    }
    let path = folder.join("model.safetensors");
    let weights =
        weights(&path, &entries(family, &model, vocab_size)).map_err(|problem| BadFile::new(&path, problem))?;
    Ok(Imported { model, vocab_size, tokenizer, weights })
}

impl Imported {
    /// Writes it as the folder of a finished run, which `config` describes; `sample` and `export` read it.
    ///
    /// # Errors
    /// A folder that exists already, or cannot be written.
    pub fn write(&self, folder: &RunFolder, config: &RunConfig) -> Result<()> {
        new_folder(&folder.path, |path| {
            let folder = RunFolder::new(path);
            let weights = folder.weights_path();
            let parent = weights.parent().expect("a file in a folder");
            fs::create_dir_all(parent).with_context(|| format!("{}: cannot be created", parent.display()))?;
            fs::write(&weights, &self.weights).with_context(|| format!("{}: cannot be written", weights.display()))?;
            folder.set_tokenizer(&self.tokenizer)?;
            folder.set_config(config)?;
            folder.set_ended(State::Done, 0, None)
        })
    }
}

/// Their `config.json`.
struct Settings<'a> {
    json: &'a Value,
}

impl Settings<'_> {
    fn number(&self, key: &str) -> Result<usize, String> {
        let value = self.json.get(key).ok_or_else(|| format!("has no {key}"))?;
        let number = value.as_u64().filter(|&number| number <= 1 << 32);
        let number =
            number.ok_or_else(|| format!("has {key} = {value}: must be a whole number from 0 to {}", 1u64 << 32))?;
        Ok(number as usize)
    }

    fn number_or(&self, key: &str, default: usize) -> Result<usize, String> {
        match self.json.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(_) => self.number(key),
        }
    }

    /// The value under a key, or the default where there is none; `read` refuses a wrong type.
    fn or<T>(&self, key: &str, default: T, read: impl Fn(&Value) -> Option<T>) -> Result<T, String> {
        match self.json.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => read(value).ok_or_else(|| format!("has {key} = {value}, which is of the wrong type")),
        }
    }

    fn is(&self, key: &str, default: bool) -> Result<bool, String> {
        self.or(key, default, Value::as_bool)
    }

    /// Refuses any other value than ours.
    fn must_be(&self, key: &str, ours: f64, default: f64) -> Result<(), String> {
        let found = self.or(key, default, Value::as_f64)?;
        if found == ours { Ok(()) } else { Err(format!("has {key} = {found:?}, and this program knows only {ours:?}")) }
    }

    fn model(&self) -> Result<(Family, ModelConfig, usize), String> {
        let kind = self.json.get("model_type").and_then(Value::as_str).unwrap_or("none");
        let family = match kind {
            "llama" => Family::Llama,
            "gpt2" => Family::Gpt2,
            other => return Err(format!("is of model_type {other}; only llama and gpt2 can be imported")),
        };
        let is_llama = family == Family::Llama;
        if !self.is("tie_word_embeddings", !is_llama)? {
            return Err("has tie_word_embeddings = false, and this program's head is the embedding".into());
        }
        let key = |llama: &'static str, gpt2: &'static str| if is_llama { llama } else { gpt2 };
        let (d_model, n_heads) =
            (self.number(key("hidden_size", "n_embd"))?, self.number(key("num_attention_heads", "n_head"))?);
        let act_key = key("hidden_act", "activation_function");
        let default = key("silu", "gelu_new");
        let act = self.or(act_key, default.to_string(), |value| value.as_str().map(String::from))?;
        // Other names of the same functions.
        let act = match act.as_str() {
            "swish" => "silu",
            "gelu_pytorch_tanh" | "gelu_fast" => "gelu_new",
            name => name,
        };
        let ffn = Ffn::VARIANTS.iter().find(|ffn| ffn.is_gated() == is_llama && ffn.transformers_name() == Some(act));
        let ffn = *ffn.ok_or_else(|| format!("has {act_key} = {act}, which this program does not have"))?;
        let mut rope_theta = 10_000.0;
        if is_llama {
            self.must_be("rms_norm_eps", EPSILON, 1e-6)?;
            // Version 4 of transformers writes rope_theta and rope_scaling, version 5 rope_parameters.
            for key in ["rope_parameters", "rope_scaling"] {
                let parameters = self.json.get(key).filter(|parameters| !parameters.is_null());
                let is_flat = |p: &Value| p.as_object().is_some_and(|p| p.values().all(|value| !value.is_object()));
                if parameters.is_some_and(|parameters| !is_flat(parameters)) {
                    return Err(format!("has {key} of a form that this program does not know"));
                }
                let named = |name: &str| parameters.and_then(|parameters| parameters.get(name));
                let kind = named("rope_type").or(named("type"));
                if kind.is_some_and(|kind| kind != "default")
                    || (key == "rope_scaling" && parameters.is_some() && kind.is_none())
                {
                    return Err(format!("has {key} with scaled RoPE, which this program does not have"));
                }
            }
            let newer = self.json.get("rope_parameters").and_then(|parameters| parameters.get("rope_theta"));
            rope_theta = match newer {
                Some(theta) => {
                    theta.as_f64().ok_or_else(|| format!("has rope_theta = {theta}, which is not a number"))?
                }
                None => self.or("rope_theta", rope_theta, Value::as_f64)?,
            };
            if self.is("attention_bias", false)? != self.is("mlp_bias", false)? {
                return Err("has biases in attention or in the feed-forward only; this program has both or none".into());
            }
            if n_heads > 0 && self.number_or("head_dim", d_model / n_heads)? != d_model / n_heads {
                return Err("has a head_dim other than hidden_size / num_attention_heads".into());
            }
        } else {
            self.must_be("layer_norm_epsilon", EPSILON, 1e-5)?;
            if !self.is("scale_attn_weights", true)? || self.is("scale_attn_by_inverse_layer_idx", false)? {
                return Err("scales attention otherwise than by 1 / sqrt(head_dim)".into());
            }
        }
        let model = ModelConfig {
            seq_len: self.number(key("max_position_embeddings", "n_positions"))?,
            d_model,
            n_layers: self.number(key("num_hidden_layers", "n_layer"))?,
            n_heads,
            n_kv_heads: if is_llama { self.number_or("num_key_value_heads", n_heads)? } else { n_heads },
            d_ff: if is_llama { self.number("intermediate_size")? } else { self.number_or("n_inner", 4 * d_model)? },
            norm: if is_llama { NormKind::RmsNorm } else { NormKind::LayerNorm },
            norm_placement: NormPlacement::Pre,
            ffn,
            position: if is_llama { Position::Rope } else { Position::Learned },
            rope_theta,
            bias: !is_llama || self.is("attention_bias", false)?,
            qk_norm: false,
            norm_groups: 1,
            init: Init::Gpt2,
            dropout: 0.0,
            alpha_attn: 1.0,
            alpha_ffn: 1.0,
            alpha_final: 1.0,
            embedding_scale: false,
        };
        let vocab_size = self.number("vocab_size")?;
        if !(1..=MOST_TOKENS).contains(&vocab_size) {
            return Err(format!("has vocab_size = {vocab_size}: must be between 1 and {MOST_TOKENS}"));
        }
        Ok((family, model, vocab_size))
    }
}

/// The tensors of `path` under our names, as the bytes of a safetensors file.
fn weights(path: &Path, entries: &[Entry]) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("cannot be read, and only safetensors are imported: {error}");
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return Err("is not a regular file".into());
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut length = [0; 8];
    let has_header = file.read_exact(&mut length).is_ok() && u64::from_le_bytes(length) <= MOST_HEADER;
    if !has_header {
        return Err(format!("has no header of at most {MOST_HEADER} bytes"));
    }
    let mut bytes = length.to_vec();
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    let theirs = SafeTensors::deserialize(&bytes).map_err(|error| format!("is damaged: {error}"))?;
    let names = theirs.names();
    if names.len() > MOST_TENSORS {
        return Err(format!("has {} tensors; at most {MOST_TENSORS} are read", names.len()));
    }
    // Older folders of GPT-2 leave the prefix out.
    let short = |name: &str| name.strip_prefix("transformer.").map(str::to_string);
    let find = |name: &str| theirs.tensor(name).ok().or_else(|| theirs.tensor(&short(name)?).ok());
    let known: HashSet<String> =
        entries.iter().flat_map(|entry| [Some(entry.theirs.clone()), short(&entry.theirs)]).flatten().collect();
    for name in names {
        if name == HEAD {
            // A tied head may be written out too; any other is not ours.
            let embedding = find(&entries[0].theirs).map(|embedding| embedding.data());
            if embedding != theirs.tensor(HEAD).ok().map(|head| head.data()) {
                return Err(format!("its tensor {HEAD} is not the embedding, and this program's head is"));
            }
        } else if !known.contains(name) && !BUFFERS.iter().any(|buffer| name.ends_with(buffer)) {
            let name: String = name.chars().take(100).collect();
            return Err(format!("has a tensor {name:?}, which has no place in the model of config.json"));
        }
    }
    let mut ours: Vec<(String, Vec<usize>, Vec<u8>)> = vec![];
    for entry in entries {
        let tensor = find(&entry.theirs).ok_or_else(|| format!("has no tensor {}", entry.theirs))?;
        if tensor.dtype() != Dtype::F32 {
            return Err(format!("its tensor {} is {:?}; only F32 is imported", entry.theirs, tensor.dtype()));
        }
        if tensor.shape() != entry.shape() {
            let (found, wanted) = (tensor.shape(), entry.shape());
            return Err(format!("its tensor {} has shape {found:?} where config.json says {wanted:?}", entry.theirs));
        }
        if !are_finite(tensor.data()) {
            return Err(format!("its tensor {} holds a number that is not finite", entry.theirs));
        }
        for (i, (name, _)) in entry.ours.iter().enumerate() {
            let shape = entry.our_shape(i);
            let mut numbers = vec![0u8; 4 * shape.iter().product::<usize>()];
            for (theirs, ours) in entry.places(i) {
                numbers[ours..ours + 4].copy_from_slice(&tensor.data()[theirs..theirs + 4]);
            }
            ours.push((name.clone(), shape, numbers));
        }
    }
    safetensors(&ours).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::tiny;

    #[test]
    fn weights_that_are_not_finite_are_refused() {
        let config = tiny();
        let entries = entries(Family::Llama, &config.model, config.vocab_size);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        for (number, is_right) in [(f32::MIN, true), (f32::NAN, false), (f32::INFINITY, false)] {
            let mut theirs: Vec<_> = entries
                .iter()
                .map(|entry| {
                    (entry.theirs.clone(), entry.shape(), vec![0u8; 4 * entry.shape().iter().product::<usize>()])
                })
                .collect();
            theirs[1].2[8..12].copy_from_slice(&number.to_le_bytes());
            fs::write(&path, safetensors(&theirs).unwrap()).unwrap();
            let expected = format!("its tensor {} holds a number that is not finite", theirs[1].0);
            assert_eq!(weights(&path, &entries).err(), (!is_right).then_some(expected), "{number}");
        }
    }
}
