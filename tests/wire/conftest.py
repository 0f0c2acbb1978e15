"""The servers of `ways.py` over HTTP, each started once, when a test first asks for it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ..support.serving import http_process

WAYS_FILE = Path(__file__).parent / "ways.py"


@pytest.fixture(scope="session")
def keyed_url() -> Iterator[Callable[[str], str]]:
    """Return the URL of a way's server, whose workflows are named by `id`. Shared: each test uses ids of its own."""
    urls: dict[str, str] = {}
    with ExitStack() as running:

        def url(way: str) -> str:
            if way not in urls:
                urls[way], _ = running.enter_context(http_process(WAYS_FILE, args=(way, "keyed")))
            return urls[way]

        yield url


@pytest.fixture
def plain_url() -> Iterator[Callable[[str], str]]:
    """Return the URL of a new server made in a way, whose workflows are those of sessions or of the process."""
    with ExitStack() as running:
        yield lambda way: running.enter_context(http_process(WAYS_FILE, args=(way,)))[0]
