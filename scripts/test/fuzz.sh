#!/usr/bin/env bash
# Fuzzes what reads untrusted input, T seconds in all, and says what each target has tried: scripts/test/fuzz.sh [T]
# scripts/test/fuzz.sh --keep replaces the inputs in fuzz/corpus by the fewest short ones that reach what was reached
# here.
#
# libFuzzer needs the compiler's coverage pass, which stable rustc has; its sanitizers need a nightly one, so what is
# found are panics, failed assertions, hangs and too much memory. What fails is kept in target/fuzz/failed; the same
# program with that file as its argument runs it again.
set -euo pipefail
cd "$(dirname "$0")/../.."

targets=(gguf tokenizer chat_template sampling)
work=target/fuzz
programs=$work/build/fuzz

total=${1:-600}
if [ "$total" != --keep ] && ! [[ $total =~ ^[1-9][0-9]+$ ]]; then
    echo "got '$total', expected --keep or a number of seconds from 10 on" >&2
    exit 2
fi
if ! command -v c++ >/dev/null; then
    echo 'c++ not found: libFuzzer is C++; install a compiler (Debian and Ubuntu: apt install g++)' >&2
    exit 1
fi
echo '==> fuzzing: building'
ROCMFORGE_HIP_TARGETS=none CARGO_TARGET_DIR=$work/build CARGO_INCREMENTAL=0 RUSTC_WORKSPACE_WRAPPER=$PWD/fuzz/rustc.sh \
    cargo build --quiet --locked --profile fuzz --package rocmforge-fuzz --features libfuzzer --bins

limits=(-max_len=16384 -timeout=20 -rss_limit_mb=2048 -verbosity=0)

if [ "$total" = --keep ]; then
    for target in "${targets[@]}"; do
        mkdir -p "$work/corpus/$target" "$work/kept/$target"
        rm -f "$work/kept/$target"/*
        # Inputs are kept by edges alone, and short: counts of how often each edge was passed, and inputs of any length,
        # would keep ten times as much.
        length=1024
        [ "$target" != gguf ] || length=2784 # a model of one layer
        "$programs/$target" -merge=1 -set_cover_merge=1 -use_counters=0 "${limits[@]}" -max_len="$length" \
            "$work/kept/$target" "fuzz/corpus/$target" "$work/corpus/$target" 2>"$work/$target.log"
        rm -f "fuzz/corpus/$target"/*
        cp "$work/kept/$target"/* "fuzz/corpus/$target/"
        printf '==> %s: %d inputs, %s\n' "$target" "$(find "fuzz/corpus/$target" -type f | wc -l)" \
            "$(du -sh --apparent-size "fuzz/corpus/$target" | cut -f1)"
    done
    exit
fi

seconds=$((total / ${#targets[@]}))
failed=0
mkdir -p "$work/failed"
for target in "${targets[@]}"; do
    mkdir -p "$work/corpus/$target"
    log=$work/$target.log
    # New inputs go to the first folder; the second is read.
    status=0
    "$programs/$target" "$work/corpus/$target" "fuzz/corpus/$target" "${limits[@]}" -max_total_time="$seconds" \
        -dict="fuzz/$target.dict" -artifact_prefix="$work/failed/$target-" -print_final_stats=1 2>"$log" || status=$?
    if [ "$status" != 0 ]; then
        failed=1
        cat "$log"
    fi
    value() { sed -n "s/^stat::$1: *//p" "$log"; }
    edges=$("$programs/$target" -runs=0 "${limits[@]}" -verbosity=1 "$work/corpus/$target" "fuzz/corpus/$target" 2>&1 |
        sed -n 's/.*INITED cov: \([0-9]*\).*/\1/p')
    printf '==> %s: %d s, %s executions, %s/s, %s edges, %s MB at most%s\n' "$target" "$seconds" \
        "$(value number_of_executed_units)" "$(value average_exec_per_sec)" "$edges" "$(value peak_rss_mb)" \
        "$([ "$status" = 0 ] || echo ', FAILED: the input is in target/fuzz/failed')"
done
exit "$failed"
