#!/usr/bin/env bash
# The CPU backend on aarch64, under qemu: the tests of its NEON kernels, golden logits, block formats, and the bits of
# golden logits against those of this machine's kernels: scripts/test/test_aarch64.sh BIN, where BIN is the bin folder
# of an environment with pip. Installs qemu-user and aarch64's libc from apt when root.
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=$(realpath "$1")
libc=/usr/aarch64-linux-gnu
if ! command -v qemu-aarch64 >/dev/null || [ ! -e "$libc/lib/libc.so.6" ]; then
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo 'aarch64 is not tested without qemu-aarch64 and its libc: apt install qemu-user libc6-arm64-cross' >&2
        exit 1
    fi
    echo '==> aarch64: installing qemu-user libc6-arm64-cross from apt'
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user libc6-arm64-cross >/dev/null
fi
"$bin/python" -m pip --disable-pip-version-check --quiet install --requirement requirements-wheels.txt
rustup --quiet target add aarch64-unknown-linux-gnu

echo '==> aarch64: compiling the tests'
# Optimised as a release is: below level 3 the loops over 16 lanes do not become NEON.
compiled() {
    env PATH="$bin:$PATH" ROCMFORGE_HIP_TARGETS=none CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_OPT_LEVEL=3 \
        CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=target/aarch64 \
        scripts/test/test_program.sh cargo-zigbuild test --target aarch64-unknown-linux-gnu.2.28 --package "$@" \
        --config profile.dev.package.rocmforge-simd.opt-level=3
}
cpu=$(compiled rocmforge-cpu --test cpu)
model=$(compiled rocmforge-model)
simd=$(compiled rocmforge-simd)
gguf=$(compiled rocmforge-gguf)

echo '==> aarch64: kernels, block formats and golden models under qemu'
qemu-aarch64 -L "$libc" "$simd" --quiet
qemu-aarch64 -L "$libc" "$gguf" --quiet quant::
for program in $cpu; do qemu-aarch64 -L "$libc" "$program" --quiet; done
qemu-aarch64 -L "$libc" "$model" --quiet tests:: --skip tests::gpu::

echo '==> aarch64: the bits of golden logits against this machine'"'"'s'
digests() {
    "$@" --exact tests::instruction_sets::logits_have_the_same_bits_on_every_instruction_set --nocapture |
        grep -o 'digest of .*'
}
digests qemu-aarch64 -L "$libc" "$model" >target/aarch64/digests.aarch64
digests cargo test --quiet --locked -p rocmforge-model --lib -- >target/aarch64/digests.host
diff target/aarch64/digests.host target/aarch64/digests.aarch64
printf '==> aarch64: %d golden models, the same bits as here\n' "$(wc -l <target/aarch64/digests.host)"
