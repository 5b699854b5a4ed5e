//! The usual augmentation of small images: a random crop of the padded image, mirrored half of the
//! time.

use burn_frugal_models::ImageSet;
use rand::{Rng, rngs::StdRng};

/// Pixels of padding on each side.
const PADDING: i32 = 4;

/// The images of these indices, each shifted by up to [`PADDING`] pixels with zeros (black) coming
/// in, and mirrored or not.
pub fn cropped_and_flipped(images: &ImageSet, indices: &[usize], rng: &mut StdRng) -> ImageSet {
    let (channels, [height, width]) = images.shape();
    let mut out = ImageSet::new(channels, [height, width]);
    let mut shifted = vec![0u8; channels * height * width];
    for &image in indices {
        let rows = rng.random_range(-PADDING..=PADDING);
        let columns = rng.random_range(-PADDING..=PADDING);
        let mirrored = rng.random_bool(0.5);
        let pixels = images.pixels(image);
        for (index, value) in shifted.iter_mut().enumerate() {
            let (line, x) = (index / width, index % width);
            let (channel, y) = (line / height, line % height);
            let x = if mirrored { width - 1 - x } else { x };
            let source_y = y.checked_add_signed(rows as isize).filter(|&y| y < height);
            let source_x = x
                .checked_add_signed(columns as isize)
                .filter(|&x| x < width);
            *value = match (source_y, source_x) {
                (Some(y), Some(x)) => pixels[(channel * height + y) * width + x],
                _ => 0,
            };
        }
        out.push(&shifted, images.label(image));
    }
    out
}
