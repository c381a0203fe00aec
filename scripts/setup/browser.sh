#!/usr/bin/env bash
# Finds Chromium, with which the page of the server is tested. Installs it from apt when root; otherwise says that it is
# missing. Exits 0 when it is there.
set -euo pipefail

if command -v chromium >/dev/null; then
    exit 0
fi
echo "the tests of the server's page need Chromium"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing chromium from apt (110 MB)"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    exit 0
fi
echo "SKIPPED: the server's page is not tested; install chromium" >&2
# CI fails if anything is missing.
[ "${CI:-}" != true ]
