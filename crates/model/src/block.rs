//! One decoder block: attention and feed-forward, each on a residual branch.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::attention::Attention;
use crate::dropout::Dropout;
use crate::norm::Site;
use crate::pass::Pass;
use crate::{FeedForward, ModelConfig, Norm};

/// Where a block applies its norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray, IntoStaticStr, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum NormPlacement {
    /// x + f(norm(x)); a final norm follows the last block. GPT-2.
    Pre,
    /// norm(x + f(x)); the last block's norm is the final one. Vaswani et al., 2017.
    Post,
}

/// The norms of a branch, in `x = stream_norm(x + out_norm(f(in_norm(x))))`. A site without one passes its input on.
#[derive(Clone, Copy, Default)]
struct Norms<'a> {
    input: Option<&'a Norm>,
    output: Option<&'a Norm>,
    stream: Option<&'a Norm>,
}

impl NormPlacement {
    fn norms(self, norm: &Norm) -> Norms<'_> {
        match self {
            NormPlacement::Pre => Norms { input: Some(norm), ..Norms::default() },
            NormPlacement::Post => Norms { stream: Some(norm), ..Norms::default() },
        }
    }

    /// Whether the stream still needs a norm after the last block.
    pub(crate) fn has_final_norm(self) -> bool {
        match self {
            NormPlacement::Pre => true,
            NormPlacement::Post => false,
        }
    }

    /// Norms of a block.
    pub(crate) fn n_norms(self) -> usize {
        match self {
            NormPlacement::Pre | NormPlacement::Post => 2,
        }
    }
}

/// Attention and feed-forward around the residual stream.
#[derive(Module, Debug)]
pub struct Block {
    pub(crate) attn_norm: Norm,
    attn: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    #[module(skip)]
    placement: NormPlacement,
}

impl Block {
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        Block {
            attn_norm: config.norm.init(config, Site::Attention, device),
            attn: Attention::new(config, device),
            ffn_norm: config.norm.init(config, Site::FeedForward, device),
            ffn: FeedForward::new(config, device),
            placement: config.norm_placement,
        }
    }

    pub(crate) fn dropouts(&mut self) -> [&mut Dropout; 2] {
        [&mut self.ffn.dropout, &mut self.attn.dropout]
    }

    /// `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub(crate) fn forward(&self, x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        let (attn_norms, ffn_norms) = (self.placement.norms(&self.attn_norm), self.placement.norms(&self.ffn_norm));
        let x = branch(x, attn_norms, |x, onto, pass| self.attn.forward(x, onto, pass), pass);
        branch(x, ffn_norms, |x, onto, pass| self.ffn.forward(x, onto, pass), pass)
    }
}

/// `stream_norm(x + out_norm(f(in_norm(x))))`, where `add(h, x)` is `x + f(h)`.
fn branch(
    x: Tensor<3>,
    norms: Norms,
    add: impl Fn(Tensor<3>, Tensor<3>, &mut Pass) -> Tensor<3>,
    pass: &mut Pass,
) -> Tensor<3> {
    let h = pass.norm(norms.input, x.clone());
    let x = match norms.output {
        // In one operation, since nothing stands between f and the sum.
        None => add(h, x, pass),
        norm => {
            let y = add(h, x.zeros_like(), pass);
            x + pass.norm(norm, y)
        }
    };
    pass.norm(norms.stream, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NormKind;
    use crate::config::tests::tiny;
    use burn::tensor::{Distribution, TensorData};
    use kernels::Kernels;

    /// Each site by itself and all together, against the sentence written out.
    #[test]
    fn a_branch_has_three_sites_for_norms() {
        let device = Device::flex();
        let config = ModelConfig { norm: NormKind::RmsNorm, ..tiny() };
        let (norm, ffn) =
            (config.norm.init(&config, Site::Attention, &device), config.init(11, 0, Kernels::Fused, &device));
        let ffn = &ffn.blocks[0].ffn;
        let x = || Tensor::<3>::random([2, 3, config.d_model], Distribution::Default, &device) * 3.0;
        let mut hook = |_: crate::pass::Hook| {};
        let mut pass = Pass::new(Kernels::Fused, &mut hook);
        for sites in 0..8 {
            let at = |site: usize| (sites >> site & 1 == 1).then_some(&norm);
            let norms = Norms { input: at(0), output: at(1), stream: at(2) };
            let x = x();
            let found = branch(x.clone(), norms, |x, onto, pass| ffn.forward(x, onto, pass), &mut pass);
            let apply = |site: usize, x: Tensor<3>| at(site).map_or(x.clone(), |norm| norm.forward(x, Kernels::Plain));
            let h = apply(0, x.clone());
            let f = ffn.forward(h, x.zeros_like(), &mut Pass::new(Kernels::Plain, &mut |_| {}));
            let expected = apply(2, x + apply(1, f));
            let values = |x: Tensor<3>| -> Vec<f32> { TensorData::try_into_vec(x.into_data()).unwrap() };
            for (found, expected) in values(found).into_iter().zip(values(expected)) {
                assert!((found - expected).abs() < 1e-5, "sites {sites:03b}: {found} against {expected}");
            }
        }
    }
}
