use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// What a layer keeps of its input between forward and backward.
///
/// A [`Method`](super::Method) makes it from the plain input and later turns it, with the output's
/// gradient, into the weight's gradient. The variant *is* the memory of the method: nothing else
/// of the input stays alive.
#[derive(ExtensionType, Clone, Debug)]
#[non_exhaustive]
pub enum Saved<B: Backend> {
    /// Nothing: the weight gets no gradient.
    Nothing,
    /// The whole input, `[batch, channels_in, height, width]`.
    Full(FloatTensor<B>),
    /// One weighted sum a tile, `[batch, channels_in, tile_rows, tile_columns]`.
    Tiles(FloatTensor<B>),
}
