#!/usr/bin/env bash
# AMD's own software as a test, without an AMD GPU: headers, libraries and hipRTC of ROCm 7 and ROCm 6, from Debian's
# packages, against tests/rocm: scripts/test/test_rocm.sh PYTHON, where PYTHON has the engine and pytest. Needs apt
# and a C++ compiler, no root: the packages are unpacked into target/rocm, not installed. Programs run there with
# Debian's C library, since the system's may be older. Packages are fetched once; remove target/rocm to fetch newer
# ones.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=$1
folder=$PWD/target/rocm
libraries=usr/lib/x86_64-linux-gnu
keys=/usr/share/keyrings/debian-archive-keyring.gpg
# ROCm's major version, Debian's suite, and packages; what they depend on comes with them.
releases=(
    '7 experimental libamdhip64-7 libhiprtc7 libhipblaslt1 libamdhip64-dev libhipblaslt-dev libhipblas-common-dev'
    '6 sid libamdhip64-6 libhiprtc6 libamdhip64-dev'
)

skip() {
    echo "SKIPPED: AMD's software is not tested: $1"
    # CI fails if anything is missing.
    [ "${CI:-}" != true ] || exit 1
    exit 0
}

apt() {
    apt-get -qq --config-file "$folder/apt/apt.conf" "$@" >>"$folder/apt/log" 2>&1 ||
        skip "apt-get $1: $(grep -m1 '^E:' "$folder/apt/log" || tail -1 "$folder/apt/log")"
}

# A dependency tree of its own: nothing that the system has installed counts, and nothing of the system changes.
fetch() {
    local release suite packages deb
    rm -rf "$folder"
    mkdir -p "$folder"/apt/{lists/partial,cache}
    touch "$folder/apt/status"
    # sid's list may be older than its own date allows.
    for suite in sid experimental; do
        echo "deb [signed-by=$keys check-valid-until=no] http://deb.debian.org/debian $suite main"
    done >"$folder/apt/sources.list"
    cat >"$folder/apt/apt.conf" <<END
Dir::State "$folder/apt";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
pkgCacheGen::ForceEssential "none";
END
    apt update
    for line in "${releases[@]}"; do
        read -r release suite packages <<<"$line"
        mkdir -p "$folder/apt/$release/partial" "$folder/$release"
        # shellcheck disable=SC2086 # several words
        apt install --yes --download-only --target-release "$suite" \
            --option "Dir::Cache::archives=$folder/apt/$release" $packages
        for deb in "$folder/apt/$release"/*.deb; do
            # Code objects of hipBLASLt take 1 GB, and nothing here runs them.
            dpkg --fsys-tarfile "$deb" | tar -x -C "$folder/$release" --exclude "./$libraries/hipblaslt/*"
        done
        (cd "$folder/apt/$release" && du -cm -- *.deb | tail -1 && ls -- libamdhip64-[0-9]*.deb) | paste -s - |
            sed "s/\([0-9]*\)\ttotal\t\(.*\)_amd64.deb/==> ROCm: \2 and what it needs, \1 MB/"
    done
    rm -rf "$folder/apt"
    printf '%s\n' "${releases[@]}" >"$folder/complete"
}

command -v apt-get >/dev/null && command -v dpkg >/dev/null || skip 'its packages come from Debian by apt-get and dpkg'
[ "$(dpkg --print-architecture)" = amd64 ] || skip 'it is there for x86-64 alone'
[ -e "$keys" ] || skip "there is no $keys: install debian-archive-keyring"
command -v c++ >/dev/null || skip 'no c++ here reads its headers: install a C++ compiler'
if [ "$(cat "$folder/complete" 2>/dev/null)" != "$(printf '%s\n' "${releases[@]}")" ]; then
    echo "==> ROCm: fetching Debian's packages of it into target/rocm (400 MB)"
    fetch
fi
for release in 7 6; do
    place=$folder/$release/$libraries
    "$place/ld-linux-x86-64.so.2" --library-path "$place" "$python" -c 'import ctypes' ||
        skip "$python does not run with the C library in target/rocm/$release"
done
echo '==> ROCm: structures, numbers and functions; kernels through hipRTC; machines without a GPU'
"$python" -m pytest -q -n auto -p no:cacheprovider tests/rocm/check_*.py
