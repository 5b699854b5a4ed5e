use burn::tensor::Device;
use burn_frugal::nn::LinearConfig;
use serde::{Deserialize, Serialize};

use crate::block::InvertedBottleneckConfig;
use crate::error::Error;
use crate::network::BottleneckNet;
use crate::parts::{Padding, Parts};

/// What a network was trained to see.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputConfig {
    /// Side of the square image, in pixels: what to scale images to. The network takes other sizes
    /// too, since its head pools over the map.
    pub size: usize,
    /// Subtracted from each value in 0..=255.
    pub mean: f32,
    /// Divides what is left.
    pub std: f32,
}

/// Configuration of a [`BottleneckNet`].
///
/// Start from a network of the family ([`mcunet_5fps`](Self::mcunet_5fps), ...) and change width,
/// input or number of classes, or describe one of your own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BottleneckNetConfig {
    /// The network's name.
    pub name: String,
    /// The image that the network was made for.
    pub input: InputConfig,
    /// Channels of the image.
    pub input_channels: usize,
    /// Channels of the first convolution, 3x3.
    pub first_channels: usize,
    /// Stride of the first convolution.
    pub first_stride: usize,
    /// The bottlenecks, from the image to the head.
    pub blocks: Vec<InvertedBottleneckConfig>,
    /// Channels of the last convolution, 1x1, with ReLU6. `None`: the classifier sees the last
    /// bottleneck's output.
    #[serde(default)]
    pub last_channels: Option<usize>,
    /// Where maps are padded.
    #[serde(default)]
    pub padding: Padding,
    /// Number of classes.
    pub classes: usize,
    /// Batch normalization after every convolution, for training from nothing. Pretrained networks
    /// have it folded into the convolutions.
    pub batch_norm: bool,
    /// Added to the variance by batch normalization.
    #[serde(default = "default_epsilon")]
    pub batch_norm_epsilon: f64,
}

/// Burn's and PyTorch's.
pub(crate) fn default_epsilon() -> f64 {
    1e-5
}

impl BottleneckNetConfig {
    /// With another number of classes.
    pub fn with_classes(mut self, classes: usize) -> Self {
        self.classes = classes;
        self
    }

    /// With images of another size and normalisation.
    pub fn with_input(mut self, input: InputConfig) -> Self {
        self.input = input;
        self
    }

    /// With images of another number of channels (1 for grey).
    pub fn with_input_channels(mut self, channels: usize) -> Self {
        self.input_channels = channels;
        self
    }

    /// With every channel count multiplied by `factor` and rounded to a multiple of 8, by no more
    /// than a tenth downwards, as the MobileNet family does.
    ///
    /// # Panics
    /// When `factor` is not a positive number that leaves channel counts below 2^20.
    pub fn with_width(mut self, factor: f64) -> Self {
        let most = self
            .blocks
            .iter()
            .map(|block| block.expanded_channels)
            .max();
        let most = most.max(self.last_channels).unwrap_or(0);
        let most = most.max(self.first_channels) as f64 * factor;
        assert!(
            factor > 0.0 && most < f64::from(1 << 20),
            "BottleneckNetConfig::with_width: {factor} is no width"
        );
        self.first_channels = scaled(self.first_channels, factor);
        let mut channels = self.first_channels;
        for block in &mut self.blocks {
            let ratio = block.expanded_channels as f64 / block.input_channels as f64;
            block.input_channels = channels;
            block.expanded_channels = (channels as f64 * ratio).round() as usize;
            block.output_channels = scaled(block.output_channels, factor);
            block.residual &= block.input_channels == block.output_channels;
            channels = block.output_channels;
        }
        self.last_channels = self.last_channels.map(|last| scaled(last, factor));
        self
    }

    /// With batch normalization after every convolution, or without.
    pub fn with_batch_norm(mut self, batch_norm: bool) -> Self {
        self.batch_norm = batch_norm;
        self
    }

    /// Channels that the classifier sees.
    pub fn features(&self) -> usize {
        let last = self.blocks.last().map(|block| block.output_channels);
        self.last_channels.or(last).unwrap_or(self.first_channels)
    }

    /// Creates the network with random weights.
    ///
    /// # Panics
    /// Where [`try_init`](Self::try_init) returns an error.
    pub fn init(&self, device: &Device) -> BottleneckNet {
        self.try_init(device)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Creates the network with random weights.
    ///
    /// # Errors
    /// When the blocks' channels do not follow each other, a residual block changes its map's
    /// shape, a size is zero, or the normalization's epsilon is not a positive number.
    pub fn try_init(&self, device: &Device) -> Result<BottleneckNet, Error> {
        for (field, size) in [
            ("input_channels", self.input_channels),
            ("first_channels", self.first_channels),
            ("first_stride", self.first_stride),
            ("classes", self.classes),
        ] {
            at_least_one(field, size)?;
        }
        if let Some(last) = self.last_channels {
            at_least_one("last_channels", last)?;
        }
        let epsilon = self.batch_norm_epsilon;
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            let found = epsilon.to_string();
            return Err(config_error(
                "batch_norm_epsilon",
                "a positive number",
                &found,
            ));
        }
        let parts = Parts::new(self, device);
        let first_conv = parts
            .conv([self.input_channels, self.first_channels], 3)
            .with_stride([self.first_stride, self.first_stride])
            .try_init(device)?;
        let mut channels = self.first_channels;
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (index, block) in self.blocks.iter().enumerate() {
            if block.input_channels != channels {
                return Err(config_error(
                    &format!("blocks.{index}.input_channels"),
                    &format!("{channels}, the channels before it"),
                    &block.input_channels.to_string(),
                ));
            }
            blocks.push(block.try_init(&format!("blocks.{index}"), &parts)?);
            channels = block.output_channels;
        }
        let last = self.last_channels;
        let last_conv = last.map(|last| parts.conv([channels, last], 1));
        Ok(BottleneckNet {
            first_conv,
            first_norm: parts.norm(self.first_channels),
            blocks,
            last_conv: last_conv.map(|conv| conv.try_init(device)).transpose()?,
            last_norm: last.and_then(|last| parts.norm(last)),
            classifier: LinearConfig::new(self.features(), self.classes).init(device),
        })
    }
}

pub(crate) fn at_least_one(field: &str, size: usize) -> Result<(), Error> {
    match size {
        0 => Err(config_error(field, "at least 1", "0")),
        _ => Ok(()),
    }
}

pub(crate) fn config_error(field: &str, expected: &str, found: &str) -> Error {
    Error::Config {
        field: field.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// `channels * factor` to the nearest multiple of 8, at least 8, never below nine tenths.
fn scaled(channels: usize, factor: f64) -> usize {
    const STEP: usize = 8;
    let exact = channels as f64 * factor;
    let rounded = ((exact + STEP as f64 / 2.0) as usize / STEP * STEP).max(STEP);
    if (rounded as f64) < 0.9 * exact {
        rounded + STEP
    } else {
        rounded
    }
}
