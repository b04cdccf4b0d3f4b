"""What starts a program within limits, with the standard library alone.

Run as a script by `program.Sandbox`.

Arguments: seconds of CPU time, MiB of address space, a file descriptor. When the program has ended, two numbers are
written to it: 1 if namespaces of its own kept network and processes away, else 0, and its exit code.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x00020000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
PR_SET_PDEATHSIG = 1
FILE_MIB = 16
"""how large a file may become"""
OPEN_FILES = 64


def main() -> None:
    seconds, memory_mib, tell = map(int, sys.argv[1:4])
    os.set_inheritable(tell, False)
    libc = ctypes.CDLL(None, use_errno=True)
    apart = CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC
    isolated = libc.unshare(apart) == 0 or libc.unshare(apart | CLONE_NEWUSER) == 0
    # The first process of the new namespace takes no signal that it does not handle, so it is not the program itself;
    # when it ends, everything in there ends.
    if first := os.fork():
        os.waitpid(first, 0)
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if program := os.fork():
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == program:
                break
        os.write(tell, f"{int(isolated)} {os.waitstatus_to_exitcode(status)}".encode())
        os._exit(0)
    # A second apart, so that SIGXCPU tells why it ended; who ignores that is killed.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    for what, most in (
        (resource.RLIMIT_AS, memory_mib << 20),
        (resource.RLIMIT_FSIZE, FILE_MIB << 20),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    os.execv(sys.executable, [sys.executable, "-I", "program.py"])


if __name__ == "__main__":
    main()
