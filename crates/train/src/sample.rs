//! Text from a finished run.

use std::path::Path;

use anyhow::Result;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Int, Tensor, TensorData};
use rand::Rng;
use random::{ChaCha8Rng, stream};
use safetensors::tensor::{Dtype, SafeTensors};

use crate::folder::{BadFile, read_file, read_tokenizer};
use crate::{ConfigError, RunConfig, RunFolder};

/// How to draw text.
pub struct Sampling {
    pub prompt: String,
    pub n_tokens: usize,
    /// Divides the logits; 0 takes the likeliest token each time.
    pub temperature: f64,
    pub seed: u64,
}

/// The prompt and what the run's model writes after it.
///
/// # Errors
/// A run that is not finished, damaged files, a prompt with unknown characters.
pub fn sample(folder: &RunFolder, sampling: &Sampling) -> Result<String> {
    let config = folder.finished()?;
    let json = folder.path.join("tokenizer.json");
    let (_, tokenizer) = read_tokenizer(&folder.path)?;
    let n_known = tokenizer.vocab_size();
    // A model may have rows to spare, as where its vocabulary was rounded up; their tokens have no text.
    if !(1..=config.vocab_size).contains(&n_known) {
        let problem = format!("has {n_known} token ids where config.toml says vocab_size = {}", config.vocab_size);
        return Err(BadFile::new(&json, problem).into());
    }
    let weights = folder.weights_path();
    check_weights(&weights, &config)?;
    let device = config.backend.device()?;
    let mut decoder = config.model.init(config.vocab_size, config.seed, config.kernels, &device);
    let loaded = decoder.load_from(&mut SafetensorsStore::from_file(&weights)).map_err(|error| {
        let error: String = error.to_string().replace('\n', " ").chars().take(200).collect();
        BadFile::new(&weights, format!("does not fit config.toml: {error}"))
    })?;
    if let Some(name) = loaded.unused.first() {
        let problem = format!("has a tensor {name:?}, which has no place in the model of config.toml");
        return Err(BadFile::new(&weights, problem).into());
    }

    let wrong_prompt = |error| ConfigError(format!("--prompt: {error}"));
    let mut tokens = tokenizer.encode(&sampling.prompt).map_err(wrong_prompt)?;
    // An empty prompt starts as a line does; a vocabulary without line ends starts with its first token.
    let line_end = tokenizer.encode("\n").ok().filter(|ids| !ids.is_empty());
    let start = if tokens.is_empty() { line_end.unwrap_or(vec![0]) } else { vec![] };
    tokens.splice(0..0, start.iter().copied());
    let mut rng = stream(sampling.seed, "sample");
    for _ in 0..sampling.n_tokens {
        let seen: Vec<i32> =
            tokens[tokens.len().saturating_sub(config.model.seq_len)..].iter().map(|&id| id as i32).collect();
        let seq = seen.len();
        let logits = decoder.forward(Tensor::<2, Int>::from_data(TensorData::new(seen, [1, seq]), &device));
        let last: Tensor<1> = logits.narrow(1, seq - 1, 1).narrow(2, 0, n_known).reshape([n_known]);
        tokens.push(draw(last, sampling.temperature, &mut rng));
    }
    Ok(tokenizer.decode(&tokens[start.len()..])?)
}

/// Refuses weights that are not finite numbers of f32, or too few for the config, before a model is built for them.
fn check_weights(path: &Path, config: &RunConfig) -> Result<(), BadFile> {
    let bytes = read_file(path)?;
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|error| BadFile::new(path, format!("is damaged: {error}")))?;
    let mut n_params = 0;
    for (name, tensor) in tensors.tensors() {
        if tensor.dtype() != Dtype::F32 {
            return Err(BadFile::new(path, format!("its tensor {name:?} is {:?}, not F32", tensor.dtype())));
        }
        let mut numbers = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
        if !numbers.all(f32::is_finite) {
            return Err(BadFile::new(path, format!("its tensor {name:?} holds a number that is not finite")));
        }
        n_params += tensor.data().len() / 4;
    }
    let wanted = config.model.budget(config.vocab_size).params.total();
    if n_params < wanted {
        return Err(BadFile::new(path, format!("holds {n_params} numbers where config.toml's model has {wanted}")));
    }
    Ok(())
}

/// A token id with probability softmax(logits / temperature).
fn draw(logits: Tensor<1>, temperature: f64, rng: &mut ChaCha8Rng) -> u32 {
    let logits = logits.into_data().convert::<f64>().try_into_vec::<f64>().expect("just converted to f64");
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let likeliest = logits.iter().position(|&logit| logit == highest).unwrap_or(0);
    if temperature == 0.0 {
        return likeliest as u32;
    }
    let weights: Vec<f64> = logits.iter().map(|logit| ((logit - highest) / temperature).exp()).collect();
    let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * weights.iter().sum::<f64>();
    for (id, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return id as u32;
        }
    }
    likeliest as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn temperature_sharpens_the_choice() {
        let logits = || Tensor::<1>::from_data([0.0, 1.0, 3.0], &Device::flex());
        let share = |temperature: f64| {
            let mut rng = stream(0, "test");
            (0..2000).filter(|_| draw(logits(), temperature, &mut rng) == 2).count() as f64 / 2000.0
        };
        let expected = 3f64.exp() / (1.0 + 1f64.exp() + 3f64.exp());
        assert!((share(1.0) - expected).abs() < 0.03, "{}", share(1.0));
        for cold in [0.0, 1e-300, 1e-40, 1e-3] {
            assert_eq!(share(cold), 1.0, "{cold}");
        }
        assert!((share(1e9) - 1.0 / 3.0).abs() < 0.04);
    }
}
