"""Medians over rounds and their ratios, as Markdown, of the JSON lines that compare.sh collects.

usage: python ratios.py FOLDER
"""
import collections
import json
import math
import pathlib
import statistics
import sys


def read(folder, part, key):
    """{key of a record: {field: median over the records with that key}}, in the order of their first appearance."""
    path = pathlib.Path(folder) / f"{part}.jsonl"
    groups = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        for field, value in record.items():
            if isinstance(value, (int, float)):
                groups[key(record)][field].append(value)
    return {k: {f: statistics.median(v) for f, v in fields.items()} for k, fields in groups.items()}


SEVEN_MAPS = ((120, 160), (60, 80), (30, 40), (14, 14), (14, 14), (28, 28), (56, 56))


def mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else math.nan


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def ms(values):
    return " / ".join(f"{v:.3f}" if v < 1 else f"{v:.2f}" if v < 10 else f"{v:.0f}" if v >= 100 else f"{v:.1f}" for v in values)


def layers(folder, floor):
    data = read(folder, "layers", lambda r: (r["layer"], r["backend"], r["method"]))
    indices = sorted({k[0] for k in data})
    backends = [b for b in ("flex", "ndarray") if (0, b, "exact") in data]
    if not indices:
        return
    print("### Seven layers, batch 8: forward / backward, ms\n")
    sides = [(b, m) for b in [*backends, "pytorch"] for m in ("exact", "filter2", "filter4") if (0, b, m) in data]
    rows = [[str(i)] + [ms([data[i, b, m]["forward_ms"], data[i, b, m]["backward_ms"]]) for b, m in sides] for i in indices]
    table(["layer"] + [f"{b} {m}" for b, m in sides], rows)
    print("Floor of the backward pass, ms, and how many times that it takes:\n")
    rows = []
    for i in indices:
        r = data[i, backends[0], "exact"]
        channels, batch, (height, width) = r["channels"], r["batch"], SEVEN_MAPS[i]
        elements, weight, row = batch * channels * height * width, 9 * channels**2, [str(i)]
        for m, patch in (("exact", 1), ("filter2", 2), ("filter4", 4)):
            pixels = batch * math.ceil(height / patch) * math.ceil(width / patch)
            macs = 2 * pixels * channels**2 * (9 if patch == 1 else 1)
            kept = pixels * channels
            least = floor.ms(macs, elements + kept + weight, elements + weight)
            row += [times(data[i, b, m]["backward_ms"], least) for b in backends if (i, b, m) in data]
        rows.append(row)
    table(["layer"] + [f"{m}, {b}" for m in ("exact", "filter2", "filter4") for b in backends], rows)
    rows = []
    for b in backends:
        for m in ("filter2", "filter4"):
            ours = [data[i, b, m]["backward_ms"] for i in indices]
            row = [b, m]
            for other in ("exact", m):
                if (0, "pytorch", other) in data:
                    r = [data[i, "pytorch", other]["backward_ms"] / o for i, o in zip(indices, ours)]
                    row.append(f"{mean(r):.1f}x (least {min(r):.1f}x)")
                else:
                    row.append("-")
            r = [data[i, b, m]["forward_ms"] / data[i, b, "exact"]["forward_ms"] for i in indices]
            row.append(f"{mean(r):.3f}x (most {max(r):.3f}x)")
            rows.append(row)
    table(["backend", "method", "backward, against PyTorch's exact", "against the published operator in PyTorch", "forward, of our exact forward"], rows)


class Floor:
    """The least time that a pass can take on a machine: arithmetic at the speed of large products, or every tensor read
    or written once, whichever takes longer."""

    def __init__(self, folder):
        machine = next(iter(read(folder, "machine", lambda r: 0).values()))
        self.flops, self.read, self.write = (machine[f] for f in ("product_gflops", "read_gbs", "write_gbs"))
        print(f"This machine: {self.flops:.0f} GFLOP/s in large products, reads {self.read:.0f} GB/s, writes {self.write:.0f} GB/s.\n")

    def ms(self, macs, reads, writes):
        """Of multiply-accumulates, and of f32 elements that are read and written."""
        return max(2e-6 * macs / self.flops, 4e-6 * (reads / self.read + writes / self.write))


def times(found, floor):
    return f"{floor:.2f} ({found / floor:.1f}x)"


PASSES = ("forward_ms", "input_gradient_ms", "weight_gradient_ms")


def kernels(folder, floor):
    data = read(folder, "kernels", lambda r: (r["name"], r["backend"], r["side"]))
    names = list(dict.fromkeys(k[0] for k in data))
    backends = [b for b in ("flex", "ndarray") if any(k[1] == b for k in data)]
    if not names:
        return
    print("### Single convolutions, batch 8: forward / input gradient / weight gradient, ms\n")
    sides = [(b, s) for b, s in [("flex", "ours"), ("ndarray", "ours"), ("pytorch", "pytorch"), ("flex", "burn"), ("ndarray", "burn")] if (names[0], b, s) in data]
    rows = [[n] + [ms([data[n, b, s][p] for p in PASSES]) for b, s in sides] for n in names]
    table(["convolution"] + [b if s == "pytorch" else f"{s}, {b}" for b, s in sides], rows)
    print("Floor of each pass, ms, and how many times that ours takes on flex:\n")
    rows = []
    for c in json.loads((pathlib.Path(folder) / "convolutions.json").read_text()):
        (inputs, outputs), size, kernel = c["channels"], c["size"], c["kernel"]
        batch = data[c["name"], backends[0], "ours"]["batch"]
        side = (size + 2 * (kernel // 2) - kernel) // c["stride"] + 1
        x, y = batch * inputs * size**2, batch * outputs * side**2
        w = outputs * inputs // c["groups"] * kernel**2
        # taps on padding need no arithmetic, and pixels that a stride skips need not be read
        taps = sum(0 <= c["stride"] * p + t - kernel // 2 < size for p in range(side) for t in range(kernel))
        macs = batch * outputs * (inputs // c["groups"]) * taps**2
        pixels = batch * inputs * min(size, side * kernel) ** 2
        least = [floor.ms(macs, pixels + w, y), floor.ms(macs, y + w, x), floor.ms(macs, pixels + y, w)]
        ours = data[c["name"], backends[0], "ours"]
        rows.append([c["name"]] + [times(ours[p], f) for p, f in zip(PASSES, least)])
    table(["convolution", "forward", "input gradient", "weight gradient"], rows)
    total = lambda n, b, s: sum(data[n, b, s][p] for p in PASSES)
    rows = []
    for b in backends:
        for other in (("pytorch", "pytorch"), (b, "burn")):
            if (names[0], *other) in data:
                r = {n: total(n, *other) / total(n, b, "ours") for n in names}
                worst = min(r, key=r.get)
                rows.append([b, "PyTorch" if other[1] == "pytorch" else f"Burn's own, {b}", f"{mean(list(r.values())):.2f}x", f"{r[worst]:.2f}x ({worst})"])
    table(["ours on", "against", "three passes together, geometric mean", "least"], rows)
    rows = []
    for n in names:
        if "depthwise" in n:
            row = [n]
            for b in backends:
                ours = data[n, b, "ours"]
                row.append(f"{ours['weight_gradient_ms'] / ours['forward_ms']:.2f}x")
                if (n, "pytorch", "pytorch") in data:
                    row.append(f"{data[n, 'pytorch', 'pytorch']['weight_gradient_ms'] / ours['weight_gradient_ms']:.2f}x")
            rows.append(row)
    if rows:
        head = ["depthwise weight gradient"]
        for b in backends:
            head += [f"{b}: of our forward", f"{b}: PyTorch's / ours"][: 1 + (len(rows[0]) > 1 + len(backends))]
        table(head, rows)


def steps(folder, floor):
    data = read(folder, "step", lambda r: (r["model"], r["tune"], r["backend"], r["method"]))
    cases = list(dict.fromkeys(k[:2] for k in data))
    if not cases:
        return
    print("### Training step, batch 32, 128 pixels\n")
    rows, ratios = [], []
    for case in cases:
        for (_, _, backend, method), r in ((k, v) for k, v in data.items() if k[:2] == case):
            memory = [f"{r[f] / 1e6:.1f}" if f in r else "-" for f in ("kept_bytes", "peak_bytes")]
            growth = f"{r['peak_growth_bytes'] / 1e6:.0f}" if "peak_growth_bytes" in r else "-"
            rows.append([*case, backend, method] + [f"{r[f]:.1f}" for f in ("step_ms", "forward_ms", "inference_ms")] + memory + [growth])
        for backend in ("flex", "ndarray"):
            if (*case, backend, "exact") not in data:
                continue
            time = lambda b, m: data.get((*case, b, m), {}).get("step_ms", math.nan)
            exact, pytorch = time(backend, "exact"), time("pytorch", "exact")
            values = [exact / pytorch, time(backend, "filter4") / pytorch, time(backend, "shortcut") / exact, time(backend, "sequential") / exact, exact / time("flex", "burn")]
            ratios.append([*case, backend] + ["-" if math.isnan(v) else f"{v:.2f}" for v in values])
    table(["network", "tuned", "backend", "method", "step ms", "forward ms", "inference ms", "kept MB", "peak MB", "growth of resident peak MB"], rows)
    table(["network", "tuned", "backend", "exact / PyTorch exact", "filter4 / PyTorch exact", "shortcut / our exact", "sequential shortcut / our exact", "exact / Burn's own on flex"], ratios)


if __name__ == "__main__":
    floor = Floor(sys.argv[1])
    for part in (layers, kernels, steps):
        part(sys.argv[1], floor)
