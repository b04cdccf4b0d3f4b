"""Another process that opens the tensors it hears, writes into them and keeps them: on a GPU, or with host memory in its place."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from ends import QUEUE

from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.pickling import Packed

SCRIPT = """
import dataclasses, gc, pickle, sys, threading, torch
from rlinf_lab.runtime.transport.listener import Listener
sys.path.insert(0, sys.argv[1])
from lent_host_memory import GPU, instead_of_a_gpu
on_a_gpu = sys.argv[2] == "True"
if not on_a_gpu:
    instead_of_a_gpu()
kept, over = [], threading.Event()

def hear(message):
    kind, *rest = message
    if kind == "put":
        before = torch.cuda.memory_allocated()
        (item,) = rest[2].open()
        tensor, (half, text) = item["t"], item["rest"]
        grown = torch.cuda.memory_allocated() - before
        tensor += 1  # the lender sees it: the same memory
        if on_a_gpu:
            torch.cuda.synchronize()
        kept.append((rest[2], item, tensor, half))
        print("took", rest[5].transport, tensor.device, float(tensor[0]), str(half.dtype), float(half.sum()), text, grown < 1 << 20, flush=True)
        del item, tensor, half
    elif kind == "drop":
        kept.clear()
        del message, rest
        gc.collect()
        print("dropped", flush=True)

listener = Listener("taker", hear, lambda h: over.set(), lambda h, e: print("error", e, flush=True))
address = listener.address if on_a_gpu else dataclasses.replace(listener.address, gpus=(GPU,))
print(pickle.dumps(address).hex(), flush=True)
over.wait(600)
"""


class Taker:
    def __init__(self, on_a_gpu: bool) -> None:
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(on_a_gpu)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.link = Link(pickle.loads(bytes.fromhex(self.line())), "lender")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def put(self, tensor: Any, half: Any, text: str = "text") -> str:
        item = {"t": tensor, "rest": [half, text]}
        self.link.send(("put", QUEUE, 1, Packed.of_items([item], "items")[0], "lender", None))
        del item, tensor, half
        return self.line()

    def drop(self) -> None:
        """What it has kept."""
        self.link.send(("drop",))
        assert self.line() == "dropped"

    @property
    def lent(self) -> dict[int, Any]:
        self.link.reclaim()
        return self.link._lender._lent

    def die(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.link.peer_died()

    def close(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.wait(60)
