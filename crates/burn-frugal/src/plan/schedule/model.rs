//! Schedules and importances of a model's channel-sparse layers.

use burn::module::Module;
use burn::tensor::Tensor;
use std::collections::BTreeMap;

use super::{Importance, Schedule, ScheduleError, SparseLayer};
use crate::error::Error;
use crate::methods::{LayerShape, Method};
use crate::plan::{measure, walk};

impl SparseLayer {
    /// The layers of a model whose method is channel-sparse, in the model's order.
    pub fn of<M: Module>(model: &M) -> Vec<Self> {
        let layers = sparse(model).into_iter();
        layers
            .map(|(path, shape, selected)| Self {
                path,
                channels: shape.channels[0],
                weights_per_channel: shape.weights_per_channel(),
                selected,
            })
            .collect()
    }
}

impl Importance {
    /// The Euclidean norm of each channel's weights, for the channel-sparse layers of a model.
    ///
    /// # Errors
    /// When a weight is not a finite number.
    pub fn weight_norm<M: Module>(model: &M) -> Result<Self, Error> {
        let norms = sparse(model).into_iter().map(|(path, shape, _)| {
            let norms = shape.channel_norms(walk::weights(model, &path, &shape));
            (path, norms)
        });
        Ok(Self::new(norms.collect())?)
    }

    /// The Euclidean norm of the exact gradient of each channel's weights, for the channel-sparse
    /// layers of a model. `loss` runs the model it is given on one batch, on a training device.
    ///
    /// One forward and backward pass a layer, on a copy in which everything is frozen and exact, so
    /// that only one layer's input is kept at a time.
    ///
    /// # Errors
    /// When the loss does not depend on a layer, or a gradient is not a finite number.
    pub fn gradient_norm<M: Module>(
        model: &M,
        loss: impl Fn(&M) -> Tensor<1>,
    ) -> Result<Self, Error> {
        Self::measured(model, loss, |_, _| 1.0)
    }

    /// [`gradient_norm`](Self::gradient_norm) relative to what training the channel takes, in
    /// elements: its weights and one image's map, `weights_per_channel + height * width` (TraDy,
    /// arXiv 2510.19675). For a linear layer the map is the rows of one sample.
    ///
    /// # Errors
    /// As [`gradient_norm`](Self::gradient_norm).
    pub fn relative_gradient_norm<M: Module>(
        model: &M,
        loss: impl Fn(&M) -> Tensor<1>,
    ) -> Result<Self, Error> {
        Self::measured(model, loss, |shape, pass| {
            let modes = pass.geometry.modes();
            let map = modes
                .with(0, 1)
                .with(pass.geometry.channel_mode(), 1)
                .product();
            (shape.weights_per_channel() + map) as f64
        })
    }

    /// Gradient norms over a layer's cost, which is that of its last pass.
    fn measured<M: Module>(
        model: &M,
        loss: impl Fn(&M) -> Tensor<1>,
        cost: impl Fn(&LayerShape, &measure::Pass) -> f64,
    ) -> Result<Self, Error> {
        let mut layers = BTreeMap::new();
        for (path, shape, _) in sparse(model) {
            let passes = measure::passes(model, &path, &loss)?;
            let gradient = measure::exact_weight_gradient(&passes);
            let cost = passes.last().map_or(1.0, |pass| cost(&shape, pass));
            let norms = shape.channel_norms(gradient);
            layers.insert(path, norms.iter().map(|norm| norm / cost).collect());
        }
        Ok(Self::new(layers)?)
    }
}

impl Schedule {
    /// Sets the channels that the layers of `model` train now. Call it after each
    /// [`advance`](Self::advance), and once at the start.
    ///
    /// # Errors
    /// When the schedule names a layer that the model does not have or whose method is not
    /// channel-sparse, or has another number of channels for it.
    pub fn apply<M: Module>(&self, model: M) -> Result<M, Error> {
        let layers = walk::layers(&model);
        for scheduled in self.layers() {
            let path = &scheduled.path;
            let layer = walk::find(&layers, path)?;
            if !matches!(layer.method, Method::ChannelSparse(_)) {
                return Err(ScheduleError::NotSparse {
                    path: path.clone(),
                    found: layer.method.to_string(),
                }
                .into());
            }
            let [expected, _] = layer.shape.channels;
            if scheduled.channels != expected {
                return Err(ScheduleError::LayerChannels {
                    path: path.clone(),
                    expected,
                    found: scheduled.channels,
                }
                .into());
            }
        }
        let mut selection = self.selection();
        Ok(walk::change(model, move |path, slot| {
            if let Some(channels) = selection.remove(path) {
                slot.set_channels(Some(channels));
            }
        }))
    }
}

/// Path, shape and number of channels at a time of each channel-sparse layer.
fn sparse<M: Module>(model: &M) -> Vec<(String, LayerShape, usize)> {
    let layers = walk::layers(model).into_iter();
    layers
        .filter_map(|layer| match layer.method {
            Method::ChannelSparse(sparse) => {
                let selected = sparse.selected(layer.shape.channels[0]);
                Some((layer.path, layer.shape, selected))
            }
            _ => None,
        })
        .collect()
}
