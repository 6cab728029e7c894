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

# A page for each verb, which man(1) reads without complaint, and in it each
# option that help names.
pages=$work/p/share/man
verbs=$(sheaf --help | sed -n '/^Verbs:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(wc -w <<<"$verbs")" -ge 19 ]
options_are_told() { # PAGE COMMAND...
        local page=$1 option text
        shift
        text=$(sed 's/\\-/-/g' "$page")
        for option in $("$@" --help | grep -o '^ \+--[a-z-]\+' | tr -d ' '); do
                [[ $text == *"$option"* ]] ||
                        { echo "$page says nothing of $option"; exit 1; }
        done
}
for verb in $verbs; do
        options_are_told "$pages/man1/sheaf-$verb.1" sheaf "$verb"
done
options_are_told "$pages/man8/sheafd.8" sheafd
[ -s "$pages/man1/sheaf.1" ]
if command -v groff >/dev/null; then
        for page in "$pages"/man?/*; do
                said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
                [ -z "$said" ] || { echo "$page: $said"; exit 1; }
        done
else
        echo "SKIP: install: pages are not read: no groff"
fi

# Shells find their completions by themselves.
bash -n "$work/p/share/bash-completion/completions/sheaf"
[ -s "$work/p/share/zsh/site-functions/_sheaf" ]
[ -s "$work/p/share/fish/vendor_completions.d/sheaf.fish" ]
echo "installed: ok"
