#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a wheel is made of, built where nothing is installed that only the
# daemon, mounts and tests need (libuv, libfuse, LMDB, ...), and what the package
# does in an interpreter that has nothing else, torch neither.
#
#   wheel.sh SOURCE PROGRAMS
#
# PROGRAMS: directories of sheafd, sheaf and the reader, as PATH has them.
set -euo pipefail
source=$1 programs=$2
if ! python3 -c 'import sysconfig, os, sys
sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
        echo "SKIP: wheel: no headers of python3 (python3-dev)"
        exit 0
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT

failed() {
        tail -n 30 "$work/log"
        exit 1
}

# Of all packages that pkg-config knows, the one that is needed.
mkdir "$work/pkgconfig"
pc=$(pkg-config --variable=pcfiledir libprotobuf-c)
cp "$pc/libprotobuf-c.pc" "$work/pkgconfig/"
export PKG_CONFIG_LIBDIR=$work/pkgconfig PKG_CONFIG_PATH=

# The definitions are those of the wheel.
python3 - "$source/client/python/pyproject.toml" >"$work/options" <<'END'
import sys
import tomllib

with open(sys.argv[1], "rb") as file:
    build = tomllib.load(file)["tool"]["scikit-build"]
for name, value in build["cmake"]["define"].items():
    print(f"-D{name}={value}")
END
mapfile -t options <"$work/options"
cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug \
        "${options[@]}" >"$work/log" 2>&1 || failed
cmake --build "$work/build" --target sheaf_python >"$work/log" 2>&1 ||
        failed
cmake --install "$work/build" --component python --prefix "$work/site" \
        >/dev/null
PATH=$programs:$PATH python3 -I -B -c 'import sys, runpy
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[2], run_name="__main__")' \
        "$work/site" "$source/tests/python/bare.py"
for needless in daemon cachefs tools tests; do
        if [ -e "$work/build/$needless" ]; then
                echo "FAIL: $needless is configured for a wheel"
                exit 1
        fi
done
