"""Write a real, sharded checkpoint of a LoRA-like model in the layout of prime-rl's trainer (needs torch).

    python make_dcp.py FOLDER [RANKS] [SAVES]

``dcp_2_ranks`` beside this file was written by it with torch 2.13.0 (CPU, gloo) on 2 ranks. The state has prime-rl's
shape: {"app": {"model", "optimizers", "progress"}}; the base weight is frozen, AdamW trains the adapter only.
SAVES greater than 1 saves the same step again in place, as a run does that re-reaches it.
"""

from __future__ import annotations

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4, bias=False)
        self.base.requires_grad_(False)
        self.lora = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.lora(x)


def work(rank: int, ranks: int, folder: str, saves: int, port: int) -> None:
    torch.manual_seed(0)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = Adapted()
    if ranks > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    for _ in range(saves):
        weights, moments = get_state_dict(model, optimizer)
        state = {"app": {"model": weights, "optimizers": moments, "progress": {"step": 5}}}
        dcp.save(state, checkpoint_id=folder)
    dist.barrier()  # else gloo aborts the rank whose peer left first
    dist.destroy_process_group()


def main() -> None:
    folder, ranks, saves = sys.argv[1], int((sys.argv[2:] or ["2"])[0]), int((sys.argv[3:] or ["1"])[0])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (ranks, folder, saves, port), nprocs=ranks)


if __name__ == "__main__":
    main()
