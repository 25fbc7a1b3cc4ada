//! What goes with the residual stream through a model.

use burn::tensor::Tensor;
use kernels::Kernels;

use crate::attention::Attention;
use crate::{FeedForward, Norm};

/// A forward pass: how it computes, and who follows it.
pub(crate) struct Pass<'a> {
    pub(crate) kernels: Kernels,
    hook: &'a mut dyn FnMut(Hook),
}

/// What a forward pass calls its hook with, in the order of the pass. What the hook does not use is not computed.
pub(crate) enum Hook<'a> {
    /// The stream after a part, `[batch, seq, d_model]`, with the part's name.
    Stream(std::fmt::Arguments<'a>, &'a Tensor<3>),
    /// A part and its input, `[batch, seq, d_model]`.
    Norm(&'a Norm, &'a Tensor<3>),
    Attention(&'a Attention, &'a Tensor<3>),
    FeedForward(&'a FeedForward, &'a Tensor<3>),
}

impl<'a> Pass<'a> {
    pub(crate) fn new(kernels: Kernels, hook: &'a mut dyn FnMut(Hook)) -> Self {
        Pass { kernels, hook }
    }

    pub(crate) fn call(&mut self, hook: Hook) {
        (self.hook)(hook);
    }

    /// x through a norm, if there is one: `[batch, seq, d_model]` to `[batch, seq, d_model]`.
    pub(crate) fn norm(&mut self, norm: Option<&Norm>, x: Tensor<3>) -> Tensor<3> {
        let Some(norm) = norm else { return x };
        self.call(Hook::Norm(norm, &x));
        norm.forward(x, self.kernels)
    }
}
