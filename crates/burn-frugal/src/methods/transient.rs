use crate::geometry::PerMode;

/// Elements that a method's passes hold for a moment, beyond their arguments, their results and what
/// is kept. The kernels' own working memory is not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transient {
    /// While the input is compressed.
    pub keep: usize,
    /// While the weight's gradient is computed.
    pub weight_gradient: usize,
    /// While the input's gradient is computed.
    pub input_gradient: usize,
}

/// The most elements that are there while a tensor goes from one shape to another mode by mode, in
/// this order, beyond the first one.
pub(super) fn along(from: PerMode, to: PerMode, order: &[usize]) -> usize {
    let mut shape = from;
    let mut most = 0;
    for (place, &mode) in order.iter().enumerate() {
        let next = shape.with(mode, to[mode]);
        let before = if place == 0 { 0 } else { shape.product() };
        most = most.max(before + next.product());
        shape = next;
    }
    most
}
