"""A decoding step as a CUDA graph for each (rows, length) bucket.

One launch instead of some hundred. On a CPU it is the step itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_lab.generation.decoder import Decoder


class Graphs:
    """`Decoder.decode`, recorded when a bucket is met for the first time. Weights and cache must stay where they are: see `forget`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        on_gpu = decoder.device.type == "cuda"
        self._pool = torch.cuda.graph_pool_handle() if on_gpu else None  # one for all: logits are read before the next graph runs
        self._inputs = torch.zeros(2, decoder.slots, dtype=torch.int64, device=decoder.device) if on_gpu else None

    def decode(self, token_R: Tensor, place_R: Tensor, length: int) -> Tensor:
        """Logits (R, V) of one step; token and place come from the host."""
        if self._inputs is None:
            return self._decoder.decode(token_R, place_R, length)
        used = len(token_R)
        rows = min(1 << (used - 1).bit_length(), self._decoder.slots)
        self._inputs.zero_()  # rows that are not used write to place 0 of free slots, which a later beginning overwrites
        self._inputs[:, :used] = torch.stack([token_R, place_R]).to(self._inputs.device)
        if (rows, length) not in self._graphs:
            self._graphs[rows, length] = self._record(self._inputs[:, :rows], length)
        graph, logits = self._graphs[rows, length]
        graph.replay()
        return logits[:used]

    def forget(self) -> None:
        """Drop what is recorded: weights or cache are about to move."""
        self._graphs.clear()

    def _record(self, inputs: Tensor, length: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # libraries choose their kernels, which cannot be recorded
            self._decoder.decode(inputs[0], inputs[1], length)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits = self._decoder.decode(inputs[0], inputs[1], length)
        return graph, logits
