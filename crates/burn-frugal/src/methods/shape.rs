//! The part of a layer that is the same for every input.

use crate::geometry::PerMode;

/// Which layer it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// A 2D convolution; its weight is `[channels_out, channels_in / groups, rows, columns]`.
    Conv2d,
    /// A linear layer; its weight is `[features_in, features_out]`.
    Linear,
    /// Batch normalization; its weight is gamma, `[channels]`.
    BatchNorm,
}

/// The part of a layer that decides which methods it can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Which layer it is.
    pub kind: LayerKind,
    /// Input and output channels (features).
    pub channels: [usize; 2],
    /// Kernel height and width; 1 and 1 for a linear layer.
    pub kernel: [usize; 2],
    /// Groups of channels that do not see each other; 1 for a linear layer.
    pub groups: usize,
}

impl LayerShape {
    /// The shape of a linear layer.
    pub fn linear(features_in: usize, features_out: usize) -> Self {
        Self {
            kind: LayerKind::Linear,
            channels: [features_in, features_out],
            kernel: [1, 1],
            groups: 1,
        }
    }

    /// The shape of batch normalization: like a 1x1 convolution of each channel by itself.
    pub fn batch_norm(channels: usize) -> Self {
        Self {
            kind: LayerKind::BatchNorm,
            channels: [channels, channels],
            kernel: [1, 1],
            groups: channels,
        }
    }

    /// The name of the parameter that a method's weight gradient is for.
    pub fn weight_name(&self) -> &'static str {
        match self.kind {
            LayerKind::Conv2d | LayerKind::Linear => "weight",
            LayerKind::BatchNorm => "gamma",
        }
    }

    /// The mode that holds the channels (or features) of an input with this many modes.
    pub fn channel_mode(&self, modes: usize) -> usize {
        match self.kind {
            LayerKind::Conv2d | LayerKind::BatchNorm => 1,
            LayerKind::Linear => modes - 1,
        }
    }

    /// Elements of the weight.
    pub fn weight_len(&self) -> usize {
        self.channels[0] * self.weights_per_channel()
    }

    /// Weights that multiply one input channel.
    pub fn weights_per_channel(&self) -> usize {
        self.channels[1] / self.groups * self.kernel[0] * self.kernel[1]
    }

    /// The input channel that the weight at this place, in row-major order, multiplies.
    pub fn channel_of_weight(&self, index: usize) -> usize {
        let [channels_in, channels_out] = self.channels;
        match self.kind {
            LayerKind::Linear => index / channels_out,
            LayerKind::BatchNorm => index,
            LayerKind::Conv2d => {
                let group_channels = channels_in / self.groups;
                let kernel_plane = index / (self.kernel[0] * self.kernel[1]);
                let output = kernel_plane / group_channels;
                let group = output / (channels_out / self.groups);
                group * group_channels + kernel_plane % group_channels
            }
        }
    }

    /// The Euclidean norm of the weights (or their gradients) of each input channel.
    pub fn channel_norms(&self, weights: impl IntoIterator<Item = f64>) -> Vec<f64> {
        let mut squares = vec![0.0; self.channels[0]];
        for (index, weight) in weights.into_iter().enumerate() {
            squares[self.channel_of_weight(index)] += weight * weight;
        }
        squares.into_iter().map(f64::sqrt).collect()
    }
}

/// Why a layer cannot use a method.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsuitable {
    /// The patch of a gradient filter is zero.
    #[error("a gradient filter's patch is at least 1 pixel, found {found}")]
    Patch {
        /// The patch asked for.
        found: usize,
    },
    /// The released gradient filter knows dense and depthwise convolutions only.
    #[error(
        "the published gradient filter is defined for 1 group or depthwise convolutions, found \
         {groups} groups with {} -> {} channels (mass-preserving scaling has no such limit)",
        channels[0], channels[1]
    )]
    PublishedGroups {
        /// Input and output channels of the layer.
        channels: [usize; 2],
        /// Groups of the layer.
        groups: usize,
    },
    /// A gradient filter needs a map.
    #[error("a gradient filter needs a map of pixels: convolutions only, found a linear layer")]
    FilterOnLinear,
    /// The ratio of a channel-sparse update is not a fraction.
    #[error("a channel-sparse update's ratio is above 0 and at most 1, found {found}")]
    Ratio {
        /// The ratio asked for.
        found: f64,
    },
    /// A rank is zero.
    #[error("every rank is at least 1, found {found}")]
    ZeroRank {
        /// The ranks asked for.
        found: PerMode,
    },
    /// There are not as many ranks as the layer's input has modes.
    #[error("expected {expected} ranks, one a mode of the input, found {}: {found}", found.len())]
    RankCount {
        /// How many ranks there have to be, in words.
        expected: &'static str,
        /// The ranks asked for.
        found: PerMode,
    },
    /// The rank of the channel mode is above the layer's channels.
    #[error("rank {found} of the channel mode is above the layer's {channels} input channels")]
    ChannelRank {
        /// The rank asked for.
        found: usize,
        /// Input channels of the layer.
        channels: usize,
    },
    /// An input cannot be kept with this many bits.
    #[error("a quantized input has 8 or 4 bits an element, found {found}")]
    Bits {
        /// The bits asked for.
        found: u8,
    },
    /// The energy of HOSVD is not a fraction.
    #[error("the energy to keep is above 0 and at most 1, found {found}")]
    Energy {
        /// The energy asked for.
        found: f64,
    },
}
