//! The bytes of Burn's graph itself: its nodes, the steps that wait in it, the tables that find them.
//! They matter where a batch is a few images.
//!
//! The numbers were measured with 64-bit pointers on Burn 0.22.1, by counting what networks of
//! different lengths keep beside their tensors; the tests compare predictions with counts.

use crate::geometry::LayerGeometry;
use crate::methods::Method;
use crate::ops::recorder::Operation;

/// A layer's node with its step.
const LAYER: usize = 830;
/// An activation's or a pooling's.
const ACTIVATION: usize = 670;
/// A sum's. One of values without gradients costs more: Burn notes how to compute it again.
const JOIN: usize = 700;
const UNTRACKED_JOIN: usize = 980;
/// The loss and what is between it and the network.
const LOSS: usize = 5000;
/// Nodes of the loss.
const LOSS_NODES: usize = 10;
/// A place in the graph's hash tables, of which there is a power of two.
const PLACE: usize = 161;
/// One more tensor than a layer's one.
const EXTRA_TENSOR: usize = 72;
/// How an operation's result can be computed again.
const NOTE: usize = 470;
/// A list of channels beside its elements.
const LIST: usize = 40;

/// Sizes of the graph's objects.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Objects {
    /// Bytes of a tensor's description, beyond those of the smallest backend's.
    pub tensor: usize,
}

impl Objects {
    /// Of the node of an operation whose result is tracked.
    pub fn of_operation(&self, operation: &Operation) -> usize {
        let node = match operation {
            Operation::Layer { .. } | Operation::Normalization { .. } => LAYER,
            Operation::Activation { .. }
            | Operation::MaxPool { .. }
            | Operation::AveragePool { .. } => ACTIVATION,
        };
        node + self.tensor
    }

    /// Of the node of a sum.
    pub fn of_join(&self, tracked: bool) -> usize {
        if tracked { JOIN } else { UNTRACKED_JOIN }
    }

    /// Of what a method keeps, beyond one tensor.
    pub fn of_saved(&self, method: Method, geometry: &LayerGeometry) -> usize {
        match method {
            Method::ChannelSparse(sparse) => {
                let channels = geometry.modes()[geometry.channel_mode()];
                // the step's own list, and the layer's
                2 * (LIST / 2 + sparse.selected(channels) * size_of::<usize>())
            }
            Method::ActivationShortcut(shortcut) => {
                let modes = geometry.modes();
                let ranks = shortcut.ranks_for(modes);
                let pairs = modes.as_slice().iter().zip(ranks.as_slice());
                pairs.filter(|(size, rank)| rank < size).count() * EXTRA_TENSOR
            }
            Method::Hosvd(_) => geometry.modes().len() * EXTRA_TENSOR,
            Method::Quantized(_) => EXTRA_TENSOR / 2,
            Method::Exact | Method::Recomputed | Method::GradientFilter(_) => 0,
        }
    }

    /// Of notes how to compute a value again.
    pub fn of_notes(&self, notes: usize) -> usize {
        notes * NOTE
    }

    /// Of the loss and the tables, for a graph with this many nodes.
    pub fn of_loss(&self, nodes: usize) -> usize {
        // hash tables are filled to seven eighths
        let places = ((nodes + LOSS_NODES) * 8 / 7).next_power_of_two();
        LOSS + places * PLACE
    }
}
