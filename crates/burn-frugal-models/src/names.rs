//! Names that the tensors of published files have, as the network's own paths.

use burn::store::SafetensorsStore;

/// Patterns of the names of EfficientNet's PyTorch port, which all start with an underscore, and what
/// they stand for.
const EFFICIENTNET: [(&str, &str); 11] = [
    (r"^_conv_stem\.", "first_conv."),
    (r"^_bn0\.", "first_norm."),
    (r"^_blocks\.(\d+)\._expand_conv\.", "blocks.$1.pointwise1."),
    (r"^_blocks\.(\d+)\._bn0\.", "blocks.$1.pointwise1_norm."),
    (
        r"^_blocks\.(\d+)\._depthwise_conv\.",
        "blocks.$1.depthwise.",
    ),
    (r"^_blocks\.(\d+)\._bn1\.", "blocks.$1.depthwise_norm."),
    (r"^_blocks\.(\d+)\._project_conv\.", "blocks.$1.pointwise2."),
    (r"^_blocks\.(\d+)\._bn2\.", "blocks.$1.pointwise2_norm."),
    (r"^_conv_head\.", "last_conv."),
    (r"^_bn1\.", "last_norm."),
    (r"^_fc\.", "classifier."),
];

/// The store with its tensors under the network's own paths; those that have them keep them.
pub(crate) fn own_names(store: SafetensorsStore) -> SafetensorsStore {
    let patterns = EFFICIENTNET.into_iter();
    patterns.fold(store, |store, (from, to)| {
        store.with_key_remapping(from, to)
    })
}

/// Whether a tensor is PyTorch's count of the batches that a normalization has seen, which no
/// computation needs.
pub(crate) fn is_batch_count(name: &str) -> bool {
    name.ends_with(".num_batches_tracked")
}

/// Whether a tensor is the running mean of a normalization.
pub(crate) fn is_running_mean(name: &str) -> bool {
    name.ends_with(".running_mean")
}
