#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The sheaf program without a daemon: script.sh PATH_TO_SHEAF
set -euo pipefail

sheaf=$1
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
export SHEAF_SOCKET=$work/none.sock
failures=0

# expect CODE TEXT ARGUMENTS...: exit code, and text in the output
expect() {
        local code=$1 text=$2 rc=0
        shift 2
        "$sheaf" "$@" >"$work/out" 2>&1 </dev/null || rc=$?
        if [ $rc -ne "$code" ] || ! grep -qF -- "$text" "$work/out"; then
                echo "sheaf $*: exit code $rc, not $code, or no '$text' in:"
                cat "$work/out"
                failures=$((failures + 1))
        fi
}

expect 0 'Exit codes' --help
expect 0 'sheaf ' version
expect 0 '"version"' version --json
expect 2 "did you mean 'mount'" mout
expect 2 'did you mean --follow' add n / --folow
expect 2 'needs NAME DIR' add n
expect 2 'group:' share n everybody
expect 2 'exclude each other' warmup n --check --evict
expect 2 'not a size' warmup n --rate fast
expect 2 'one of --dir' grant n
expect 2 'ls, show or rm' job n
expect 2 'a dataset and a job' job rm n
expect 2 'bash, zsh or fish' completion csh
expect 3 "$work/none.sock" ls
expect 3 '"exit": 3' ls --json
expect 4 'No such file' add n "$work/absent"
expect 4 'not a mount of Sheaf' umount "$work"

mapfile -t verbs < <("$sheaf" --help |
        sed -n '/^Verbs:/,/^$/s/^  \([a-z]*\).*/\1/p')
[ ${#verbs[@]} -ge 10 ] || {
        echo "the help has ${#verbs[@]} verbs"
        failures=$((failures + 1))
}
for verb in "${verbs[@]}"; do
        expect 0 'Examples' "$verb" --help
        expect 2 'unknown option --bogus' "$verb" --bogus
done

# has PATTERN SHELL WHAT: a line of the shell's script matches
has() {
        grep -qE -- "$1" "$work/$2" || {
                echo "$2 completion lacks $3"
                failures=$((failures + 1))
        }
}

# options_of VERB: as its help shows them, without dashes
options_of() {
        "$sheaf" "$1" --help |
                sed -n '/^Options:/,/^$/s/^  -\{1,2\}\([a-z][a-z-]*\).*/\1/p'
}

# Completion scripts parse, and name every verb and each of its options.
for shell in bash zsh fish; do
        "$sheaf" completion $shell >"$work/$shell"
        if command -v $shell >/dev/null; then
                $shell -n "$work/$shell" || failures=$((failures + 1))
        else
                echo "SKIP: completion-$shell: $shell is not installed"
        fi
done
for verb in "${verbs[@]}"; do
        mapfile -t options < <(options_of "$verb")
        [ ${#options[@]} -ge 4 ] || {
                echo "the help of $verb has ${#options[@]} options"
                failures=$((failures + 1))
        }
        has "^ +''\) words='([^']* )?${verb}[ ']" bash "$verb"
        has "verbs=\(.*'$verb:" zsh "$verb"
        has "use_subcommand -f -a $verb " fish "$verb"
        for option in "${options[@]}"; do
                has "^ +$verb\) words='[^']* --?${option}[ ']" bash \
                        "$verb --$option"
                has "^ +$verb\) _arguments.* '--?$option=?\[" zsh \
                        "$verb --$option"
                has "from $verb' -[ls] $option " fish "$verb --$option"
        done
done
complete_with_bash() {
        bash -c 'source "$1"; shift; COMP_WORDS=("$@")
                COMP_CWORD=$(($# - 1)); compopt() { :; }; _sheaf
                echo "${COMPREPLY[*]}"' - "$work/bash" "$@"
}
[ "$(complete_with_bash sheaf war)" = warmup ] || {
        echo "bash does not complete verbs"
        failures=$((failures + 1))
}
[ "$(complete_with_bash sheaf add --fol)" = --follow ] || {
        echo "bash does not complete options"
        failures=$((failures + 1))
}

# doctor works without a daemon; its JSON is one array.
rc=0
"$sheaf" doctor --json >"$work/doctor.json" || rc=$?
[ $rc -le 1 ] || {
        echo "doctor: exit code $rc"
        failures=$((failures + 1))
}
for check in kernel io_uring 'shared memory' 'fuse device' libfuse \
        'user name' 'mount table' 'cache directory' daemon; do
        grep -qF "\"check\": \"$check\"" "$work/doctor.json" || {
                echo "doctor has no '$check'"
                failures=$((failures + 1))
        }
done
if command -v python3 >/dev/null; then
        python3 -c 'import json, sys; json.load(open(sys.argv[1]))' \
                "$work/doctor.json"
else
        echo "SKIP: doctor-json: python3 is not installed"
fi

# A full disk is no success.
if [ -w /dev/full ] && "$sheaf" --help >/dev/full 2>/dev/null; then
        echo "a failed write is reported as success"
        failures=$((failures + 1))
fi

# A path over 107 bytes reaches its own socket or none.
long=$work/$(printf 'x%.0s' $(seq 150)).sock
expect 3 "$long" ls --socket "$long"

[ $failures -eq 0 ]
