//! Padding as Burn's own layers compute it (their code is private).

use burn::nn::PaddingConfig2d;

/// Padding before and after, per axis: with `Same`, the output has `ceil(size / stride)` pixels when
/// the dilation is 1, and the surplus pixel goes to the end.
pub(super) fn padding_pairs(
    padding: &PaddingConfig2d,
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
) -> [(usize, usize); 2] {
    let same = |axis: usize| {
        // a stride of 0 is refused by the layer, with words
        let output = size[axis].div_ceil(stride[axis].max(1));
        let needed = output.saturating_sub(1) * stride[axis] + kernel[axis];
        let total = needed.saturating_sub(size[axis]);
        (total / 2, total - total / 2)
    };
    match *padding {
        PaddingConfig2d::Valid => [(0, 0), (0, 0)],
        PaddingConfig2d::Same => [same(0), same(1)],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
    }
}
