"""The servers of `ways.py` over HTTP."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.serving import http_process

WAYS_FILE = Path(__file__).parent / "ways.py"


@pytest.fixture
def process_url() -> Iterator[Callable[..., str]]:
    """Return what starts a way's server as a process of its own, run as its users run it, and gives its URL."""
    with ExitStack() as running:
        yield lambda *args: running.enter_context(http_process(WAYS_FILE, args=args))[0]
