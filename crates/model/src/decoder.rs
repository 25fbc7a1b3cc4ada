//! The whole model: tokens in, logits out.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Device, Int, Tensor};
use kernels::Kernels;

use crate::dropout::Dropout;
use crate::norm::Site;
use crate::pass::{Hook, Pass};
use crate::{Block, MicroBatch, ModelConfig, Norm, Position};

/// A decoder-only language model. Its output matrix is the token embedding's (a tied head).
#[derive(Module, Debug)]
pub struct Decoder {
    token_embedding: Embedding,
    position_embedding: Option<Embedding>,
    embedding_scale: Option<Param<Tensor<1>>>,
    pub(crate) blocks: Vec<Block>,
    final_norm: Option<Norm>,
    dropout: Dropout,
    #[module(skip)]
    pub(crate) kernels: Kernels,
}

impl Decoder {
    /// The structure alone: matrices and embeddings are zero until `init` draws them.
    pub(crate) fn new(config: &ModelConfig, vocab_size: usize, kernels: Kernels, device: &Device) -> Self {
        let embedding = |n| EmbeddingConfig::new(n, config.d_model).with_initializer(Initializer::Zeros).init(device);
        let scale = Initializer::Constant { value: (config.d_model as f64).sqrt() };
        Decoder {
            token_embedding: embedding(vocab_size),
            position_embedding: (config.position == Position::Learned).then(|| embedding(config.seq_len)),
            embedding_scale: config.embedding_scale.then(|| scale.init([1], device)),
            blocks: (0..config.n_layers).map(|_| Block::new(config, device)).collect(),
            final_norm: config.norm_placement.has_final_norm().then(|| config.norm.init(config, Site::Final, device)),
            dropout: Dropout::new(config.dropout),
            kernels,
        }
    }

    /// Token ids `[batch, seq]` to logits `[batch, seq, vocab]`. With learned positions `seq` is at most `seq_len`.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [batch, seq] = tokens.dims();
        let head = self.head();
        let [_, vocab] = head.dims();
        self.stream(tokens, &mut |_| {}).flatten::<2>(0, 1).matmul(head).reshape([batch, seq, vocab])
    }

    /// Token ids `[batch, seq]` to what the head sees, `[batch, seq, d_model]`.
    pub(crate) fn stream(&self, tokens: Tensor<2, Int>, hook: &mut dyn FnMut(Hook)) -> Tensor<3> {
        let [_, seq] = tokens.dims();
        let device = tokens.device();
        let mut x = self.token_embedding.forward(tokens);
        if let Some(scale) = &self.embedding_scale {
            x = x * scale.val().unsqueeze();
        }
        if let Some(positions) = &self.position_embedding {
            x = x + positions.forward(Tensor::arange(0..seq as i64, &device).unsqueeze());
        }
        x = self.dropout.forward(x);
        hook(Hook::Stream(format_args!("token_embedding"), &x));
        self.blocks_from(0, x, hook)
    }

    /// The way of the stream through the blocks from number `first`, from 0, and the final norm.
    pub(crate) fn blocks_from(&self, first: usize, mut x: Tensor<3>, hook: &mut dyn FnMut(Hook)) -> Tensor<3> {
        let mut pass = Pass::new(self.kernels, hook);
        for (i, block) in self.blocks.iter().enumerate().skip(first) {
            x = block.forward(x, &mut pass);
            pass.call(Hook::Stream(format_args!("blocks.{i}"), &x));
        }
        if let Some(norm) = &self.final_norm {
            x = pass.norm(Some(norm), x);
            pass.call(Hook::Stream(format_args!("final_norm"), &x));
        }
        x
    }

    /// The first part behind which the stream from these tokens, `[batch, seq]`, is not finite; `head` if only the logits are not.
    pub fn first_not_finite(&self, tokens: Tensor<2, Int>) -> Option<String> {
        let mut first = None;
        let last = self.stream(tokens, &mut |hook| {
            if let Hook::Stream(name, x) = hook
                && first.is_none()
                && !is_finite(x.clone())
            {
                first = Some(name.to_string());
            }
        });
        first.or_else(|| (!is_finite(last.flatten::<2>(0, 1).matmul(self.head()))).then(|| "head".into()))
    }

    /// Negative log-likelihood of each target in nats: inputs and targets `[batch, seq]` to `[batch * seq]`.
    pub fn nll(&self, inputs: Tensor<2, Int>, targets: Tensor<2, Int>) -> Tensor<1> {
        self.nll_of(self.stream(inputs, &mut |_| {}), targets)
    }

    /// The same of what the head sees, `[batch, seq, d_model]`.
    pub(crate) fn nll_of(&self, last: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
        self.kernels.nll(last.flatten(0, 1), self.token_embedding.weight.val(), targets.flatten(0, 1))
    }

    /// `[d_model, vocab]`
    pub(crate) fn head(&self) -> Tensor<2> {
        self.token_embedding.weight.val().transpose()
    }

    /// Whether it trains by statistics of the batch.
    pub(crate) fn has_batch_statistics(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block.attn_norm, Norm::BatchNorm(_)))
    }

    pub(crate) fn without_dropout(mut self) -> Self {
        self.dropouts().for_each(Dropout::disable);
        self
    }

    /// The same model for the pass of a micro-batch. It drops what a pass of the whole batch would drop of it, if the device's
    /// generator is seeded alike before each pass.
    pub fn in_micro_batch(mut self, micro_batch: MicroBatch) -> Self {
        self.dropouts().for_each(|dropout| dropout.micro_batch = micro_batch);
        self
    }

    fn dropouts(&mut self) -> impl Iterator<Item = &mut Dropout> {
        std::iter::once(&mut self.dropout).chain(self.blocks.iter_mut().flat_map(Block::dropouts))
    }
}

/// Whether a tensor holds neither NaN nor infinity.
pub fn is_finite<const D: usize>(x: Tensor<D>) -> bool {
    x.is_finite().all().into_scalar::<bool>()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::tests::{combinations, tiny};
    use crate::{Ffn, Init, NormKind, Rule};
    use burn::module::{ModuleMapper, ModuleVisitor};
    use burn::tensor::{Gradients, TensorData};
    use serde_json::Value;
    use std::collections::BTreeMap;
    use strum::VariantArray;

    fn ids(rows: &[Vec<i32>], device: &Device) -> Tensor<2, Int> {
        let data = TensorData::new(rows.concat(), [rows.len(), rows[0].len()]);
        Tensor::from_data(data, device)
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    /// The path and the tensor of each float parameter, or of its gradient.
    struct Named<'a> {
        path: Vec<String>,
        grads: Option<&'a Gradients>,
        found: BTreeMap<String, Vec<f32>>,
    }

    impl ModuleVisitor for Named<'_> {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.path.join(".");
            // Running statistics are visited like parameters, but nothing trains them.
            let found = match self.grads {
                Some(_) if name.contains("running_") => return,
                Some(grads) => values(param.val().grad(grads).expect("every parameter has a gradient")),
                None => values(param.val()),
            };
            self.found.insert(name, found);
        }
    }

    fn named(decoder: &Decoder, grads: Option<&Gradients>) -> BTreeMap<String, Vec<f32>> {
        let mut named = Named { path: vec![], grads, found: BTreeMap::new() };
        decoder.visit(&mut named);
        named.found
    }

    fn weights(decoder: &Decoder) -> BTreeMap<String, Vec<f32>> {
        named(decoder, None)
    }

    #[test]
    fn a_fresh_model_knows_nothing() {
        // 2% above ln(256) leaves room for the tied head, which starts out guessing the token it has just read.
        let device = Device::flex();
        for config in combinations() {
            let config = ModelConfig { seq_len: 32, d_model: 128, n_heads: 4, d_ff: 256, n_layers: 2, ..config };
            let rows = |shift: i32| vec![(0..32).map(|i| (i * 37 + shift * (i % 5) + shift) % 256).collect()];
            let nll = config.init(256, 1, Kernels::Fused, &device).nll(ids(&rows(0), &device), ids(&rows(1), &device));
            let ratio = nll.mean().into_scalar::<f64>() / 256f64.ln();
            assert!((ratio - 1.0).abs() < 0.02, "{ratio} times ln(256): {config:?}");
        }
    }

    #[test]
    fn the_first_part_that_overflows_is_named() {
        struct Blow(&'static str, f32, Vec<String>);
        impl ModuleMapper for Blow {
            fn enter_module(&mut self, name: &str, _container: &str) {
                self.2.push(name.into());
            }
            fn exit_module(&mut self, _name: &str, _container: &str) {
                self.2.pop();
            }
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let is_it = self.2.join(".") == self.0;
                param.map(|weights| if is_it { weights * self.1 } else { weights })
            }
        }
        let device = Device::flex();
        let decoder = || tiny().init(11, 0, Kernels::Fused, &device);
        let first = |decoder: Decoder| decoder.first_not_finite(ids(&[vec![1, 2, 3]], &device));
        assert_eq!(first(decoder()), None);
        for (weights, factor, part) in [
            ("token_embedding.weight", f32::INFINITY, "token_embedding"),
            ("blocks.0.ffn.down.weight", f32::INFINITY, "blocks.0"),
            ("blocks.1.attn.v.weight", f32::INFINITY, "blocks.1"),
            ("final_norm.LayerNorm.gamma", f32::INFINITY, "final_norm"),
        ] {
            let mut blow = Blow(weights, factor, vec![]);
            let blown = decoder().map(&mut blow);
            assert_eq!(first(blown).as_deref(), Some(part), "{weights}");
        }
    }

    #[test]
    fn a_later_token_changes_no_earlier_logit() {
        let device = Device::flex();
        for config in combinations() {
            // BatchNorm evaluates by running statistics, which look at nothing; norms that pool positions look ahead.
            if config.norm != NormKind::BatchNorm && config.norm.breaks().contains(&Rule::Causal) {
                continue;
            }
            let decoder = config.init(11, 3, Kernels::Fused, &device);
            let row: Vec<i32> = (0..8).map(|i| i * 3 % 11).collect();
            for changed in 1..8 {
                let mut other = row.clone();
                other[changed] = (other[changed] + 1) % 11;
                let logits = |row: &Vec<i32>| decoder.forward(ids(std::slice::from_ref(row), &device));
                let earlier = |row| values(logits(row).narrow(1, 0, changed));
                let from = |row| values(logits(row).narrow(1, changed, 8 - changed));
                assert_eq!(earlier(&row), earlier(&other), "position {changed}: {config:?}");
                assert_ne!(from(&row), from(&other), "position {changed}: {config:?}");
            }
        }
    }

    #[test]
    fn swapping_a_part_moves_no_other_weight() {
        let device = Device::flex();
        let (a, b) = (tiny(), ModelConfig { norm: NormKind::RmsNorm, ffn: Ffn::SwiGlu, ..tiny() });
        let (a, b) =
            (weights(&a.init(11, 0, Kernels::Fused, &device)), weights(&b.init(11, 0, Kernels::Fused, &device)));
        let shared: Vec<&String> = a.keys().filter(|name| b.contains_key(*name)).collect();
        assert_eq!(shared.len(), 2 + 2 * 6);
        for name in shared {
            assert_eq!(a[name], b[name], "{name}");
        }
        let other_seed = weights(&tiny().init(11, 1, Kernels::Fused, &device));
        assert_ne!(a["blocks.0.attn.q.weight"], other_seed["blocks.0.attn.q.weight"]);
        assert_ne!(a["blocks.0.attn.q.weight"], a["blocks.0.attn.k.weight"]);
    }

    fn deviation(weights: &[f32]) -> f64 {
        let squares: f64 = weights.iter().map(|&x| f64::from(x).powi(2)).sum();
        (squares / weights.len() as f64).sqrt()
    }

    #[test]
    fn weights_start_as_in_gpt2() {
        let config = ModelConfig { d_model: 128, d_ff: 512, n_layers: 8, ..tiny() };
        let all = weights(&config.init(200, 0, Kernels::Fused, &Device::flex()));
        for (name, expected) in [
            ("token_embedding.weight", 0.02),
            ("position_embedding.weight", 0.02),
            ("blocks.7.attn.q.weight", 0.02),
            ("blocks.7.attn.o.weight", 0.02 / 4.0),
            ("blocks.0.ffn.up.weight", 0.02),
            ("blocks.0.ffn.down.weight", 0.02 / 4.0),
        ] {
            assert!((deviation(&all[name]) / expected - 1.0).abs() < 0.05, "{name}: {}", deviation(&all[name]));
        }
    }

    #[test]
    fn xavier_goes_by_the_sizes_of_a_matrix_alone() {
        let config = ModelConfig { init: Init::Xavier, d_model: 128, d_ff: 512, n_layers: 8, ..tiny() };
        let all = weights(&config.init(200, 0, Kernels::Fused, &Device::flex()));
        for (name, expected) in [
            ("token_embedding.weight", 0.02),
            ("blocks.7.attn.o.weight", (2.0f64 / 256.0).sqrt()),
            ("blocks.0.ffn.up.weight", (2.0f64 / 640.0).sqrt()),
            ("blocks.0.ffn.down.weight", (2.0f64 / 640.0).sqrt()),
        ] {
            assert!((deviation(&all[name]) / expected - 1.0).abs() < 0.05, "{name}: {}", deviation(&all[name]));
        }
    }

    /// A decoder of the fixtures, which name only what they change.
    pub(crate) fn of_fixture(case: &Value, kernels: Kernels, device: &Device) -> Decoder {
        let config = ModelConfig { seq_len: 6, d_model: 8, n_heads: 4, ..tiny() };
        let mut config = serde_json::to_value(config).unwrap();
        config.as_object_mut().unwrap().extend(case["model"].as_object().unwrap().clone());
        let config: ModelConfig = serde_json::from_value(config).unwrap();
        Decoder::new(&config, 11, kernels, device).map(&mut Formula { path: vec![] })
    }

    /// Gives each parameter the numbers that `decoder.py` gives it.
    struct Formula {
        path: Vec<String>,
    }

    impl ModuleMapper for Formula {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let name = self.path.join(".");
            let phase: u32 = name.bytes().map(u32::from).sum();
            let (start, scale) = match name.as_str() {
                "embedding_scale" => (2.0, 0.2),
                name if ["gamma", "alpha", "running_var"].iter().any(|end| name.ends_with(end)) => (1.0, 0.2),
                _ => (0.0, 0.3),
            };
            param.map(|tensor| {
                let value = |i: usize| (start + scale * (0.7 * i as f64 + f64::from(phase)).sin()) as f32;
                let values = (0..tensor.shape().num_elements()).map(value).collect();
                Tensor::from_data(TensorData::new(values, tensor.shape()), &tensor.device()).require_grad()
            })
        }
    }

    /// Whether all numbers are within 1e-5 of the largest expected magnitude, or of 0.01 where that is less: the gradient
    /// of a bias of keys, for one, vanishes on paper.
    fn agrees(got: &[f32], expected: &Value) -> bool {
        let expected: Vec<f64> = expected.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect();
        assert_eq!(got.len(), expected.len());
        let largest = expected.iter().fold(1e-2, |largest: f64, x| largest.max(x.abs()));
        got.iter().zip(&expected).all(|(got, x)| (f64::from(*got) - x).abs() <= 1e-5 * largest)
    }

    #[test]
    fn loss_logits_and_gradients_are_pytorch_s() {
        let device = Device::flex().autodiff();
        let cases: Vec<Value> = serde_json::from_str(include_str!("../tests/fixtures/decoder.json")).unwrap();
        let has = |key: &str, name: &str| cases.iter().any(|case| case["model"][key] == *name);
        NormKind::VARIANTS.iter().for_each(|norm| assert!(has("norm", norm.into()), "no case for {norm:?}"));
        Ffn::VARIANTS.iter().for_each(|ffn| assert!(has("ffn", ffn.into()), "no case for {ffn:?}"));
        let both = cases.iter().flat_map(|case| Kernels::VARIANTS.iter().map(move |&kernels| (case, kernels)));
        for (case, kernels) in both {
            let (model, decoder) = (&case["model"], of_fixture(case, kernels, &device));
            let rows: Vec<Vec<i32>> = serde_json::from_value(case["tokens"].clone()).unwrap();
            let (inputs, targets) = (|r: &Vec<i32>| r[..6].to_vec(), |r: &Vec<i32>| r[1..].to_vec());
            let inputs = ids(&rows.iter().map(inputs).collect::<Vec<_>>(), &device);
            let targets = ids(&rows.iter().map(targets).collect::<Vec<_>>(), &device);

            assert!(agrees(&values(decoder.forward(inputs.clone())), &case["logits"]), "logits, {kernels:?}: {model}");
            let loss = decoder.nll(inputs, targets).mean();
            let expected = case["loss"].as_f64().unwrap();
            assert!((loss.clone().into_scalar::<f64>() / expected - 1.0).abs() < 1e-6);

            let grads = named(&decoder, Some(&loss.backward()));
            assert_eq!(grads.len(), case["grads"].as_object().unwrap().len());
            for (name, grad) in grads {
                assert!(agrees(&grad, &case["grads"][&name]), "the gradient of {name}, {kernels:?}: {model}");
            }
        }
    }
}
