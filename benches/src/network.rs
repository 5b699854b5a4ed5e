//! The networks of the `step` program, as tables that every side builds the same network from.

use burn_frugal::plan::Plan;
use burn_frugal_models::BottleneckNetConfig;
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
    /// Padding on each side.
    pub padding: usize,
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
    /// The first convolution.
    pub first_conv: NetworkConv,
    /// The bottlenecks.
    pub blocks: Vec<NetworkBlock>,
    /// Channels that the classifier sees.
    pub features: usize,
    /// Classes that it tells apart.
    pub classes: usize,
}

/// The configuration of a network by its name.
pub fn config(name: &str) -> Option<BottleneckNetConfig> {
    match name {
        "mcunet-5fps" => Some(BottleneckNetConfig::mcunet_5fps()),
        "mbv2-w0.35" => Some(BottleneckNetConfig::mobilenet_v2(0.35)),
        "proxyless-w0.3" => Some(BottleneckNetConfig::proxyless_w03()),
        _ => None,
    }
}

/// The names that [`config`] knows.
pub const NAMES: [&str; 3] = ["mcunet-5fps", "mbv2-w0.35", "proxyless-w0.3"];

/// The activation shortcut on every convolution of a network that [`config`] knows.
pub fn shortcut_plan(name: &str) -> Plan {
    let text = match name {
        "mcunet-5fps" => include_str!("../plans/mcunet-5fps-shortcut.json"),
        "mbv2-w0.35" => include_str!("../plans/mbv2-w0.35-shortcut.json"),
        "proxyless-w0.3" => include_str!("../plans/proxyless-w0.3-shortcut.json"),
        _ => panic!("shortcut_plan: expected one of {NAMES:?}, found {name}"),
    };
    Plan::from_json(text).expect("a committed plan")
}

impl NetworkTable {
    /// The table of a configuration.
    pub fn new(config: &BottleneckNetConfig) -> Self {
        let conv = |name: String, channels: [usize; 2], kernel, stride, groups| NetworkConv {
            name,
            channels_in: channels[0],
            channels_out: channels[1],
            kernel,
            stride,
            padding: kernel / 2,
            groups,
        };
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
        let first = [config.input_channels, config.first_channels];
        Self {
            first_conv: conv("first_conv".to_string(), first, 3, config.first_stride, 1),
            blocks: blocks.collect(),
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
        [&self.first_conv].into_iter().chain(blocks).collect()
    }

    /// The input of each convolution, `[batch, channels, height, width]`, for square images.
    pub fn inputs(&self, batch: usize, size: usize) -> Vec<[usize; 4]> {
        let mut size = size;
        let convolutions = self.convolutions().into_iter();
        convolutions
            .map(|conv| {
                let input = [batch, conv.channels_in, size, size];
                size = (size + 2 * conv.padding - conv.kernel) / conv.stride + 1;
                input
            })
            .collect()
    }
}
