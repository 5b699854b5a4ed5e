//! Computing a layer's input again from what the layer before it keeps (arXiv 1604.06174).
//!
//! A layer whose method is [`Method::Recomputed`](crate::Method::Recomputed) leaves a note of how its
//! output came about; an activation and a normalization add to it. If the next layer on this thread
//! reads exactly that value, and recomputes too, it keeps the note instead of the value.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn_frugal_kernels::Activation;

use crate::geometry::LayerGeometry;
use crate::methods::{MOST_RECOMPUTED, Saved};
use crate::ops::{self, FrugalOps, MaybeFloat};

/// What there is of a layer's input for its backward pass.
#[derive(Clone, Debug)]
pub(super) enum Kept<B: FrugalOps> {
    Saved(Saved<B>),
    /// It is computed again.
    Source(Arc<Source<B>>),
}

impl<B: FrugalOps> Kept<B> {
    pub fn into_saved(self) -> Saved<B> {
        match self {
            Self::Saved(saved) => saved,
            Self::Source(source) => Saved::Full(source.value()),
        }
    }
}

/// How a value came about.
#[derive(Clone, Debug)]
pub(super) struct Source<B: FrugalOps> {
    input: Origin<B>,
    operation: Operation<B>,
    /// Layers among the operations from the kept value on.
    layers: usize,
}

/// What an operation was applied to.
#[derive(Clone, Debug)]
enum Origin<B: FrugalOps> {
    /// A value that the first layer keeps for its own gradient.
    Kept(FloatTensor<B>),
    Source(Arc<Source<B>>),
}

#[derive(Clone, Debug)]
enum Operation<B: FrugalOps> {
    Layer {
        weight: FloatTensor<B>,
        bias: MaybeFloat<B>,
        geometry: LayerGeometry,
    },
    Activation(Activation),
    Normalization {
        scale: FloatTensor<B>,
        shift: FloatTensor<B>,
        geometry: LayerGeometry,
    },
}

impl<B: FrugalOps> Source<B> {
    /// The value, computed again.
    pub fn value(&self) -> FloatTensor<B> {
        let input = match &self.input {
            Origin::Kept(input) => input.clone(),
            Origin::Source(source) => source.value(),
        };
        match &self.operation {
            Operation::Layer {
                weight,
                bias,
                geometry,
            } => ops::forward::<B>(input, weight.clone(), bias.clone(), geometry),
            Operation::Activation(activation) => B::activation(input, *activation),
            Operation::Normalization {
                scale,
                shift,
                geometry,
            } => ops::normalized::<B>(input, scale.clone(), shift.clone(), geometry),
        }
    }
}

/// The value that was noted last, by its node.
struct Noted {
    node: u64,
    /// A `Source<B>`.
    source: Arc<dyn Any + Send + Sync>,
}

thread_local! {
    static NOTED: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// Takes the note of this node's value; any other note is out of date.
pub(super) fn take<B: FrugalOps>(node: u64) -> Option<Arc<Source<B>>> {
    let noted = NOTED.take().filter(|noted| noted.node == node)?;
    noted.source.downcast().ok()
}

fn note<B: FrugalOps>(node: u64, source: Source<B>) {
    NOTED.set(Some(Noted {
        node,
        source: Arc::new(source),
    }));
}

/// Forgets what was noted.
pub(super) fn forget() {
    NOTED.set(None);
}

/// The source of a layer's input, if the layer need not keep it.
pub(super) fn take_short<B: FrugalOps>(input: u64) -> Option<Arc<Source<B>>> {
    take::<B>(input).filter(|source| source.layers <= MOST_RECOMPUTED)
}

/// Notes the output of a layer that recomputes: from what there is of its input.
pub(super) fn note_layer<B: FrugalOps>(
    output: u64,
    kept: Kept<B>,
    weight: FloatTensor<B>,
    bias: MaybeFloat<B>,
    geometry: LayerGeometry,
) {
    let (input, before) = match kept {
        Kept::Source(source) => {
            let layers = source.layers;
            (Origin::Source(source), layers)
        }
        Kept::Saved(Saved::Full(input)) => (Origin::Kept(input), 0),
        Kept::Saved(_) => return,
    };
    let operation = Operation::Layer {
        weight,
        bias,
        geometry,
    };
    note(
        output,
        Source {
            input,
            operation,
            layers: before + 1,
        },
    );
}

/// Notes the output of an activation of a noted value.
pub(super) fn note_activation<B: FrugalOps>(
    source: Option<Arc<Source<B>>>,
    output: u64,
    activation: Activation,
) {
    note_after(source, output, Operation::Activation(activation));
}

/// Notes the output of a normalization of a noted value.
pub(super) fn note_normalization<B: FrugalOps>(
    source: Option<Arc<Source<B>>>,
    output: u64,
    [scale, shift]: [FloatTensor<B>; 2],
    geometry: LayerGeometry,
) {
    let operation = Operation::Normalization {
        scale,
        shift,
        geometry,
    };
    note_after(source, output, operation);
}

fn note_after<B: FrugalOps>(source: Option<Arc<Source<B>>>, output: u64, operation: Operation<B>) {
    if let Some(source) = source {
        let layers = source.layers;
        note(
            output,
            Source {
                input: Origin::Source(source),
                operation,
                layers,
            },
        );
    }
}
