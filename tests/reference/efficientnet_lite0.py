"""Logits of EfficientNet-Lite0 in PyTorch, in double precision, as JSON: [images][first ten classes].

usage: python efficientnet_lite0.py [WEIGHTS.safetensors]      (needs torch 2.9; with a file also safetensors)

Without a file the network has ten classes and the weights are those of `formula`. The images always are.
"""
import json
import sys

import numpy as np
import torch
import torch.nn.functional as F

# expansion, kernel, stride of the first, output channels, number of blocks
STAGES = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]
# maps of odd and even sides on the way through the network, which 'same' padding treats differently
IMAGES = (2, 3, 72, 56)
IMAGE_SEED = 1000


def random(seed, shape):
    """Values in -1..1: element i is a 32-bit hash of i + seed * 0x9e3779b9."""
    x = np.arange(np.prod(shape), dtype=np.uint32) + np.uint32(seed * 0x9E3779B9 % 2**32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return ((x >> np.uint32(8)).astype(np.float64) / 2**23 - 1).reshape(shape)


def blocks():
    """Of each block: name, channels in, expanded and out, kernel, stride."""
    channels, index = 32, 0
    for expansion, kernel, stride, output, count in STAGES:
        for repeat in range(count):
            yield f"_blocks.{index}.", channels, channels * expansion, output, kernel, stride if repeat == 0 else 1
            channels, index = output, index + 1


def shapes(classes):
    """The shape of every tensor, by its published name."""
    convs = {"_conv_stem": (32, 3, 3, 3), "_conv_head": (1280, 320, 1, 1)}
    norms = {"_bn0": 32, "_bn1": 1280}
    for name, channels, expanded, output, kernel, _ in blocks():
        if expanded != channels:
            convs[name + "_expand_conv"] = (expanded, channels, 1, 1)
            norms[name + "_bn0"] = expanded
        convs[name + "_depthwise_conv"] = (expanded, 1, kernel, kernel)
        convs[name + "_project_conv"] = (output, expanded, 1, 1)
        norms[name + "_bn1"], norms[name + "_bn2"] = expanded, output
    tensors = {name + ".weight": shape for name, shape in convs.items()}
    for name, channels in norms.items():
        tensors |= {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return tensors | {"_fc.weight": (classes, 1280), "_fc.bias": (classes,)}


def formula(classes):
    """Weights in single precision: tensor number t, sorted by name, is `random(t)` scaled to keep the size of maps."""
    tensors = {}
    for seed, (name, shape) in enumerate(sorted(shapes(classes).items())):
        value = random(seed, shape)
        if len(shape) > 1:
            value = value * np.sqrt(6 / np.prod(shape[1:]))
        elif name.endswith((".running_var", ".weight")):
            value = 0.75 + 0.5 * value
        else:
            value = 0.25 * value
        tensors[name] = torch.from_numpy(value.astype(np.float32)).double()
    return tensors


def conv(x, weight, stride=1, groups=1):
    """TensorFlow's 'same' padding: as much as the outputs need, the surplus pixel at the end."""
    pads = []
    for size, kernel in zip(reversed(x.shape[2:]), reversed(weight.shape[2:])):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, None, stride, 0, 1, groups)


def forward(t, x):
    def norm(name, x):
        return F.batch_norm(x, *(t[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")), eps=1e-3)

    x = F.relu6(norm("_bn0", conv(x, t["_conv_stem.weight"], 2)))
    for name, channels, expanded, output, _, stride in blocks():
        y = x
        if expanded != channels:
            y = F.relu6(norm(name + "_bn0", conv(y, t[name + "_expand_conv.weight"])))
        y = F.relu6(norm(name + "_bn1", conv(y, t[name + "_depthwise_conv.weight"], stride, expanded)))
        y = norm(name + "_bn2", conv(y, t[name + "_project_conv.weight"]))
        x = x + y if stride == 1 and channels == output else y
    x = F.relu6(norm("_bn1", conv(x, t["_conv_head.weight"])))
    return F.linear(x.mean((2, 3)), t["_fc.weight"], t["_fc.bias"])


def main(path=None):
    if path is None:
        tensors = formula(10)
    else:
        from safetensors.torch import load_file

        tensors = {name: value.double() for name, value in load_file(path).items()}
        found = {name: tuple(value.shape) for name, value in tensors.items()}
        assert found == shapes(1000), f"{path} has other tensors than EfficientNet-Lite0"
    images = torch.from_numpy(random(IMAGE_SEED, IMAGES).astype(np.float32)).double()
    with torch.no_grad():
        logits = forward(tensors, images)
    print(json.dumps(logits[:, :10].tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
