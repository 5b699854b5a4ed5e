//! The networks of the `step` program, as tables that every side builds the same network from.

use burn_frugal::plan::Plan;
use burn_frugal_models::{BottleneckNetConfig, Padding};
use serde::Serialize;

/// One convolution of a network.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkConv {
    /// Its path in the model.
    pub name: String,
    /// Channels of its input.
    pub channels_in: usize,
    /// Channels of its output.
    pub channels_out: usize,
    /// Side of its kernel.
    pub kernel: usize,
    /// Stride.
    pub stride: usize,
    /// Padding at the top and left.
    pub padding: usize,
    /// Padding at the bottom and right: the same but with TensorFlow's padding.
    pub padding_after: usize,
    /// Groups.
    pub groups: usize,
}

/// One inverted bottleneck.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkBlock {
    /// Whether the input is added to the output.
    pub residual: bool,
    /// The expansion, if there is one.
    pub pointwise1: Option<NetworkConv>,
    /// The depthwise convolution.
    pub depthwise: NetworkConv,
    /// The projection.
    pub pointwise2: NetworkConv,
}

/// A network of inverted bottlenecks.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkTable {
    /// Side of the images: TensorFlow's padding depends on it.
    pub size: usize,
    /// The first convolution.
    pub first_conv: NetworkConv,
    /// The bottlenecks.
    pub blocks: Vec<NetworkBlock>,
    /// The last convolution, if there is one behind the bottlenecks.
    pub last_conv: Option<NetworkConv>,
    /// The epsilon of the batch normalization that the published weights have after every
    /// convolution. Burn's side runs it with its statistics frozen, the others fold it.
    pub batch_norm: Option<f64>,
    /// Channels that the classifier sees.
    pub features: usize,
    /// Classes that it tells apart.
    pub classes: usize,
}

/// The configuration of a network by its name, with the batch normalization of its published weights.
pub fn config(name: &str) -> Option<BottleneckNetConfig> {
    match name {
        "mcunet-5fps" => Some(BottleneckNetConfig::mcunet_5fps()),
        "mbv2-w0.35" => Some(BottleneckNetConfig::mobilenet_v2(0.35)),
        "proxyless-w0.3" => Some(BottleneckNetConfig::proxyless_w03()),
        "efficientnet-lite0" => {
            Some(BottleneckNetConfig::efficientnet_lite0().with_batch_norm(true))
        }
        _ => None,
    }
}

/// The names that [`config`] knows.
pub const NAMES: [&str; 4] = [
    "mcunet-5fps",
    "mbv2-w0.35",
    "proxyless-w0.3",
    "efficientnet-lite0",
];

/// The activation shortcut on every convolution of a network that [`config`] knows.
pub fn shortcut_plan(name: &str) -> Plan {
    let text = match name {
        "mcunet-5fps" => include_str!("../plans/mcunet-5fps-shortcut.json"),
        "mbv2-w0.35" => include_str!("../plans/mbv2-w0.35-shortcut.json"),
        "proxyless-w0.3" => include_str!("../plans/proxyless-w0.3-shortcut.json"),
        "efficientnet-lite0" => include_str!("../plans/efficientnet-lite0-shortcut.json"),
        _ => panic!("shortcut_plan: expected one of {NAMES:?}, found {name}"),
    };
    Plan::from_json(text).expect("a committed plan")
}

impl NetworkTable {
    /// The table of a configuration, for square images of this side.
    pub fn new(config: &BottleneckNetConfig, size: usize) -> Self {
        let mut map = size;
        let mut conv = |name: String, channels: [usize; 2], kernel, stride, groups| {
            let (padding, padding_after) = padding(config.padding, map, kernel, stride);
            map = map.div_ceil(stride);
            NetworkConv {
                name,
                channels_in: channels[0],
                channels_out: channels[1],
                kernel,
                stride,
                padding,
                padding_after,
                groups,
            }
        };
        let first = [config.input_channels, config.first_channels];
        let first_conv = conv("first_conv".to_string(), first, 3, config.first_stride, 1);
        let blocks = config.blocks.iter().enumerate().map(|(index, block)| {
            let path = |part: &str| format!("blocks.{index}.{part}");
            let (input, expanded) = (block.input_channels, block.expanded_channels);
            let expands = input != expanded;
            NetworkBlock {
                residual: block.residual,
                pointwise1: expands.then(|| conv(path("pointwise1"), [input, expanded], 1, 1, 1)),
                depthwise: conv(
                    path("depthwise"),
                    [expanded; 2],
                    block.kernel,
                    block.stride,
                    expanded,
                ),
                pointwise2: conv(
                    path("pointwise2"),
                    [expanded, block.output_channels],
                    1,
                    1,
                    1,
                ),
            }
        });
        let blocks: Vec<NetworkBlock> = blocks.collect();
        let outputs = blocks.last().map(|block| block.pointwise2.channels_out);
        let outputs = outputs.unwrap_or(config.first_channels);
        let last_conv = |last| conv("last_conv".to_string(), [outputs, last], 1, 1, 1);
        Self {
            size,
            first_conv,
            last_conv: config.last_channels.map(last_conv),
            blocks,
            batch_norm: config.batch_norm.then_some(config.batch_norm_epsilon),
            features: config.features(),
            classes: config.classes,
        }
    }

    /// All convolutions, in order.
    pub fn convolutions(&self) -> Vec<&NetworkConv> {
        let blocks = self.blocks.iter().flat_map(|block| {
            let parts = [Some(&block.depthwise), Some(&block.pointwise2)];
            [block.pointwise1.as_ref()]
                .into_iter()
                .chain(parts)
                .flatten()
        });
        let first = [&self.first_conv].into_iter();
        first.chain(blocks).chain(&self.last_conv).collect()
    }

    /// The input of each convolution, `[batch, channels, height, width]`.
    pub fn inputs(&self, batch: usize) -> Vec<[usize; 4]> {
        let mut size = self.size;
        let convolutions = self.convolutions().into_iter();
        convolutions
            .map(|conv| {
                let input = [batch, conv.channels_in, size, size];
                size = size.div_ceil(conv.stride);
                input
            })
            .collect()
    }
}

/// Padding before and after a map of this side.
fn padding(padding: Padding, size: usize, kernel: usize, stride: usize) -> (usize, usize) {
    match padding {
        Padding::Symmetric => (kernel / 2, kernel / 2),
        Padding::Same => {
            let needed = (size.div_ceil(stride) - 1) * stride + kernel;
            let total = needed.saturating_sub(size);
            (total / 2, total - total / 2)
        }
    }
}
