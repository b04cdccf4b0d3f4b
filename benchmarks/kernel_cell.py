"""Runs code as a user's cell: in a Jupyter kernel of its own, which packs and sends what widgets say; no browser listens."""

from __future__ import annotations

import os
import sys


def printed(code: str, timeout: float = 600) -> str:
    """What the cell prints. Raises `RuntimeError` with its traceback where it fails."""
    from jupyter_client.manager import KernelManager

    manager = KernelManager()
    manager.kernel_spec.argv[0] = sys.executable  # this environment's kernel, whichever is registered
    manager.start_kernel(env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    client = manager.client()
    said: list[str] = []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=120)
        reply = client.execute_interactive(
            code, timeout=timeout,
            output_hook=lambda message: said.append(message["content"].get("text", "") if message["msg_type"] == "stream" else ""),
        )  # fmt: skip
        if reply["content"]["status"] != "ok":
            raise RuntimeError("\n".join(reply["content"].get("traceback", [])))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(said)
