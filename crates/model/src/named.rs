//! The parameters of a decoder, by name.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use crate::Decoder;

/// A parameter, its path in the decoder, and its gradient if it has one; the numbers of both in a row.
pub struct Named {
    pub path: String,
    /// `[n]`
    pub weights: Tensor<1>,
    /// `[n]`
    pub grad: Option<Tensor<1>>,
}

/// Every parameter in the order of the forward pass.
pub fn named(decoder: &Decoder, grads: &GradientsParams) -> Vec<Named> {
    struct Names<'a> {
        path: Vec<String>,
        grads: &'a GradientsParams,
        all: Vec<Named>,
    }
    impl ModuleVisitor for Names<'_> {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.into());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let weights = param.val().flatten(0, D - 1);
            let grad = self.grads.get::<D>(param.id).map(|grad| grad.flatten(0, D - 1));
            self.all.push(Named { path: self.path.join("."), weights, grad });
        }
    }
    let mut names = Names { path: vec![], grads, all: vec![] };
    decoder.visit(&mut names);
    names.all
}
