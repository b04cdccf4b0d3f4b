"""A device host: one process for the worker ranks that share devices. An executor sets it up and ends it; messages go
over links.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import cloudpickle

from rlinf_lab.errors import ExecutorError, WorkflowError, said
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.liveness.unsent import LAST
from rlinf_lab.runtime.machine.devices import cores, torch_device
from rlinf_lab.runtime.machine.pinning import cores_of, has_own_cores
from rlinf_lab.runtime.session.news import HostNews
from rlinf_lab.runtime.session.session import Ended
from rlinf_lab.runtime.transport.links import Address, Link, Ways
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.sampler import UtilisationSampler
from rlinf_lab.workflow.graph import DRIVER

PUSH_SECONDS = 0.1
BEAT = 5  # of that, while there is nothing to tell: a session that waits for its next step should cost next to nothing
# a thread that has read messages gets the interpreter from a worker that computes: Python's own 5 ms are long on the
# way
SWITCH_SECONDS = 0.0005


class DeviceHost:
    """Lives in a process of its own. The driver calls its methods only to set it up and to end it."""

    def __init__(self, name: str, payload: bytes) -> None:
        # One compute thread a process: two on a busy core make a step of 30 ms last a second.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.setswitchinterval(SWITCH_SECONDS)
        paths, packed = pickle.loads(payload)
        # A module beside the notebook is importable there; it must be here too.
        sys.path += [p for p in paths if p not in sys.path]
        layout, place, one_node, check_items = pickle.loads(packed)
        self.name, self.layout, self.place = name, layout, place
        self.recorder = Recorder(name, MonotonicClock())
        self._gpus = self._see_gpus()
        self._sampler = self._new_sampler()  # before it leaves the other cores
        own_cores = has_own_cores(layout, place, name, cores())
        self._pin()
        self.host = Host(name, layout, place, MonotonicClock(), self.recorder, self._send, self._sent, check_items)
        self.links: dict[str, Link] = {}
        ip = self.host.state.address = "127.0.0.1" if one_node else self._ip()
        self._listener = Listener(
            name,
            self._receive,
            self._broken,
            self.host.unreadable,
            ip,
            self.host.heard_all,
            self.host.open_lookout(own_cores),
        )
        self._stop = threading.Event()
        self._pusher: threading.Thread | None = None

    # --- what an executor's own kind of host may know better ------------------------------------------------
    def _ip(self) -> str:
        """Where other nodes reach this one."""
        return "127.0.0.1"

    def _ray_node(self) -> str:
        """Ray's name of this node."""
        return ""

    def _see_gpus(self) -> dict[str, str]:
        """Find what torch calls the plan's GPUs here. They are the only ones that this process sees."""
        return {name: f"cuda:{i}" for i, name in enumerate(gpus_of(self._device_names()))}

    # --- devices --------------------------------------------------------------------------------------------
    def _device_names(self) -> set[str]:
        return {
            d
            for (w, r), h in self.place.items()
            if h == self.name and w != DRIVER
            for d in self.layout.device_names(w, r)
        }

    def _new_sampler(self) -> UtilisationSampler | None:
        """Every host samples its own GPUs, under the plan's names. On a node other than the driver's, the first one the
        processors too.
        """
        node = Device.node_of(sorted(self._device_names()))
        first = min(
            h
            for (w, r), h in self.place.items()
            if w != DRIVER and Device.node_of(self.layout.device_names(w, r)) == node
        )
        mine = cores() if node and first == self.name else ()
        gpus = [Device.parse(name).local for name in self._gpus]
        prefix = f"node{node}/" if node else ""
        return (
            UtilisationSampler(self.recorder, prefix=prefix, cores=mine, gpus=gpus, tell=self._gpu_curves_missing)
            if mine or gpus
            else None
        )

    def _gpu_curves_missing(self, problem: str) -> None:
        self.host.curves_missing(self._device_names(), problem)

    def _torch_device(self, names: Sequence[str]) -> str:
        """What torch calls the plan's GPU here. It counts only those that this process sees: the plan's ``cuda:5`` may
        be ``cuda:0``.
        """
        device = torch_device(names)
        return self._gpus.get(device, device)

    def _pin(self) -> None:
        mine = cores_of(self._device_names(), cores())
        if mine and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, mine)

    # --- what the driver asks, one after another; `stop` at any time ----------------------------------------
    def address(self) -> tuple[Address, int]:
        """Where it listens, and its process id."""
        return dataclasses.replace(self._listener.address, ray_node=self._ray_node()), os.getpid()

    def clock(self) -> int:
        """What time it is here, ns: see `node_clocks`."""
        return time.monotonic_ns()

    def connect(self, addresses: list[Address], ways: Ways) -> None:
        """Open a link to every other host. ``ways``: the driver's."""
        ways = ways._replace(ray_node=self._ray_node())
        for address in addresses:
            if address.host != self.name:
                # anew: `stop` may be going through them
                self.links = {**self.links, address.host: Link(address, self.name, ways)}

    def start(self, declarations: bytes) -> BaseException | None:
        """Build the workers. Returns what went wrong instead of raising: what carries the answer might wrap it."""
        try:
            workers = pickle.loads(declarations)
        except ModuleNotFoundError as error:
            return WorkflowError(
                f"A worker needs the module {error.name!r}, which host {self.name!r} cannot import. Next: install it "
                "on every node, or "
                f"define the class in a notebook cell (it then travels by value)."
            )
        except BaseException as error:  # a module may do anything when it is imported, and leave, too
            return self._unmade(error)
        try:
            self.host.start(workers, self._torch_device)
        except BaseException as error:
            return error
        if self._sampler is not None:
            self._sampler.start()
        pusher = threading.Thread(target=self._push, name="push", daemon=True)
        pusher.start()  # before `stop` can find it, which joins what it finds: another host may have failed meanwhile
        self._pusher = pusher
        return None

    def _unmade(self, error: BaseException) -> ExecutorError:
        """The workers' classes and arguments cannot be had here."""
        members = ", ".join(f"{w}[{r}]" for (w, r), h in self.place.items() if h == self.name)
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            advice = "a higher limit (ulimit -n), or a plan with fewer hosts"
            return ExecutorError(f"Host {self.name!r} ({members}) may open no more files: {error}. Next: {advice}.")
        return ExecutorError(
            f"Host {self.name!r} ({members}) could not read its workers: {type(error).__name__}: {said(error)}. Next: "
            "what a module does when it is run as a "
            "program (reading arguments, sys.exit) belongs under `if __name__ == '__main__':`, for every host imports "
            "the modules of its workers' classes "
            f"and unpickles the arguments of their constructors.\n" + "".join(traceback.format_exception(error))
        )

    def stop(self) -> Ended:
        """End the workers; what is left of the recording is sent."""
        ended = Ended(self.host.stop(), self.host.state.errors)
        self._stop.set()
        if self._sampler is not None:
            self._sampler.stop()
        if self._pusher is not None:
            self._pusher.join()  # what it has drained goes before what is drained below: batches are numbered
        self._tell()
        for link in self.links.values():
            link.close()
        self._listener.close()
        return ended

    # --- messages -------------------------------------------------------------------------------------------
    def _push(self) -> None:
        """Send what was recorded, ten times a second; nobody has to ask. Twice a second where nothing has happened here
        and that was said.
        """
        silent, quiet = 0, False
        while not self._stop.wait(PUSH_SECONDS):
            for link in self.links.values():
                link.reclaim()
            was, quiet, told = quiet, self.host.is_quiet(), self.host.told
            silent = 0 if quiet != was or len(self.recorder) or told.metrics or told.frames else silent + 1
            if silent < 2 or silent % BEAT == 0:
                self._tell()

    def _tell(self) -> bool:
        """Push; whether the driver is still there. A batch that cannot be sent would be missing from a numbered
        sequence, so that is an error of the run.
        """
        if "driver" not in self.links:  # stopped before the hosts were connected
            return False
        try:
            self.push()
        except OSError:  # its end of the link says so to everyone
            return False
        except Exception as error:
            self.host.post.report(
                ExecutorError(
                    f"Host {self.name!r} cannot send its recording, which ends there: "
                    f"{type(error).__name__}: {said(error)}"
                )
            )
            self.host.flush()
            return False
        return True

    def push(self) -> None:
        self.host.write_down()
        host, told = self.host, self.host.told
        spans, metrics = self.recorder.drain(), told.take_metrics()
        # one by one: workers go on writing
        frames = {source: told.frames.pop(source) for source in list(told.frames)}
        waits, queues, ways = host.waits(), host.statistics(), host.transports()
        news = HostNews(self.name, spans, metrics, frames, waits, queues, host.is_quiet(), ways)
        self.links["driver"].send(("news", news))

    def _receive(self, message: tuple) -> None:
        if message[0] == "clock?":
            with contextlib.suppress(ConnectionError):
                self.links["driver"].send(("clock", self.name, message[1], time.monotonic_ns()))
        else:
            self.host.receive(message)

    def _send(self, host: str, message: tuple) -> None:
        # while links are being opened: the driver, who asks all hosts to do that, finds out itself
        if host not in self.links and message[0] == "cut_off":
            return
        try:
            self.links[host].gather(message)
        except Exception:
            if message[0] == LAST:  # the driver cannot be told anything any more but that this process is gone
                traceback.print_exc()
                os._exit(1)
            raise

    def _sent(self) -> None:
        for link in self.links.values():
            if link.has_gathered():
                with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
                    link.flush()

    def _broken(self, peer: str) -> None:
        if peer == "driver":  # nobody is left to work for
            os._exit(1)
        try:
            if peer in self.links:
                self.links[peer].peer_died()
        finally:  # whatever that raises: the others have to hear of the death
            self.host.lost(peer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} on {', '.join(sorted(self._device_names())) or 'no device'})"


def gpus_of(names: set[str]) -> list[str]:
    """The GPUs among devices, in order, without their node, each once."""
    return list(dict.fromkeys(d.local for d in sorted(map(Device.parse, names)) if d.kind == "cuda"))


def pack(layout: Layout, place: dict[tuple[str, int], str], one_node: bool, check_items: bool = False) -> bytes:
    """What a `DeviceHost` is made from. The import path comes first, for what follows may need it."""
    return pickle.dumps((import_path(), cloudpickle.dumps((layout, place, one_node, check_items))))


def import_path() -> list[str]:
    return [p or str(Path.cwd()) for p in sys.path]
