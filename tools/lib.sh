# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What tools/quickstart, tools/check and .ci/run share. Sourced, with
# "set -euo pipefail" in force.

# Debian packages, the same names in 12 and 13. COMMAND:PACKAGE where the
# program may come from elsewhere.
# shellcheck disable=SC2034 # used by those who source this file
SHEAF_BUILD_PACKAGES=(
        gcc:gcc libc6-dev make:make cmake:cmake ninja:ninja-build
        pkg-config:pkg-config protoc-c:protobuf-c-compiler
        libprotobuf-c-dev libssl-dev libuv1-dev liburing-dev liblmdb-dev
        libfuse3-dev fusermount3:fuse3 libjansson-dev libinih-dev
)
# shellcheck disable=SC2034
SHEAF_CHECK_PACKAGES=(
        libcriterion-dev clang:clang libclang-rt-dev clang-format:clang-format
        llvm-symbolizer:llvm shellcheck:shellcheck setpriv:util-linux
        attr:attr python3-venv python3-dev
)

if [ -t 1 ]; then
        bold=$'\e[1m' plain=$'\e[0m'
else
        bold='' plain=''
fi

step() {
        printf '\n%s== %s%s\n' "$bold" "$*" "$plain"
}

die() {
        printf '%s: %s\n' "${0##*/}" "$*" >&2
        exit 1
}

# as_root COMMAND...: with sudo where it is needed.
as_root() {
        if [ "$(id -u)" -eq 0 ]; then
                "$@"
        elif command -v sudo >/dev/null; then
                # -n where nobody could type a password
                if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
        else
                die "needs root or sudo for: $*"
        fi
}

package_present() {
        local status
        status=$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) ||
                return 1
        [ "$status" = installed ]
}

# install_packages ENTRY...: installs what is missing, and nothing else.
install_packages() {
        local entry missing=()
        command -v apt-get >/dev/null ||
                die "needs apt-get (Debian 12 or 13); packages: ${*##*:}"
        for entry in "$@"; do
                case $entry in
                *:*) command -v "${entry%%:*}" >/dev/null ||
                        missing+=("${entry#*:}") ;;
                *) package_present "$entry" || missing+=("$entry") ;;
                esac
        done
        if [ ${#missing[@]} -eq 0 ]; then
                echo "all packages are here"
                return 0
        fi
        echo "installing: ${missing[*]}"
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update \
                >/dev/null || echo "apt-get update failed; trying anyway" >&2
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qy \
                -o Dpkg::Use-Pty=0 install --no-install-recommends \
                "${missing[@]}" </dev/null >/dev/null ||
                die "cannot install: ${missing[*]}"
}

# build PRESET TARGET...: configures and builds below build/PRESET; options
# of cmake come from the array cmake_options.
cmake_options=()
build() {
        local preset=$1
        shift
        cmake --preset "$preset" ${cmake_options[@]+"${cmake_options[@]}"} \
                >"build/$preset.configure.log" 2>&1 || {
                tail -n 20 "build/$preset.configure.log" >&2
                return 1
        }
        cmake --build "build/$preset" ${1+--target "$@"} \
                >"build/$preset.build.log" 2>&1 || {
                grep -E 'error|FAILED|undefined' "build/$preset.build.log" |
                        head -n 40 >&2
                return 1
        }
}
