#!/usr/bin/env bash
# Runs the Python benches, saves the figures under .benchmarks/, compares them with the run before and draws both.
# Usage: bench_python.sh VENV_BIN
set -euo pipefail

bin=$1
storage=.benchmarks

compare=()
if find "$storage" -name '*.json' 2>/dev/null | grep -q .; then
    compare=(--benchmark-compare)
else
    echo "no earlier run under $storage: nothing to compare with"
fi

"$bin/python" -m pytest benches --benchmark-only --benchmark-storage="file://$storage" --benchmark-autosave \
    --benchmark-columns=median,iqr,rounds --benchmark-group-by=func ${compare[@]+"${compare[@]}"}
"$bin/python" scripts/bench/plot_benchmarks.py "$storage" target/benchmarks.png
