# SPDX-License-Identifier: Apache-2.0
"""Which processes are one run.

All processes of a run must give the daemon the same job name, and no other
run may. One process alone takes a name that nobody else has. Several take the
launcher's: torchrun's run id, the SLURM job and step, or the rendezvous
address, to which the process group's store adds what tells this run from the
one before at the same address.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys

from .errors import JobError


def world(sure: bool = False) -> tuple[int, int]:
    """(rank, world size) of this process: of torch's process group, else of
    the launcher's environment, else (0, 1). ``sure``: JobError where the
    environment tells of several, but not which of them this is; all would
    read the same part."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
    size_text = os.environ.get("WORLD_SIZE", "1")
    rank_text = os.environ.get("RANK", "" if size_text != "1" else "0")
    try:
        size, rank = int(size_text), int(rank_text or 0)
    except ValueError:
        size, rank = 0, 0
    told = 0 <= rank < size
    if sure and "WORLD_SIZE" in os.environ and not (told and rank_text):
        raise JobError(
            f"WORLD_SIZE={size_text!r}, RANK={rank_text!r}: that is no rank of "
            "a run; begin the process group first, start by torchrun, give "
            "distributed=(rank, world), or unset both"
        )
    return (rank, size) if told else (0, 1)


def own_name() -> str:
    """A name that no other process gives."""
    host = socket.gethostname()[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(8)}"


def _store_nonce() -> str | None:
    """The same random word in all processes of torch's process group, or None
    without one."""
    if "torch" not in sys.modules:
        return None
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    store = dist.distributed_c10d._get_default_store()
    mine = secrets.token_hex(8)
    return store.compare_set("sheaf/job", "", mine).decode()


def shared_name(size: int) -> str:
    """The name of a run of ``size`` processes. JobError: nothing in the
    environment tells which run this is."""
    environ = os.environ
    run = environ.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        return f"torchelastic-{run}"[:128]
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if environ.get("SLURM_JOB_ID") and step is not None:
        return f"slurm-{environ['SLURM_JOB_ID']}.{step}"
    nonce = _store_nonce()
    address = environ.get("MASTER_ADDR")
    port = environ.get("MASTER_PORT")
    if nonce is None and run and os.getppid() > 1:
        # torchrun starts its ranks itself.
        nonce = f"agent-{os.getppid()}"
    if address and port:
        name = f"{address}:{port}"
        return f"{name}-{nonce}"[:128] if nonce else name[:128]
    if nonce:
        return f"group-{nonce}"
    raise JobError(
        f"{size} processes train together, but nothing says that they are one "
        "run: start them by torchrun or srun, set MASTER_ADDR and "
        "MASTER_PORT, or give each Dataset the same job=NAME (a new one for "
        "each run); else every process would read all samples"
    )
