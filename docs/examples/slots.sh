#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Reads a share of an epoch through the mount: of every OF samples one. Prints
# each sample's path and size.
#
#   for i in 0 1 2 3; do ./slots.sh MOUNT JOB EPOCH $i 4 & done; wait
set -eu

mount=$1 job=$2 epoch=$3 share=${4:-0} of=${5:-1}

# From inside, the epoch keeps its version if the mount is renewed.
cd "$mount/.sheaf/jobs/$job/$epoch"
for slot in *; do
        ((10#$slot % of == share)) || continue
        path=$(readlink "$slot") # binds the slot
        printf '%s %d\n' "${path#../../../../}" "$(wc -c <"$slot")"
done
