//! The matrices of the blocks, their gradients and their changes.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor};

use super::{Measure, Values, square};
use crate::Decoder;

/// Matrices of the blocks, or their gradients, as rows of numbers under their paths.
pub(super) struct Matrices<'a> {
    grads: Option<&'a Gradients>,
    path: Vec<String>,
    all: Vec<(String, Tensor<1>)>,
}

impl<'a> Matrices<'a> {
    pub(super) fn of(decoder: &Decoder, grads: Option<&'a Gradients>) -> Self {
        let mut matrices = Matrices { grads, path: vec![], all: vec![] };
        decoder.visit(&mut matrices);
        matrices
    }

    /// L2 norm over those of a part of each block.
    pub(super) fn lengths(&self, n_blocks: usize, part: &str) -> Vec<f64> {
        let mut squares = vec![0.0; n_blocks];
        for (path, numbers) in &self.all {
            if let Some((block, rest)) = path.split_once('.')
                && rest.starts_with(part)
            {
                let block: usize = block.parse().expect("blocks are numbered");
                squares[block] += square(numbers.clone());
            }
        }
        squares.into_iter().map(f64::sqrt).collect()
    }
}

impl ModuleVisitor for Matrices<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.path.join(".");
        let Some(path) = path.strip_prefix("blocks.").filter(|_| D == 2) else { return };
        let numbers = match self.grads {
            Some(grads) => param.val().grad(grads).expect("every matrix has a gradient"),
            None => param.val().inner(),
        };
        self.all.push((path.into(), numbers.flatten(0, D - 1)));
    }
}

/// [`Measure::UpdateAttn`] and [`Measure::UpdateFfn`] of a step that has made one model of the other.
pub fn updates(before: &Decoder, after: &Decoder) -> Values {
    let (old, mut change) = (Matrices::of(before, None), Matrices::of(after, None));
    for ((_, new), (_, old)) in change.all.iter_mut().zip(&old.all) {
        *new = new.clone() - old.clone();
    }
    let ratios = |part| {
        let lengths = |matrices: &Matrices| matrices.lengths(before.blocks.len(), part);
        lengths(&change).into_iter().zip(lengths(&old)).map(|(change, old)| change / old).collect()
    };
    [(Measure::UpdateAttn, "attn."), (Measure::UpdateFfn, "ffn.")].map(|(measure, part)| (measure, ratios(part))).into()
}
