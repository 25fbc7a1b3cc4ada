//! Text from a finished run.

use anyhow::Result;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Int, Tensor, TensorData};
use data::Tokenizer;
use rand::Rng;
use random::{ChaCha8Rng, stream};

use crate::folder::BadFile;
use crate::{RunFolder, State};

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
    let finished = folder.status()?.is_some_and(|status| status.state == State::Done);
    if !finished {
        return Err(BadFile::new(&folder.path, "is not the folder of a finished run").into());
    }
    let config = folder.config()?;
    config.validate().map_err(|error| BadFile::new(&folder.path.join("config.toml"), error.to_string()))?;
    let json = folder.path.join("tokenizer.json");
    let tokenizer = Tokenizer::from_json(&folder.read("tokenizer.json")?)
        .map_err(|error| BadFile::new(&json, format!("is damaged: {error}")))?;
    if tokenizer.vocab_size() != config.vocab_size {
        let found = tokenizer.vocab_size();
        let problem = format!("has {found} token ids where config.toml says vocab_size = {}", config.vocab_size);
        return Err(BadFile::new(&json, problem).into());
    }
    let device = config.backend.device()?;
    let mut decoder = config.model.init(config.vocab_size, config.seed, &device);
    let weights = folder.weights_path();
    decoder.load_from(&mut SafetensorsStore::from_file(&weights)).map_err(|error| {
        let error = error.to_string();
        BadFile::new(&weights, format!("cannot be read: {}", error.lines().next().unwrap_or_default()))
    })?;

    let mut tokens = tokenizer.encode(&sampling.prompt)?;
    // An empty prompt starts as a line does; a vocabulary without line ends starts with its first token.
    let start = if tokens.is_empty() { tokenizer.encode("\n").unwrap_or(vec![0]) } else { vec![] };
    tokens.splice(0..0, start.iter().copied());
    let mut rng = stream(sampling.seed, "sample");
    for _ in 0..sampling.n_tokens {
        let seen: Vec<i32> =
            tokens[tokens.len().saturating_sub(config.model.seq_len)..].iter().map(|&id| id as i32).collect();
        let seq = seen.len();
        let logits = decoder.forward(Tensor::<2, Int>::from_data(TensorData::new(seen, [1, seq]), &device));
        let last: Tensor<1> = logits.narrow(1, seq - 1, 1).reshape([config.vocab_size]);
        tokens.push(draw(last, sampling.temperature, &mut rng));
    }
    Ok(tokenizer.decode(&tokens[start.len()..]))
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
