//! Image folders: one folder a class.

use burn_frugal_models::ImageSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Side of the images.
const SIDE: usize = 32;

/// Loads `folder/<class>/*`; classes are numbered in the order of their names.
pub fn load(folder: &Path) -> Result<ImageSet, Box<dyn Error>> {
    let mut images = ImageSet::new(3, [SIDE, SIDE]);
    for (class, folder) in sorted(folder)?.iter().enumerate() {
        for path in sorted(folder)? {
            images.push(&decode(&path)?, class);
        }
    }
    Ok(images)
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

/// `[channel, row, column]`
fn decode(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let image = image::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let image = image.to_rgb8();
    let (width, height) = image.dimensions();
    if [width as usize, height as usize] != [SIDE, SIDE] {
        let path = path.display();
        return Err(
            format!("{path}: expected {SIDE}x{SIDE} pixels, found {width}x{height}").into(),
        );
    }
    let pixels = image.as_raw();
    let plane = |channel: usize| pixels[channel..].iter().step_by(3).copied();
    Ok((0..3).flat_map(plane).collect())
}
