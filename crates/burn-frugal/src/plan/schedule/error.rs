/// What can be wrong with a schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A schedule of nothing.
    #[error("a schedule has at least 1 layer, found none")]
    NoLayers,
    /// Two layers of one path.
    #[error("the layer `{path}` is in the schedule twice")]
    DuplicateLayer {
        /// The path.
        path: String,
    },
    /// A layer that trains none of its channels at a time, or more than it has.
    #[error(
        "layer `{path}`: from 1 to {channels} input channels can be trained at a time, found \
         {selected}"
    )]
    Selected {
        /// The layer's path.
        path: String,
        /// Channels trained at a time.
        selected: usize,
        /// Input channels of the layer.
        channels: usize,
    },
    /// A layer whose importance is not known.
    #[error("layer `{path}`: no importance of its channels")]
    NoImportance {
        /// The layer's path.
        path: String,
    },
    /// The importance of a layer with another number of channels.
    #[error("layer `{path}`: {expected} input channels, but the importance of {found}")]
    ImportanceLength {
        /// The layer's path.
        path: String,
        /// Input channels of the layer.
        expected: usize,
        /// Channels with an importance.
        found: usize,
    },
    /// An importance that is infinite, not a number or negative.
    #[error(
        "layer `{path}`, channel {channel}: an importance is finite and at least 0, found {found}"
    )]
    ImportanceValue {
        /// The layer's path.
        path: String,
        /// The channel.
        channel: usize,
        /// Its importance.
        found: f64,
    },
    /// A total that no channel fits.
    #[error("a total of {found} weights, but the smallest channel has {smallest}")]
    TotalTooSmall {
        /// Weights trained at a time.
        found: usize,
        /// Weights of the channel that has the fewest.
        smallest: usize,
    },
    /// A cycle that cannot visit a channel.
    #[error(
        "layer `{path}`: a channel has {weights} weights, more than the total of {total}, so a \
         cycle cannot visit it"
    )]
    ChannelTooLarge {
        /// The layer's path.
        path: String,
        /// Weights of one channel of the layer.
        weights: usize,
        /// Weights trained at a time.
        total: usize,
    },
    /// A period without steps.
    #[error("a period is at least 1 step, found 0")]
    Period,
    /// A layer of the schedule whose method is another one.
    #[error("layer `{path}`: a schedule needs a channel-sparse method, found {found}")]
    NotSparse {
        /// The layer's path.
        path: String,
        /// Its method.
        found: String,
    },
    /// A layer with another number of channels.
    #[error("layer `{path}`: {expected} input channels, but the schedule's has {found}")]
    LayerChannels {
        /// The layer's path.
        path: String,
        /// Input channels of the layer.
        expected: usize,
        /// Input channels in the schedule.
        found: usize,
    },
}
