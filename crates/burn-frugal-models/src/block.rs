use burn::module::Module;
use burn::tensor::Tensor;
use burn_frugal::nn::{BatchNorm, Conv2d};
use serde::{Deserialize, Serialize};

use crate::config::{at_least_one, config_error};
use crate::error::Error;
use crate::normalization::{fold, normalized, relu6};
use crate::parts::Parts;

/// Configuration of an [`InvertedBottleneck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InvertedBottleneckConfig {
    /// Channels that come in.
    pub input_channels: usize,
    /// Channels of the depthwise convolution. Equal to `input_channels`: there is no first
    /// pointwise convolution.
    pub expanded_channels: usize,
    /// Channels that go out.
    pub output_channels: usize,
    /// Side of the depthwise kernel, odd.
    pub kernel: usize,
    /// Stride of the depthwise convolution.
    pub stride: usize,
    /// Whether the input is added to the output.
    pub residual: bool,
}

impl InvertedBottleneckConfig {
    /// `path` names the block in errors.
    pub(crate) fn try_init(&self, path: &str, parts: &Parts) -> Result<InvertedBottleneck, Error> {
        for (field, size) in [
            ("expanded_channels", self.expanded_channels),
            ("output_channels", self.output_channels),
            ("stride", self.stride),
        ] {
            at_least_one(&format!("{path}.{field}"), size)?;
        }
        if self.residual && (self.stride != 1 || self.input_channels != self.output_channels) {
            return Err(config_error(
                &format!("{path}.residual"),
                "stride 1 and equal channels in and out",
                &format!(
                    "stride {}, {} -> {} channels",
                    self.stride, self.input_channels, self.output_channels
                ),
            ));
        }
        if self.kernel.is_multiple_of(2) {
            let (field, found) = (format!("{path}.kernel"), self.kernel.to_string());
            return Err(config_error(&field, "an odd number", &found));
        }
        let device = parts.device;
        let expanded = self.expanded_channels;
        let expands = expanded != self.input_channels;
        let pointwise1 = expands.then(|| parts.conv([self.input_channels, expanded], 1));
        Ok(InvertedBottleneck {
            pointwise1: pointwise1.map(|conv| conv.try_init(device)).transpose()?,
            pointwise1_norm: expands.then(|| parts.norm(expanded)).flatten(),
            depthwise: parts
                .conv([expanded, expanded], self.kernel)
                .with_stride([self.stride, self.stride])
                .with_groups(expanded)
                .try_init(device)?,
            depthwise_norm: parts.norm(expanded),
            pointwise2: parts
                .conv([expanded, self.output_channels], 1)
                .try_init(device)?,
            pointwise2_norm: parts.norm(self.output_channels),
            residual: self.residual,
        })
    }
}

/// Expansion, depthwise convolution, projection; ReLU6 after the first two (arXiv 1801.04381).
#[derive(Module, Debug)]
pub struct InvertedBottleneck {
    /// Expansion to more channels, `None` in a block that does not expand.
    pub pointwise1: Option<Conv2d>,
    /// Normalization of the expansion while a network is trained from nothing.
    pub pointwise1_norm: Option<BatchNorm>,
    /// Convolution of each channel by itself.
    pub depthwise: Conv2d,
    /// Normalization of the depthwise convolution while a network is trained from nothing.
    pub depthwise_norm: Option<BatchNorm>,
    /// Linear projection to the output's channels.
    pub pointwise2: Conv2d,
    /// Normalization of the projection while a network is trained from nothing.
    pub pointwise2_norm: Option<BatchNorm>,
    /// Whether the input is added to the output.
    pub residual: bool,
}

impl InvertedBottleneck {
    /// Applies the block.
    ///
    /// # Shapes
    /// - `input`: `[batch, input_channels, height, width]`
    /// - `output`: `[batch, output_channels, height / stride, width / stride]`, rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        // held for the sum only: otherwise the largest maps would have to stand beside it
        let skipped = self.residual.then(|| input.clone());
        let mut map = input;
        if let Some(pointwise1) = &self.pointwise1 {
            map = relu6(normalized(&self.pointwise1_norm, pointwise1.forward(map)));
        }
        map = relu6(normalized(
            &self.depthwise_norm,
            self.depthwise.forward(map),
        ));
        map = normalized(&self.pointwise2_norm, self.pointwise2.forward(map));
        match skipped {
            Some(skipped) => map + skipped,
            None => map,
        }
    }

    /// Moves the normalization into the convolutions.
    pub(crate) fn fold_batch_norm(self) -> Self {
        Self {
            pointwise1: self.pointwise1.map(|conv| fold(conv, self.pointwise1_norm)),
            pointwise1_norm: None,
            depthwise: fold(self.depthwise, self.depthwise_norm),
            depthwise_norm: None,
            pointwise2: fold(self.pointwise2, self.pointwise2_norm),
            pointwise2_norm: None,
            residual: self.residual,
        }
    }
}
