//! Tensors whose numbers lie in memory.

use std::ops::{Deref, DerefMut};

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;

/// A backend whose float tensors can be read and written as slices of f32.
pub trait Host: Backend {
    /// The numbers of a tensor, row by row. They are copied when they are written while another tensor shares them.
    type Numbers: Deref<Target = [f32]> + DerefMut + Sync;

    /// The numbers of a tensor; copied only if they do not lie row by row.
    fn numbers(tensor: FloatTensor<Self>) -> Self::Numbers;

    /// A tensor of this shape.
    fn tensor(numbers: Vec<f32>, shape: &[usize]) -> FloatTensor<Self>;

    /// The tensor that numbers were taken from, with its shape.
    fn give_back(numbers: Self::Numbers) -> FloatTensor<Self>;
}

#[cfg(feature = "flex")]
mod flex {
    use burn::backend::flex::{Flex, FlexTensor, Layout};
    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Bytes, DType, Shape};

    use super::{Deref, DerefMut, Host};

    /// A tensor that lies row by row.
    pub struct Numbers(FlexTensor);

    impl Deref for Numbers {
        type Target = [f32];

        fn deref(&self) -> &[f32] {
            self.0.as_slice::<f32>().expect("it lies row by row")
        }
    }

    impl DerefMut for Numbers {
        fn deref_mut(&mut self) -> &mut [f32] {
            let n = self.0.layout().num_elements();
            // A tensor can be a part of its storage.
            let is_whole = self.0.layout().start_offset() == 0 && self.0.bytes().len() == n * size_of::<f32>();
            if !is_whole || self.0.try_storage_mut::<f32>().is_none() {
                let shape: Vec<usize> = self.0.layout().shape().iter().copied().collect();
                self.0 = Flex::tensor(self.to_vec(), &shape);
            }
            self.0.try_storage_mut::<f32>().expect("it is not shared")
        }
    }

    impl Host for Flex {
        type Numbers = Numbers;

        fn numbers(tensor: FloatTensor<Self>) -> Numbers {
            assert_eq!(tensor.dtype(), DType::F32, "the kernels compute in f32");
            Numbers(if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() })
        }

        fn tensor(numbers: Vec<f32>, shape: &[usize]) -> FloatTensor<Self> {
            FlexTensor::new(Bytes::from_elems(numbers), Layout::contiguous(Shape::from(shape.to_vec())), DType::F32)
        }

        fn give_back(numbers: Numbers) -> FloatTensor<Self> {
            numbers.0
        }
    }
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "complete in burn 0.22, which is pinned")]
mod ndarray {
    use ::ndarray::{ArcArray, IxDyn};
    use burn::backend::ndarray::{NdArray, NdArrayTensor};
    use burn::backend::tensor::FloatTensor;

    use super::{Deref, DerefMut, Host};

    /// A shared array in standard layout.
    pub struct Numbers(ArcArray<f32, IxDyn>);

    impl Deref for Numbers {
        type Target = [f32];

        fn deref(&self) -> &[f32] {
            self.0.as_slice().expect("it is in standard layout")
        }
    }

    impl DerefMut for Numbers {
        fn deref_mut(&mut self) -> &mut [f32] {
            self.0.as_slice_mut().expect("it is in standard layout")
        }
    }

    impl Host for NdArray {
        type Numbers = Numbers;

        fn numbers(tensor: FloatTensor<Self>) -> Numbers {
            let NdArrayTensor::F32(storage) = tensor else { panic!("the kernels compute in f32") };
            let array = storage.into_shared();
            Numbers(if array.is_standard_layout() {
                array
            } else {
                array.as_standard_layout().into_owned().into_shared()
            })
        }

        fn tensor(numbers: Vec<f32>, shape: &[usize]) -> FloatTensor<Self> {
            ArcArray::from_shape_vec(IxDyn(shape), numbers).expect("as many numbers as the shape has").into()
        }

        fn give_back(numbers: Numbers) -> FloatTensor<Self> {
            numbers.0.into()
        }
    }
}
