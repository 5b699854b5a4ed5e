use burn::backend::{
    Backend, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{
    BoolDType, BoolStore, DType, IndexingUpdateOp, IntDType, Shape, Slice, TensorData,
};
use burn_frugal_kernels::PoolGeometry;

/// See [`FrugalOps::max_pool_with_taps`](crate::ops::FrugalOps::max_pool_with_taps).
pub fn max_pool_with_taps<B: Backend>(
    input: FloatTensor<B>,
    geometry: &PoolGeometry,
) -> (FloatTensor<B>, IntTensor<B>) {
    let [batch, channels, ..] = input.shape().dims::<4>();
    let [rows, columns] = geometry.output;
    let shape = Shape::from([batch, channels, rows, columns]);
    if shape.num_elements() == 0 {
        let device = input.device();
        return (
            B::float_zeros(shape.clone(), &device, input.dtype().into()),
            B::int_zeros(shape, &device, IntDType::U8),
        );
    }
    let framed = framed::<B>(input, geometry);
    let width = framed.shape()[3] as i64;
    let pooled = B::max_pool2d_with_indices(
        framed,
        geometry.kernel,
        geometry.stride,
        [0, 0],
        geometry.dilation,
        false,
        IntDType::I64,
    );
    let row = B::int_div_scalar(pooled.indices.clone(), width.into());
    let column = B::int_remainder_scalar(pooled.indices, width.into());
    let within = |place: IntTensor<B>, axis: usize| {
        let along = |of_output: &dyn Fn(i64) -> i64| along::<B>(&pooled.output, axis, of_output);
        let [size, stride, dilation] =
            [geometry.input, geometry.stride, geometry.dilation].map(|sizes| sizes[axis] as i64);
        let (padding, last_tap) = (
            geometry.padding[axis].0 as i64,
            geometry.kernel[axis] as i64 - 1,
        );
        let offset = B::int_sub(place, along(&|output| output * stride));
        let tap = B::int_div_scalar(offset, dilation.into());
        // a window of nothing but negative infinity has its maximum in the padding, or nowhere
        let first = along(&|output| {
            let outside = (padding - output * stride).max(0);
            (outside + dilation - 1) / dilation
        });
        let last = along(&|output| {
            let inside = size - 1 + padding - output * stride;
            (inside / dilation).min(last_tap)
        });
        let before = B::int_lower(tap.clone(), first.clone(), bools());
        let tap = B::int_mask_where(tap, before, first);
        let behind = B::int_greater(tap.clone(), last.clone(), bools());
        B::int_mask_where(tap, behind, last)
    };
    let taps = B::int_add(
        B::int_mul_scalar(within(row, 0), (geometry.kernel[1] as i64).into()),
        within(column, 1),
    );
    (pooled.output, B::int_cast(taps, IntDType::U8))
}

/// See [`FrugalOps::max_pool_input_gradient`](crate::ops::FrugalOps::max_pool_input_gradient).
pub fn max_pool_input_gradient<B: Backend>(
    taps: IntTensor<B>,
    output_gradient: FloatTensor<B>,
    geometry: &PoolGeometry,
) -> FloatTensor<B> {
    let [batch, channels, rows, columns] = output_gradient.shape().dims();
    let [height, width] = geometry.input;
    let (device, dtype) = (output_gradient.device(), output_gradient.dtype());
    let shape = Shape::from([batch, channels, height, width]);
    if output_gradient.shape().num_elements() == 0 {
        return B::float_zeros(shape, &device, dtype.into());
    }
    let kernel_width = (geometry.kernel[1] as i64).into();
    let taps = B::int_cast(taps, IntDType::I64);
    let place = |within: IntTensor<B>, axis: usize| {
        let offset = B::int_mul_scalar(within, (geometry.dilation[axis] as i64).into());
        let (stride, padding) = (
            geometry.stride[axis] as i64,
            geometry.padding[axis].0 as i64,
        );
        let start = along::<B>(&output_gradient, axis, &|output| output * stride - padding);
        B::int_add(offset, start)
    };
    let row = place(B::int_div_scalar(taps.clone(), kernel_width), 0);
    let column = place(B::int_remainder_scalar(taps, kernel_width), 1);
    let places = B::int_add(B::int_mul_scalar(row, (width as i64).into()), column);

    let maps = batch * channels;
    let flat = Shape::from([maps, rows * columns]);
    let zeros = B::float_zeros(Shape::from([maps, height * width]), &device, dtype.into());
    let gradient = B::float_scatter(
        1,
        zeros,
        B::int_reshape(places, flat.clone()),
        B::float_reshape(output_gradient, flat),
        IndexingUpdateOp::Add,
    );
    B::float_reshape(gradient, shape)
}

/// The input with -infinity around it, cut where no window reaches: pooling it without padding, rounding down, gives
/// the geometry's output.
fn framed<B: Backend>(input: FloatTensor<B>, geometry: &PoolGeometry) -> FloatTensor<B> {
    let [batch, channels, height, width] = input.shape().dims();
    let reach = |axis: usize| {
        (geometry.output[axis] - 1) * geometry.stride[axis]
            + (geometry.kernel[axis] - 1) * geometry.dilation[axis]
            + 1
    };
    let (size, before) = (
        [reach(0), reach(1)],
        [0, 1].map(|axis| geometry.padding[axis].0),
    );
    if size == geometry.input && before == [0, 0] {
        return input;
    }
    let used = |axis: usize, size_in: usize| size_in.min(size[axis] - before[axis]);
    let used = [used(0, height), used(1, width)];
    let input = B::float_slice(
        input,
        &[
            Slice::full(),
            Slice::full(),
            Slice::from(0..used[0]),
            Slice::from(0..used[1]),
        ],
    );
    let outside = B::float_full(
        Shape::from([batch, channels, size[0], size[1]]),
        f32::NEG_INFINITY.into(),
        &input.device(),
        input.dtype().into(),
    );
    B::float_slice_assign(
        outside,
        &[
            Slice::full(),
            Slice::full(),
            Slice::from(before[0]..before[0] + used[0]),
            Slice::from(before[1]..before[1] + used[1]),
        ],
        input,
    )
}

/// A number for each output along an axis, in the shape of `output`.
fn along<B: Backend>(
    output: &FloatTensor<B>,
    axis: usize,
    of_output: &dyn Fn(i64) -> i64,
) -> IntTensor<B> {
    let mut shape = [1; 4];
    shape[2 + axis] = output.shape()[2 + axis];
    let numbers: Vec<i64> = (0..shape[2 + axis] as i64).map(of_output).collect();
    let numbers = B::int_from_data(TensorData::new(numbers, shape), &output.device());
    B::int_expand(numbers, output.shape())
}

fn bools() -> BoolDType {
    DType::Bool(BoolStore::Native).into()
}
