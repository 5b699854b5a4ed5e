//! Burn's CPU backend on the ndarray crate.

use burn::backend::{
    NdArray,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, Shape};
use burn_frugal_kernels::{Activation, Bits, ConvGeometry, PoolGeometry, Tiles};
use burn_ndarray::NdArrayTensor;
use ndarray::ArrayD;

use super::cpu::{self, HostTensor, impl_with_kernels};

macro_rules! host_tensor {
    ($element:ty, $variant:ident) => {
        impl HostTensor<$element> for NdArrayTensor {
            fn into_contiguous(self) -> Self {
                match self {
                    NdArrayTensor::$variant(storage) if !storage.view().is_standard_layout() => {
                        let array = storage.into_shared();
                        array.as_standard_layout().into_owned().into_shared().into()
                    }
                    tensor => tensor,
                }
            }

            fn as_elements(&self) -> &[$element] {
                let elements = match self {
                    NdArrayTensor::$variant(storage) => storage.view().to_slice(),
                    _ => None,
                };
                elements.unwrap_or_else(|| {
                    let expected = stringify!($element);
                    panic!("expected a contiguous {expected} tensor, found {self:?}")
                })
            }

            fn as_unique(&mut self) -> Option<&mut [$element]> {
                match self {
                    NdArrayTensor::$variant(storage) if storage.is_unique() => {
                        storage.ensure_owned().as_slice_mut()
                    }
                    _ => None,
                }
            }

            fn from_elements(elements: Vec<$element>, shape: Shape) -> Self {
                let array = ArrayD::from_shape_vec(shape.as_slice().to_vec(), elements);
                array
                    .expect("as many elements as the shape has")
                    .into_shared()
                    .into()
            }
        }
    };
}
host_tensor!(f32, F32);
host_tensor!(f64, F64);
host_tensor!(u8, U8);

// Burn's slices copy on this backend: no tensor is a view of a larger buffer.
impl_with_kernels!(NdArray, own(tensor) => tensor);
