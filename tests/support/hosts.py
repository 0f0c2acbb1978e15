"""Network hosts of their own: namespaces of this machine, whose links can be cut. Needs root and iproute2.

One host, the middle one, is reached by all others, each by a link of its own. Their addresses exist in these
namespaces only.
"""

import ctypes
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

MIDDLE = "10.251.0.1"
"""Where the others reach the host in the middle."""

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip", path=_PATH) is None, reason="namespaces need root and iproute2"
)

_T = TypeVar("_T")


class Hosts:
    """The hosts that there are.

    Attributes:
        middle: Name of the namespace that the others reach.
        around: Names of the others.
    """

    def __init__(self, middle: str, around: list[str]) -> None:
        self.middle = middle
        self.around = around

    def cut(self, number: int) -> None:
        """Cut the link of one of the others: nothing that is sent arrives, and nobody is told."""
        _ip("-n", self.middle, "link", "set", f"to{number}", "down")

    def mend(self, number: int) -> None:
        """Undo `cut`."""
        _ip("-n", self.middle, "link", "set", f"to{number}", "up")


@contextmanager
def hosts(others: int) -> Iterator[Hosts]:
    """Make a host in the middle and so many others. They go in the end, whatever happened."""
    mark = uuid.uuid4().hex[:8]
    middle, around = f"mcpf-{mark}", [f"mcpf-{mark}-{number}" for number in range(others)]
    with ExitStack() as stack:
        for name in (middle, *around):
            made = _ip("netns", "add", name, check=False)
            if made.returncode:
                pytest.skip(f"no namespace can be made here: {made.stderr.strip()}")
            stack.callback(_ip, "netns", "del", name, check=False)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", middle, "address", "add", f"{MIDDLE}/32", "dev", "lo")
        for number, name in enumerate(around):
            subnet, link = f"10.251.{number + 1}", f"to{number}"
            _ip("link", "add", link, "netns", middle, "type", "veth", "peer", "name", "out", "netns", name)
            _ip("-n", middle, "address", "add", f"{subnet}.1/24", "dev", link)
            _ip("-n", name, "address", "add", f"{subnet}.2/24", "dev", "out")
            _ip("-n", middle, "link", "set", link, "up")
            _ip("-n", name, "link", "set", "out", "up")
            _ip("-n", name, "route", "add", "default", "via", f"{subnet}.1")
        yield Hosts(middle, around)


def enter(host: str) -> None:
    """Move this thread, and what it starts from now on, to a host."""
    with open(f"/run/netns/{host}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot enter {host}")


def on(host: str, work: Callable[[], _T]) -> _T:
    """Do something on a host, in a thread of its own, and return the result. Processes that it starts stay there."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            enter(host)
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _ip(*arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    ip = shutil.which("ip", path=_PATH) or "ip"
    done = subprocess.run([ip, *arguments], capture_output=True, text=True, timeout=20)
    assert not check or done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return done
