//! Text from a finished run.

use anyhow::Result;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::activation::softmax;
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
    let device = config.backend.device()?;
    let mut decoder = config.model.init(config.vocab_size, config.seed, &device);
    let weights = folder.weights_path();
    decoder
        .load_from(&mut SafetensorsStore::from_file(&weights))
        .map_err(|error| BadFile::new(&weights, format!("cannot be read: {error}")))?;
    let json = folder.read("tokenizer.json")?;
    let tokenizer = Tokenizer::from_json(&json)?;

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
        tokens.push(draw(last, sampling.temperature, &mut rng)?);
    }
    Ok(tokenizer.decode(&tokens[start.len()..])?)
}

/// A token id with probability softmax(logits / temperature).
fn draw(logits: Tensor<1>, temperature: f64, rng: &mut ChaCha8Rng) -> Result<u32> {
    if temperature == 0.0 {
        return Ok(logits.argmax(0).into_scalar::<i64>() as u32);
    }
    let probabilities = softmax(logits / temperature, 0)
        .into_data()
        .convert::<f64>()
        .try_into_vec::<f64>()
        .expect("just converted to f64");
    let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    for (id, probability) in probabilities.iter().enumerate() {
        left -= probability;
        if left < 0.0 {
            return Ok(id as u32);
        }
    }
    Ok(probabilities.len() as u32 - 1)
}
