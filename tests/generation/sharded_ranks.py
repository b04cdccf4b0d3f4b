"""One rank of a model sharded by torch's fully_shard (FSDP2) over Gloo: run by test_log_probs.py in processes of their own."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from rlinf_lab.generation import load_model, token_batch, token_log_probs


def rank(index: int, ranks: int, folder: str, parts: list) -> None:
    """Log-probabilities and gradients of this rank's completions; rank 0 writes what all together have."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(index), WORLD_SIZE=str(ranks))
    store = dist.FileStore(str(Path(folder) / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=index, world_size=ranks)
    lm = load_model(Path(folder) / "model")
    for layer in lm.module.model.layers:
        fully_shard(layer)
    fully_shard(lm.module)
    batch = token_batch(parts[index])
    log_prob_BT = token_log_probs(lm, batch)
    log_prob_BT.sum().backward()
    whole = {name: p.grad.full_tensor() for name, p in lm.module.named_parameters()}  # the mean over ranks
    rows: list = [None] * ranks
    dist.all_gather_object(rows, [log_prob_BT[b, : len(c)].detach() for b, c in enumerate(parts[index])])
    if index == 0:
        torch.save({"log_probs": [r for part in rows for r in part], "gradients": {n: g * ranks for n, g in whole.items()}}, Path(folder) / "out.pt")
    dist.destroy_process_group()
