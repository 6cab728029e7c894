#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench loader, around what it runs: what it says when something is
# missing, what it passes on, and that a signal ends what it started. Instead
# of the environment with all loaders there is a program that waits.
#
#   bench.sh SOURCE
set -euo pipefail
source=$1
tree=$(mktemp -d)
child=''
cleanup() {
        [ -z "$child" ] || kill "$child" 2>/dev/null || true
        rm -rf -- "$tree"
}
trap cleanup EXIT

fail() {
        printf 'FAIL: %s\n' "$*" >&2
        exit 1
}

bench=$tree/tools/bench
mkdir -p "$tree/tools" "$tree/client/python" "$tree/images"
cp "$source/tools/bench" "$source/tools/lib.sh" "$tree/tools/"
cp "$source/client/python/requirements-bench.txt" "$tree/client/python/"

help=$("$bench" loader --help)
[[ $help == *--quick* && $help == *Examples:* ]] || fail "no help: $help"

# Both things that are missing are named at once, with the commands.
if out=$("$bench" loader 2>&1); then
        fail "ran without a build"
fi
[[ $out == *"cmake --preset release -DSHEAF_PYTHON=ON"* &&
        $out == *"tools/quickstart"* ]] || fail "names no remedy: $out"

for program in daemon/sheafd tools/sheaf cachefs/sheaf-cachefs \
        client/python/sheaf/_sheaf.abi3.so; do
        if out=$("$bench" loader "$tree/images" 2>&1); then
                fail "ran without $program"
        fi
        [[ $out == *"no build/release/$program"* && \
                $out != *quickstart* ]] || fail "does not name $program: $out"
        mkdir -p "$(dirname "$tree/build/release/$program")"
        touch "$tree/build/release/$program"
done
for wrong in --fast --only "--only all"; do
        # shellcheck disable=SC2086 # two words
        if "$bench" loader $wrong 2>/dev/null; then
                fail "took $wrong"
        fi
done

# The program says what it got, waits, and says that it was told to end.
venv=$tree/build/bench-venv
mkdir -p "$venv/bin"
cp "$tree/client/python/requirements-bench.txt" "$venv/complete"
mkfifo "$tree/said"
cat >"$venv/bin/python" <<'END'
#!/bin/bash
trap 'kill $!; echo "ended by TERM"; exit 143' TERM
echo "$*"
sleep 600 &
echo "waiting"
wait
END
chmod +x "$venv/bin/python"

cd "$tree"
"$bench" loader --quick --only jobs --json images >"$tree/said" &
child=$!
exec 3<"$tree/said"
read -r got <&3
[[ $got == *"tools/benches/loader $tree/images "*"--quick --only jobs --json" ]] ||
        fail "passes on: $got"
read -r _ <&3
kill -TERM "$child"
# to the end of what it says: nothing holds the pipe any more
rest=$(timeout 60 cat <&3) || fail "something of it lives on"
[ "$rest" = "ended by TERM" ] || fail "after TERM: $rest"
rc=0
wait "$child" || rc=$?
[ $rc -eq 143 ] || fail "exit code $rc"
