#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What is installed works by itself, in any place: install.sh BUILD_DIR
set -euo pipefail
build=$1
work=$(mktemp -d /tmp/sheaf-install-XXXXXX)
daemon=''
cleanup() {
        [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
        [ -z "$daemon" ] || wait "$daemon" || true
        rm -rf -- "$work"
}
trap cleanup EXIT

cmake --install "$build" --prefix "$work/p" >/dev/null
export PATH=$work/p/bin:$work/p/sbin:/usr/sbin:/usr/bin:/sbin:/bin
export SHEAF_SOCKET=$work/s SHEAF_CACHE_DIR=$work/c
mkdir "$work/origin"
echo bytes >"$work/origin/f"
"$work/p/sbin/sheafd" --foreground --memory 64MiB --disk 100MiB \
        2>"$work/log" &
daemon=$!
for _ in $(seq 200); do
        [ ! -S "$SHEAF_SOCKET" ] || break
        sleep 0.05
done
# Listing and fetching need the reader.
sheaf add data "$work/origin" >/dev/null || { cat "$work/log"; exit 1; }
sheaf warmup data >/dev/null
"$work/p/bin/sheaf-cachefs" --help >/dev/null
[ -f "$work/p/include/sheaf.h" ]
echo "installed: ok"
