use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::config::InputConfig;
use crate::network::BottleneckNet;

/// Labelled images of one size in memory, a byte a value.
#[derive(Clone, Debug)]
pub struct ImageSet {
    channels: usize,
    /// `[height, width]` in pixels.
    size: [usize; 2],
    /// `[image, channel, row, column]`
    pixels: Vec<u8>,
    labels: Vec<usize>,
}

impl ImageSet {
    /// An empty set of images with this many channels and this `[height, width]`.
    pub fn new(channels: usize, size: [usize; 2]) -> Self {
        Self {
            channels,
            size,
            pixels: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Adds an image, `[channel, row, column]`.
    ///
    /// # Panics
    /// When `pixels` is not an image of this set's size.
    pub fn push(&mut self, pixels: &[u8], label: usize) {
        let expected = self.image_len();
        assert_eq!(
            pixels.len(),
            expected,
            "ImageSet::push: {expected} values an image"
        );
        self.pixels.extend_from_slice(pixels);
        self.labels.push(label);
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Channels and `[height, width]` of an image.
    pub fn shape(&self) -> (usize, [usize; 2]) {
        (self.channels, self.size)
    }

    /// The values of one image, `[channel, row, column]`.
    pub fn pixels(&self, image: usize) -> &[u8] {
        &self.pixels[image * self.image_len()..][..self.image_len()]
    }

    /// The class of one image.
    pub fn label(&self, image: usize) -> usize {
        self.labels[image]
    }

    /// The images of these indices, normalised, and their classes.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - classes: `[batch]`
    pub fn batch(
        &self,
        indices: &[usize],
        input: &InputConfig,
        device: &Device,
    ) -> (Tensor<4>, Tensor<1, Int>) {
        let values = indices.iter().flat_map(|&image| self.pixels(image));
        let values: Vec<f32> = values.map(|&value| input.normalized(value)).collect();
        let labels: Vec<i32> = indices
            .iter()
            .map(|&image| self.labels[image] as i32)
            .collect();
        let shape = [indices.len(), self.channels, self.size[0], self.size[1]];
        (
            Tensor::from_data(TensorData::new(values, shape), device),
            Tensor::from_data(TensorData::new(labels, [indices.len()]), device),
        )
    }

    fn image_len(&self) -> usize {
        self.channels * self.size[0] * self.size[1]
    }
}

impl InputConfig {
    /// A value in 0..=255 as the network wants it.
    pub fn normalized(&self, value: u8) -> f32 {
        (f32::from(value) - self.mean) / self.std
    }
}

impl BottleneckNet {
    /// Share of the images whose highest score is that of their class, in `[0, 1]`. Nothing is
    /// kept for a backward pass.
    ///
    /// # Panics
    /// When the set is empty or `batch` is 0.
    pub fn accuracy(
        &self,
        images: &ImageSet,
        input: &InputConfig,
        batch: usize,
        device: &Device,
    ) -> f64 {
        assert!(
            !images.is_empty() && batch > 0,
            "BottleneckNet::accuracy: {} images in batches of {batch}",
            images.len()
        );
        let network = self.valid();
        let device = device.clone().inner();
        let indices: Vec<usize> = (0..images.len()).collect();
        let mut correct = 0;
        for indices in indices.chunks(batch) {
            let (images, classes) = images.batch(indices, input, &device);
            let predicted = network.forward(images).argmax(1).reshape([indices.len()]);
            correct += predicted.equal(classes).int().sum().into_scalar::<i64>();
        }
        correct as f64 / images.len() as f64
    }
}
