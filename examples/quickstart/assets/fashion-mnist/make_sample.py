#!/usr/bin/env python3
"""Make train.png and test.png: a small balanced sample of Fashion-MNIST.

Usage: python3 make_sample.py IDX_FOLDER [OUT_FOLDER]

IDX_FOLDER holds the four original files, {train,t10k}-images-idx3-ubyte.gz and
{train,t10k}-labels-idx1-ubyte.gz. OUT_FOLDER is this script's folder by default.
Needs numpy and pillow.

Each sheet is an 8-bit greyscale PNG of 28x28 tiles, 50 to a row, without gaps,
in order of class; within a class, in order of position in the original file.
"""

import gzip
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 0
SIDE = 28
COLUMNS = 50
CLASSES = 10
# Sheet name: (prefix of the original files, images per class)
SHEETS = {"train": ("train", 200), "test": ("t10k", 50)}


def read_idx(path):
    """The array of unsigned bytes in a gzipped idx file.

    The header is 0, 0, 8 (unsigned byte), the number of dimensions, then each
    dimension as a big-endian 32-bit integer.
    """
    data = gzip.decompress(path.read_bytes())
    if data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name}: not an idx file of unsigned bytes")
    rank = data[3]
    shape = np.frombuffer(data, ">u4", rank, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def choose(labels, per_class):
    """Indices of `per_class` images of each class, in order of class.

    RandomState, unlike numpy's newer generators, promises the same numbers in
    every version of numpy.
    """
    rng = np.random.RandomState(SEED)
    return np.concatenate([
        np.sort(rng.permutation(np.flatnonzero(labels == c))[:per_class])
        for c in range(CLASSES)
    ])


def contact_sheet(images):
    """Tile N 28x28 images row by row, COLUMNS to a row."""
    rows = len(images) // COLUMNS
    grid = images.reshape(rows, COLUMNS, SIDE, SIDE)
    return grid.swapaxes(1, 2).reshape(rows * SIDE, COLUMNS * SIDE)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_sample.py IDX_FOLDER [OUT_FOLDER]")
    source = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) == 3 else Path(__file__).parent
    for name, (prefix, per_class) in SHEETS.items():
        images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz")
        sheet = contact_sheet(images[choose(labels, per_class)])
        Image.fromarray(sheet).save(out / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
