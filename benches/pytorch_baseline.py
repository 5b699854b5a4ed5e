"""PyTorch's side of the benchmarks (CPU). Prints one JSON object a line, with the field names of the Rust programs.

usage: python pytorch_baseline.py layers [--batch 8] [--reps 5]
       python pytorch_baseline.py kernels --convolutions FILE [--batch 8] [--reps 5]
       python pytorch_baseline.py step --network FILE [--batch 8] [--size 128] [--tune 4|all]
                                       [--method exact|filter2|filter4] [--reps 5]

needs torch 2.9.0. Threads: OMP_NUM_THREADS, or all cores.
FILE is what `kernels --describe` and `step MODEL --size SIZE --describe` print; the weights are random.
`layers`: forward and backward of the seven convolutions of the gradient filter's latency table.
`kernels`: forward, input gradient and weight gradient of single convolutions.
`step`: forward, loss and backward of a network with its last convolutions and its classifier trained, and the growth of
the process's resident peak over what it was before the first step.
"""
import argparse
import json
import math
import pathlib
import resource
import statistics
import time

import torch
import torch.nn.functional as F

SEVEN = [(128, 120, 160), (256, 60, 80), (512, 30, 40), (512, 14, 14), (256, 14, 14), (128, 28, 28), (64, 56, 56)]


def exact(x, w, b, stride, padding, groups):
    """`padding` is that at the top and left, and that at the bottom and right."""
    before, after = padding
    if before != after:
        x, before = F.pad(x, (before, after, before, after)), 0
    return F.conv2d(x, w, b, stride, before, 1, groups)


class FilteredConv2d(torch.autograd.Function):
    """The published gradient filter: exact forward, patch-constant backward. Dense or depthwise."""

    @staticmethod
    def forward(ctx, x, w, b, stride, padding, groups, patch):
        y = exact(x, w, b, stride, padding, groups)
        tiles = [math.ceil(n / patch) for n in y.shape[2:]]
        pad = [math.ceil((p * patch * stride - n) / 2) for p, n in zip(tiles, x.shape[2:])]
        kept = F.avg_pool2d(x, patch * stride, patch * stride, pad, divisor_override=1)
        ctx.save_for_backward(kept, w.sum((2, 3)))
        ctx.meta = (stride, groups, patch, pad, x.shape, w.shape, b is not None)
        return y

    @staticmethod
    def backward(ctx, gy):
        kept, theta = ctx.saved_tensors
        stride, groups, patch, pad, xs, ws, has_bias = ctx.meta
        tiles = kept.shape[2:]
        gpad = [math.ceil((p * patch - n) / 2) for p, n in zip(tiles, gy.shape[2:])]
        mean = F.avg_pool2d(gy, patch, patch, gpad, count_include_pad=False)
        if groups == 1:
            gw = torch.einsum("nouv,ncuv->oc", mean, kept)
            gt = torch.einsum("oc,nouv->ncuv", theta, mean)
        else:
            gw, gt = (mean * kept).sum((0, 2, 3))[:, None], mean * theta.view(1, -1, 1, 1)
        side = patch * stride
        gx = gt.repeat_interleave(side, 2).repeat_interleave(side, 3)
        gx = gx[:, :, pad[0] : pad[0] + xs[2], pad[1] : pad[1] + xs[3]]
        return gx, gw[:, :, None, None].expand(ws).clone(), gy.sum((0, 2, 3)) if has_bias else None, None, None, None, None


def conv(x, w, b, stride, padding, groups, method):
    if method.startswith("filter"):
        return FilteredConv2d.apply(x, w, b, stride, padding, groups, int(method[6:]))
    return exact(x, w, b, stride, padding, groups)


def median_ms(f, reps):
    f()
    times = []
    for _ in range(reps):
        t = time.perf_counter()
        f()
        times.append((time.perf_counter() - t) * 1e3)
    return statistics.median(times)


def emit(**values):
    print(json.dumps(values), flush=True)


def layers(a):
    for i, (c, h, w) in enumerate(SEVEN):
        x = torch.randn(a.batch, c, h, w, requires_grad=True)
        k = (torch.randn(c, c, 3, 3) * 0.05).requires_grad_()
        b = torch.zeros(c, requires_grad=True)
        for method in ("exact", "filter2", "filter4"):
            y = conv(x, k, b, 1, (1, 1), 1, method)
            gy = torch.randn_like(y)
            forward = median_ms(lambda: conv(x, k, b, 1, (1, 1), 1, method), a.reps)
            backward = median_ms(lambda: torch.autograd.grad(y, (x, k, b), gy, retain_graph=True), a.reps)
            emit(layer=i, channels=c, map=[h, w], batch=a.batch, method=method, backend="pytorch", forward_ms=forward, backward_ms=backward)


def kernels(a):
    for c in json.loads(pathlib.Path(a.convolutions).read_text()):
        (inputs, outputs), size, kernel = c["channels"], c["size"], c["kernel"]
        w = torch.randn(outputs, inputs // c["groups"], kernel, kernel)
        x = torch.randn(a.batch, inputs, size, size)

        def run(x, w):
            return F.conv2d(x, w, None, c["stride"], kernel // 2, 1, c["groups"])

        with torch.no_grad():
            forward = median_ms(lambda: run(x, w), a.reps)
        times = []
        for of in (x, w):
            of.requires_grad_()
            y = run(x, w)
            gy = torch.randn_like(y)
            times.append(median_ms(lambda: torch.autograd.grad(y, of, gy, retain_graph=True), a.reps))
            of.requires_grad_(False)
        emit(name=c["name"], batch=a.batch, side="pytorch", backend="pytorch", forward_ms=forward, input_gradient_ms=times[0], weight_gradient_ms=times[1])


def network(table, tune, method):
    """(forward function, trained parameters) of a network of inverted bottlenecks with ReLU6, normalization folded."""
    convs = [table["first_conv"]] + [b[k] for b in table["blocks"] for k in ("pointwise1", "depthwise", "pointwise2") if b[k]]
    convs += [table["last_conv"]] if table["last_conv"] else []
    tuned = {c["name"] for c in (convs if tune == "all" else convs[-int(tune) :])}
    t = {}
    for c in convs:
        layer = torch.nn.Conv2d(c["channels_in"], c["channels_out"], c["kernel"], groups=c["groups"])
        for part, value in layer.named_parameters():
            t[f"{c['name']}.{part}"] = value.requires_grad_(c["name"] in tuned)
    head = torch.nn.Linear(table["features"], table["classes"])

    def run(c, x):
        m = method if c["name"] in tuned else "exact"
        return conv(x, t[c["name"] + ".weight"], t[c["name"] + ".bias"], c["stride"], (c["padding"], c["padding_after"]), c["groups"], m)

    def forward(x):
        x = F.relu6(run(table["first_conv"], x), inplace=True)
        for b in table["blocks"]:
            z = x
            if b["pointwise1"]:
                x = F.relu6(run(b["pointwise1"], x), inplace=True)
            x = run(b["pointwise2"], F.relu6(run(b["depthwise"], x), inplace=True))
            x = x + z if b["residual"] else x
        if table["last_conv"]:
            x = F.relu6(run(table["last_conv"], x), inplace=True)
        return head(x.mean((2, 3)))

    return forward, [t[n + p] for n in sorted(tuned) for p in (".weight", ".bias")] + list(head.parameters())


def step(a):
    path = pathlib.Path(a.network)
    table = json.loads(path.read_text())
    forward, params = network(table, a.tune, a.method)
    x, label = torch.rand(a.batch, 3, a.size, a.size) * 2 - 1, torch.randint(0, table["classes"], (a.batch,))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def one():
        for p in params:
            p.grad = None
        F.cross_entropy(forward(x), label).backward()

    ms = median_ms(one, a.reps)
    fwd = median_ms(lambda: forward(x), a.reps)
    with torch.no_grad():
        infer = median_ms(lambda: forward(x), a.reps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    emit(model=path.stem, batch=a.batch, size=a.size, tune=a.tune, method=a.method, backend="pytorch", step_ms=ms, forward_ms=fwd, inference_ms=infer, peak_growth_bytes=peak * 1024)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["layers", "kernels", "step"])
    p.add_argument("--convolutions")
    p.add_argument("--network")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--reps", type=int, default=5)
    p.add_argument("--size", type=int, default=128)
    p.add_argument("--tune", default="4")
    p.add_argument("--method", default="exact")
    args = p.parse_args()
    {"layers": layers, "kernels": kernels, "step": step}[args.what](args)
