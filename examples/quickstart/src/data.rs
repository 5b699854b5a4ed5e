//! The embedded images: contact sheets whose rows tell the class (see `assets/fashion-mnist`).

use burn_frugal_models::ImageSet;

use crate::error::Error;

/// Classes of the sample.
pub const CLASSES: usize = 10;
/// Side of a tile on a contact sheet.
const TILE: usize = 28;
/// Tiles in a row of a contact sheet.
const COLUMNS: usize = 50;
/// Side and channels that the network was trained with.
const SIDE: usize = 32;
const CHANNELS: usize = 3;

const TRAIN: &[u8] = include_bytes!("../assets/fashion-mnist/train.png");
const TEST: &[u8] = include_bytes!("../assets/fashion-mnist/test.png");

/// 2,000 training images, 200 a class.
pub fn train() -> Result<ImageSet, Error> {
    sheet("train.png", TRAIN, 4)
}

/// 500 test images, 50 a class.
pub fn test() -> Result<ImageSet, Error> {
    sheet("test.png", TEST, 1)
}

/// Cuts a contact sheet with this many rows of tiles a class.
fn sheet(name: &'static str, png: &[u8], rows: usize) -> Result<ImageSet, Error> {
    let decoded = image::load_from_memory(png);
    let sheet = decoded.map_err(|source| Error::Image {
        sheet: name,
        source,
    })?;
    let sheet = sheet.to_luma8();
    let expected = ((COLUMNS * TILE) as u32, (CLASSES * rows * TILE) as u32);
    if sheet.dimensions() != expected {
        return Err(Error::SheetSize {
            sheet: name,
            expected,
            found: sheet.dimensions(),
        });
    }
    let mut images = ImageSet::new(CHANNELS, [SIDE, SIDE]);
    for row in 0..CLASSES * rows {
        for column in 0..COLUMNS {
            images.push(&framed(&sheet, row * TILE, column * TILE), row / rows);
        }
    }
    Ok(images)
}

/// A grey tile in the middle of a black image of the network's size, the same in every channel.
fn framed(sheet: &image::GrayImage, top: usize, left: usize) -> Vec<u8> {
    const BORDER: usize = (SIDE - TILE) / 2;
    let mut plane = vec![0; SIDE * SIDE];
    for y in 0..TILE {
        for x in 0..TILE {
            let pixel = sheet.get_pixel((left + x) as u32, (top + y) as u32);
            plane[(y + BORDER) * SIDE + x + BORDER] = pixel.0[0];
        }
    }
    plane.repeat(CHANNELS)
}
