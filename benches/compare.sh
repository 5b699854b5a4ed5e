#!/usr/bin/env bash
# Runs our side, Burn's own layers and PyTorch in turn on the same cores, several rounds, and prints medians and ratios
# as Markdown tables: compare.sh [ROUNDS] [what...], what being layers, kernels or step (all without it).
#
# PyTorch 2.9.0 is taken from the Python that PYTHON names (python3 without it). Threads on every side:
# RAYON_NUM_THREADS, or all cores.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-3}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "usage: benches/compare.sh [ROUNDS] [layers|kernels|step...]" >&2; exit 2; }
shift || true
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(layers kernels step)
for part in "${parts[@]}"; do
    case $part in
    layers | kernels | step) ;;
    *) echo "expected layers, kernels or step, found $part" >&2; exit 2 ;;
    esac
done
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "Python is missing: $python (name another with PYTHON=...)" >&2; exit 2; }
threads=${RAYON_NUM_THREADS:-$(nproc)}
export RAYON_NUM_THREADS=$threads OMP_NUM_THREADS=$threads MKL_NUM_THREADS=$threads

torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) || torch=
if [ -z "$torch" ]; then
    echo "PyTorch is missing: $python cannot import torch, so there is nothing to compare with but Burn's own layers." >&2
    echo "Install it ($python -m pip install torch==2.9.0), or name a Python that has it: PYTHON=... benches/compare.sh" >&2
fi

cargo build --release --package burn-frugal-benches
bin=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
out=$(mktemp -d)
echo "measurements are collected in $out" >&2

ours() { "$bin/$1" "${@:2}" >>"$out/$1.jsonl"; }
pytorch() { [ -z "$torch" ] || "$python" benches/pytorch_baseline.py "$@" >>"$out/$1.jsonl"; }

layers() {
    for method in exact filter2 filter4; do
        for backend in flex ndarray; do ours layers --method $method --backend $backend; done
    done
    pytorch layers
}

kernels() {
    for backend in flex ndarray; do ours kernels --backend $backend --side ours; done
    pytorch kernels --convolutions "$out/convolutions.json"
    for backend in flex ndarray; do ours kernels --backend $backend --side burn; done
}

step() {
    for model in mcunet-5fps mbv2-w0.35; do
        for tune in 4 all; do
            # what is compared with each other comes right after each other
            for backend in flex ndarray; do
                for method in exact shortcut sequential filter4; do
                    ours step $model --batch 32 --tune $tune --method $method --backend $backend
                done
                for method in exact filter4; do
                    pytorch step --network "$out/$model.json" --batch 32 --tune $tune --method $method
                done
            done
            ours step $model --batch 32 --tune $tune --method burn
        done
    done
}

"$bin/kernels" --describe >"$out/convolutions.json"
for model in mcunet-5fps mbv2-w0.35; do "$bin/step" $model --describe >"$out/$model.json"; done
for ((round = 1; round <= rounds; round++)); do
    ours machine
    for part in "${parts[@]}"; do
        echo "round $round of $rounds: $part" >&2
        $part
    done
done
"$python" benches/ratios.py "$out"
rm -rf "$out"
