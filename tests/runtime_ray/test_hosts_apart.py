"""Three hosts with a network between them: namespaces of this machine with their own addresses, shared memory and temporary files, and no default route.

Unlike the nodes of Ray's emulated cluster they share no loopback, no socket of names and no /dev/shm, and their cable can be pulled.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOLS = ("ip", "unshare", "nsenter", "mount")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason=f"needs root and {', '.join(TOOLS)}"),
]
NET = "10.77.0."
HEAD = f"{NET}10:6399"
ROOT = Path(__file__).parents[2]
INSIDE = """
set -e
mount -t tmpfs -o size=2g tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
hostname "$1"
shift
exec "$@"
"""

SPREAD = """
import socket, sys
import numpy as np
import rlinf_lab as lab

class Make(lab.Worker):
    def make(self, n: int, out: lab.Outbox) -> str:
        for i in range(n):
            out.put({"i": i, "array": np.full(1 << 20, i, np.float32)})
        return socket.gethostname()

class Double(lab.Worker):
    def double(self, inbox: lab.Inbox, out: lab.Outbox) -> str:
        for batch in inbox:
            for item in batch:
                out.put((item["i"], 2 * float(item["array"].mean())))
        return socket.gethostname()

class Sink(lab.Worker):
    def take(self, inbox: lab.Inbox) -> tuple:
        return [x for batch in inbox for x in batch], socket.gethostname()

flow = lab.Workflow("three_hosts")
a, b = flow.channel("a", capacity=4), flow.channel("b", capacity=4)
make, double, sink = flow.worker(Make, name="make"), flow.worker(Double, name="double"), flow.worker(Sink, name="sink")

@flow.iteration
def iteration():
    made, doubled = make.make(12, a), double.double(a, b)
    return made, doubled, sink.take(b)

plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "node1/cpu:0", "node2/cpu:0"], {"make": [0], "double": [1], "sink": [2]})
for way in ("stream", "gloo"):
    run = lab.run(flow, plan, 2, executor="ray", address=sys.argv[1], dashboard=False, between_nodes=way)
    for made, doubled, (taken, at) in run.wait(100):
        assert taken == [(i, 2.0 * i) for i in range(12)], taken
        assert (made, doubled, at) == ("host0", "host1", "host2"), (made, doubled, at)
    assert run.timeline.bubble_sum_error_ns() == 0
    rows = run.transports()
    print(way, sorted(set(rows[rows["channel"] == "a"]["transport"])), sorted(set(rows[rows["channel"] == "b"]["transport"])), flush=True)
"""

LEARN = """
import sys
from dataclasses import replace
import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build

for parallel in ("ddp", "fsdp"):
    flow = build(PPOConfig("numpy/ReachArm-v0", num_envs=6, n_steps=100, iterations=2, batch_size=200, parallel=parallel))
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0", "node1/cpu:0", "node2/cpu:0"], {"learner": 3, "simulator": 3, "policy": 3})
    results = lab.run(flow, plan, 2, executor="ray", address=sys.argv[1], dashboard=False).wait(100)
    print(parallel, [result["env_steps"] for result in results], results[-1]["value_loss"] > 0, flush=True)
"""

CUT = """
import sys, time
import rlinf_lab as lab

class Make(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        while not self.cancelled:
            out.put(0)
            time.sleep(0.05)

class Sink(lab.Worker):
    def take(self, inbox: lab.Inbox) -> int:
        return sum(len(batch) for batch in inbox)

flow = lab.Workflow("cut")
items = flow.channel("items", capacity=4)
make, sink = flow.worker(Make, name="make"), flow.worker(Sink, name="sink")

@flow.iteration
def iteration():
    make.make(items)
    return sink.take(items)

plan = lab.ExecutionPlan.spatial(flow, ["node1/cpu:0", "node2/cpu:0"], {"make": [0], "sink": [1]})
run = lab.run(flow, plan, 1, executor="ray", address=sys.argv[1], dashboard=False)
while run.state == "starting" or len(run.timeline) < 20:
    time.sleep(0.1)
print("running", flush=True)
began = time.monotonic()
try:
    run.wait(120)
except Exception as error:
    print(type(error).__name__, error)
    print("seconds", time.monotonic() - began, flush=True)
run.stop()
"""


class Hosts:
    """Namespaces ``host0`` (with the bridge that joins them) to ``host2``."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._prefix = logs, f"rl{os.getpid() % 100_000}x"
        self._started: list[subprocess.Popen] = []

    def connect(self) -> None:
        for i in range(3):
            _call("ip", "netns", "add", self.name(i))
            self.inside(i, "ip", "link", "set", "lo", "up")
        self.inside(0, "ip", "link", "add", "br0", "type", "bridge")
        self.inside(0, "ip", "address", "add", f"{NET}10/24", "dev", "br0")
        self.inside(0, "ip", "link", "set", "br0", "up")
        for i in (1, 2):
            self.inside(0, "ip", "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", self.name(i))
            self.inside(0, "ip", "link", "set", f"port{i}", "master", "br0", "up")
            self.inside(i, "ip", "address", "add", f"{NET}1{i}/24", "dev", "eth0")
            self.inside(i, "ip", "link", "set", "eth0", "up")

    def name(self, i: int) -> str:
        return f"{self._prefix}{i}"

    def inside(self, i: int, *command: str) -> None:
        _call("ip", "netns", "exec", self.name(i), *command)

    def start_ray(self) -> None:
        common = [sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=2", "--object-store-memory=300000000", "--block"]
        self._spawn(0, *common, "--head", f"--node-ip-address={NET}10", f"--port={HEAD.split(':')[1]}", "--include-dashboard=false")
        self._wait_for_nodes(1)
        for i in (1, 2):
            self._spawn(i, *common, f"--address={HEAD}", f"--node-ip-address={NET}1{i}")
            self._wait_for_nodes(i + 1)  # one after another: they are numbered as they come

    def _spawn(self, i: int, *command: str) -> None:
        with open(self._logs / f"host{i}.log", "w") as log:
            whole = ["ip", "netns", "exec", self.name(i), "unshare", "-m", "-u", "bash", "-c", INSIDE, "inside", f"host{i}", *command]
            self._started.append(subprocess.Popen(whole, stdout=log, stderr=log, env=_environment(), cwd=ROOT, start_new_session=True))

    def _wait_for_nodes(self, count: int) -> None:
        look = f"import ray; ray.init({HEAD!r}, logging_level='ERROR'); print('nodes', sum(n['Alive'] for n in ray.nodes()))"
        until = time.monotonic() + 90
        while time.monotonic() < until:
            done = self.run("-c", look, check=False)
            if f"nodes {count}" in done.stdout:
                return
            time.sleep(1)
        raise AssertionError("\n".join([done.stderr[-2000:], *(p.read_text()[-2000:] for p in self._logs.glob("*.log"))]))

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        """Python on host0, where the head is."""
        done = subprocess.run(self._driver(*arguments), capture_output=True, text=True, timeout=280, env=_environment(), cwd=ROOT)
        assert not check or done.returncode == 0, done.stdout + done.stderr[-3000:]
        return done

    def begin(self, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(self._driver(*arguments), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment(), cwd=ROOT)

    def _driver(self, *arguments: str) -> list[str]:
        return ["nsenter", "-t", str(self._started[0].pid), "-m", "-n", "-u", sys.executable, *arguments]

    def processes(self, i: int) -> list[str]:
        """Command lines."""
        done = subprocess.run(["ip", "netns", "pids", self.name(i)], capture_output=True, text=True)
        found = []
        for pid in done.stdout.split():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
        return found

    def plug(self, i: int, state: str) -> None:
        self.inside(0, "ip", "link", "set", f"port{i}", state)

    def end(self) -> None:
        for i in range(3):
            for pid in subprocess.run(["ip", "netns", "pids", self.name(i)], capture_output=True, text=True).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        for process in self._started:
            process.wait(20)
        for i in range(3):
            subprocess.run(["ip", "netns", "delete", self.name(i)], check=False)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("logs"))
    try:
        try:
            made.connect()
        except subprocess.CalledProcessError as error:
            if not any(word in error.stderr.lower() for word in ("not permitted", "denied")):  # else it is a fault of this test's
                raise
            pytest.skip(f"this machine lets nobody make network namespaces: {error.stderr}")
        made.start_ray()
        yield made
    finally:
        made.end()


def test_a_workflow_spread_over_three_hosts_and_each_way_between_them(hosts: Hosts) -> None:
    lines = hosts.run("-c", SPREAD, HEAD).stdout.splitlines()
    assert [line for line in lines if line.split(" ")[0] in ("stream", "gloo")] == [
        "stream ['tcp'] ['tcp']", "gloo ['gloo'] ['tcp']"
    ]  # fmt: skip


def test_learners_on_three_hosts_meet_without_a_default_route(hosts: Hosts) -> None:
    """Their addresses are the cluster's: what the kernel would choose for a packet to the rest of the world is no way to the others."""
    out = hosts.run("-c", LEARN, HEAD).stdout
    assert "ddp [600.0, 1200.0] True" in out and "fsdp [600.0, 1200.0] True" in out, out


def test_a_host_whose_cable_is_pulled_ends_the_run_in_seconds(hosts: Hosts) -> None:
    going = hosts.begin("-c", CUT, HEAD)
    assert going.stdout is not None
    while (line := going.stdout.readline()) and "running" not in line:
        pass
    hosts.plug(1, "down")
    out, _ = going.communicate(timeout=150)
    assert "make[0] lived there" in out and "Next:" in out, out
    assert float(out.split("seconds ")[1]) < 60, out
    until = time.monotonic() + 60
    while (left := [c for c in hosts.processes(1) if "RayHost" in c or ("ray::" in c and "Agent" not in c)]) and time.monotonic() < until:
        time.sleep(1)
    assert not left
    hosts.plug(1, "up")
