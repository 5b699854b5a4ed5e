//! Burn's pure-Rust CPU backend.

use burn::backend::{
    Flex,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{Bytes, DType, FloatDType, Shape};
use burn_flex::{FlexTensor, Layout};
use burn_frugal_kernels::{Activation, Bits, ConvGeometry, PoolGeometry, Tiles};

use super::cpu::{self, HostTensor, impl_with_kernels};

macro_rules! host_tensor {
    ($element:ty, $dtype:expr) => {
        impl HostTensor<$element> for FlexTensor {
            fn into_contiguous(self) -> Self {
                if self.is_contiguous() {
                    self
                } else {
                    self.to_contiguous()
                }
            }

            fn as_elements(&self) -> &[$element] {
                self.as_slice().unwrap_or_else(|| {
                    panic!("expected a contiguous {:?} tensor, found {self:?}", $dtype)
                })
            }

            fn as_unique(&mut self) -> Option<&mut [$element]> {
                let elements = self.layout().num_elements();
                let whole = self.bytes().len() == elements * size_of::<$element>();
                if whole { self.try_storage_mut() } else { None }
            }

            fn from_elements(elements: Vec<$element>, shape: Shape) -> Self {
                let layout = Layout::contiguous(shape);
                FlexTensor::new(Bytes::from_elems(elements), layout, $dtype)
            }
        }
    };
}
host_tensor!(f32, DType::F32);
host_tensor!(f64, DType::F64);
host_tensor!(u8, DType::U8);

impl_with_kernels!(Flex, own(tensor) => {
    let elements = tensor.layout().num_elements();
    let view = tensor.bytes().len() > elements * tensor.dtype().size();
    if view { tensor.to_contiguous() } else { tensor }
});
