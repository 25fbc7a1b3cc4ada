//! The matrices of the blocks, their gradients and their changes.

use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::{Measure, Values, square};
use crate::{Decoder, Named, named};

/// L2 norm over what `of` takes of the matrices of a part, `attn.` or `ffn.` or one of theirs, block by block.
fn lengths(all: &[Named], n_blocks: usize, part: &str, of: impl Fn(usize, &Named) -> Tensor<1>) -> Vec<f64> {
    let mut squares = vec![0.0; n_blocks];
    for (i, own) in all.iter().enumerate() {
        if let Some((block, rest)) = own.path.strip_prefix("blocks.").and_then(|path| path.split_once('.'))
            && rest.starts_with(part)
            && rest.ends_with(".weight")
        {
            let block: usize = block.parse().expect("blocks are numbered");
            squares[block] += square(of(i, own));
        }
    }
    squares.into_iter().map(f64::sqrt).collect()
}

/// [`Measure::GradAttn`] and those of the feed-forward.
pub(super) fn gradients(decoder: &Decoder, grads: &GradientsParams) -> Values {
    let all = named(decoder, grads);
    let grad = |_, own: &Named| own.grad.clone().expect("every matrix has a gradient");
    let parts = [(Measure::GradAttn, "attn."), (Measure::GradFfn, "ffn."), (Measure::GradDown, "ffn.down.")];
    parts.map(|(measure, part)| (measure, lengths(&all, decoder.blocks.len(), part, grad))).into()
}

/// [`Measure::UpdateAttn`] and [`Measure::UpdateFfn`] of a step that has made one model of the other.
pub fn updates(before: &Decoder, after: &Decoder) -> Values {
    let [old, new] = [before, after].map(|decoder| named(decoder, &GradientsParams::new()));
    let weights = |own: &Named| own.weights.clone().inner();
    let ratios = |part| {
        let lengths = |of: &dyn Fn(usize, &Named) -> Tensor<1>| lengths(&old, before.blocks.len(), part, of);
        let changes = lengths(&|i, own| weights(&new[i]) - weights(own));
        changes.into_iter().zip(lengths(&|_, own| weights(own))).map(|(change, old)| change / old).collect()
    };
    [(Measure::UpdateAttn, "attn."), (Measure::UpdateFfn, "ffn.")].map(|(measure, part)| (measure, ratios(part))).into()
}
