//! Exchange with Hugging Face `transformers`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Device, Int, Tensor};
use serde_json::Value;
use tempfile::TempDir;
use train::RunFolder;

/// One variant for each class of transformers, and for what those classes can be told.
const STUDY: &str = r#"
match = "width"
seeds = 1
reference = "gpt2"
[model]
seq_len = 16
d_model = 16
n_layers = 2
n_heads = 4
n_kv_heads = 4
d_ff = 24
[data]
corpus = "text.txt"
[train]
steps = 3
lr = 3e-2
warmup_steps = 1
batch_size = 2
[[variant]]
name = "gpt2-bias-tanh"
model.bias = true
model.ffn = "gelu_tanh"
[[variant]]
name = "llama"
model.norm = "rmsnorm"
model.position = "rope"
model.ffn = "swiglu"
model.n_kv_heads = 2
[[variant]]
name = "llama-bias-geglu"
model.norm = "rmsnorm"
model.position = "rope"
model.ffn = "geglu"
model.bias = true
model.rope_theta = 500.0
[[variant]]
name = "stablelm"
model.position = "rope"
model.ffn = "swiglu"
model.n_kv_heads = 1
[[variant]]
name = "starcoder2"
model.position = "rope"
model.ffn = "gelu"
model.bias = true
model.n_kv_heads = 2
[[variant]]
name = "starcoder2-relu2"
model.position = "rope"
model.ffn = "relu2"
[[variant]]
name = "post"
model.norm_placement = "post"
[[variant]]
name = "rms-gelu"
model.norm = "rmsnorm"
model.position = "rope"
"#;

/// What is exported, and the class that must come of it.
const EXPORTED: [(&str, &str); 7] = [
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt2-bias-tanh", "GPT2LMHeadModel"),
    ("llama", "LlamaForCausalLM"),
    ("llama-bias-geglu", "LlamaForCausalLM"),
    ("stablelm", "StableLmForCausalLM"),
    ("starcoder2", "Starcoder2ForCausalLM"),
    ("starcoder2-relu2", "Starcoder2ForCausalLM"),
];

fn ablate(dir: &Path, args: &[&str]) -> assert_cmd::Command {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("ablate");
    command.current_dir(dir).args(args);
    command
}

fn run(name: &str) -> String {
    format!("runs/study/{name}/seed-0")
}

/// A folder in which every variant is trained.
fn trained() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("study.toml"), STUDY).unwrap();
    let text: String = (0..300).map(|i| format!("line {} of a text; ", i * i % 97)).collect();
    fs::write(dir.path().join("text.txt"), text).unwrap();
    ablate(dir.path(), &["study.toml"]).assert().success();
    dir
}

/// Our logits for the token ids 0 to 9.
fn logits(folder: PathBuf) -> Vec<f32> {
    let folder = RunFolder::new(folder);
    let config = folder.config().unwrap();
    let device = Device::flex();
    let mut decoder = config.model.init(config.vocab_size, 1, config.kernels, &device);
    decoder.load_from(&mut SafetensorsStore::from_file(folder.weights_path())).unwrap();
    let tokens = Tensor::<1, Int>::arange(0..10, &device).unsqueeze();
    decoder.forward(tokens).into_data().try_into_vec().unwrap()
}

#[test]
fn what_no_class_can_hold_is_refused_with_the_reason() {
    let dir = trained();
    let refused = |name: &str, reason: &str| {
        let output = ablate(dir.path(), &["export", &run(name), "--to", "hf"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason), "{error}");
    };
    refused("post", "no class of transformers can hold this model: model.norm_placement = \"post\" is in none of them");
    refused("rms-gelu", "model.norm = \"rmsnorm\" with a feed-forward without gate is in none of them");
    ablate(dir.path(), &["export", "runs/study", "--to", "hf"]).assert().code(5);
}

#[test]
fn llama_and_gpt2_come_back_as_they_went() {
    let dir = trained();
    for name in ["gpt2", "gpt2-bias-tanh", "llama", "llama-bias-geglu"] {
        ablate(dir.path(), &["export", &run(name), "--to", "hf", "--out", name]).assert().success();
        let back = format!("back/{name}");
        ablate(dir.path(), &["import", name, "--out", &back]).assert().success();
        assert_eq!(logits(dir.path().join(&back)), logits(dir.path().join(run(name))), "{name}");
        let sample = |run: &str| ablate(dir.path(), &["sample", run, "--prompt", "line"]).output().unwrap().stdout;
        assert_eq!(sample(&back), sample(&run(name)));
        ablate(dir.path(), &["import", name, "--out", &back]).assert().code(2);
    }
}

#[test]
fn folders_that_transformers_saved_are_read() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["llama", "gpt2"] {
        let folder = fs::canonicalize("tests/fixtures").unwrap().join(name);
        ablate(dir.path(), &["import", folder.to_str().unwrap(), "--out", name]).assert().success();
        let theirs: Vec<f32> = serde_json::from_slice(&fs::read(folder.join("logits.json")).unwrap()).unwrap();
        check_logits(name, &logits(dir.path().join(name)), &theirs);
        ablate(dir.path(), &["sample", name, "--prompt", "abc"]).assert().success();
    }
}

fn check_logits(name: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let largest = theirs.iter().fold(1f32, |largest, x| largest.max(x.abs()));
    let agree = ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= 1e-5 * largest);
    assert!(agree, "{name}: {ours:?} against {theirs:?}");
}

#[test]
fn damaged_and_foreign_folders_are_refused() {
    let dir = trained();
    ablate(dir.path(), &["export", &run("llama"), "--to", "hf", "--out", "hf"]).assert().success();
    let refused = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, reason: &str| {
        let path = dir.path().join("hf").join(file);
        let before = fs::read(&path).unwrap();
        fs::write(&path, change(before.clone())).unwrap();
        let output = ablate(dir.path(), &["import", "hf", "--out", "back"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{file}: {error}");
        assert!(error.contains(reason), "{file}: {error}");
        assert!(!dir.path().join("back").exists());
        fs::write(&path, before).unwrap();
    };
    let replace = |from: &'static str, to: &'static str| {
        move |bytes: Vec<u8>| {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.contains(from), "{from} in {text}");
            text.replace(from, to).into_bytes()
        }
    };
    refused("config.json", &replace("\"llama\"", "\"mistral\""), "model_type mistral; only llama and gpt2");
    refused("config.json", &replace("\"silu\"", "\"mish\""), "hidden_act = mish, which this program does not have");
    refused("config.json", &replace("\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 0.1"), "rms_norm_eps = 0.1");
    let scaled = "\"rope_scaling\": { \"rope_type\": \"linear\", \"factor\": 2.0 }, \"use_cache\"";
    refused("config.json", &replace("\"use_cache\"", scaled), "rope_scaling with scaled RoPE");
    refused(
        "config.json",
        &replace("\"use_cache\": true", "\"mlp_bias\": 1"),
        "mlp_bias = 1, which is of the wrong type",
    );
    refused("config.json", &replace("\"default\"", "\"yarn\""), "rope_parameters with scaled RoPE");
    refused(
        "config.json",
        &replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
        "has no place in the model",
    );
    refused(
        "config.json",
        &replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
        "has no tensor model.layers.2",
    );
    refused(
        "config.json",
        &replace("\"intermediate_size\": 24", "\"intermediate_size\": 25"),
        "has shape [24, 16] where",
    );
    refused("config.json", &replace("\"hidden_size\": 16", "\"hidden_size\": 17"), "divisible");
    refused("config.json", &replace("\"vocab_size\": ", "\"vocab_size\": -"), "must be a whole number from 0 to");
    refused("config.json", &|_| b"{".to_vec(), "config.json: is damaged");
    refused("tokenizer.json", &|_| b"{}".to_vec(), "tokenizer.json: is damaged");
    refused("model.safetensors", &|bytes| bytes[..bytes.len() - 1].to_vec(), "model.safetensors: is damaged");
    refused("model.safetensors", &|_| vec![0xFF; 64], "no header of at most");
    refused("model.safetensors", &|_| vec![], "no header of at most");
}

#[test]
fn transformers_computes_the_same_logits() {
    let ready = Command::new("python3").args(["-c", "import torch, transformers"]).output();
    if !ready.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("ABLATE_INTEROP").is_none(), "python3 lacks torch or transformers");
        eprintln!("skipped: python3 with torch and transformers is not installed; `just interop` installs them");
        return;
    }
    let dir = trained();
    for (name, _) in EXPORTED {
        ablate(dir.path(), &["export", &run(name), "--to", "hf", "--out", name]).assert().success();
    }
    let script = fs::canonicalize("tests/fixtures/hf_logits.py").unwrap();
    let output = Command::new("python3")
        .current_dir(dir.path())
        .arg(script)
        .args(EXPORTED.map(|(name, _)| name))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, kind) in EXPORTED {
        let theirs = &found[name];
        assert_eq!(
            (theirs["missing"].to_string(), theirs["unexpected"].to_string()),
            ("[]".into(), "[]".into()),
            "{name}"
        );
        assert_eq!(theirs["text"], "line 7 of a text", "{name}");
        assert_eq!(theirs["kind"], kind, "{name}");
        let theirs: Vec<f32> = serde_json::from_value(theirs["logits"].clone()).unwrap();
        check_logits(name, &logits(dir.path().join(run(name))), &theirs);
    }
}
