"""Pages of the documentation as programs.

All Python of a page runs in order, in one namespace and an empty folder. A block that has an `await` at its top runs
in an event loop that lasts as long as the page, as with `python -m asyncio`. What runs is:

- each fenced block that is marked `python`;
- each comment `<!-- python` ... `-->`, at its place: set-up and checks that a reader need not see;
- a block of any language behind a comment `<!-- file: NAME -->` is written to the file NAME instead.

Run one page: `python tests/docs/pages.py docs/gating.md`.
"""

import ast
import asyncio
import inspect
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_PART = re.compile(
    r"^<!-- file: (?P<file>\S+) -->\n+^```\w*\n(?P<text>.*?)^```$"
    r"|^```python\n(?P<shown>.*?)^```$"
    r"|^<!-- python\n(?P<hidden>.*?)^-->$"
    r"|^```\w*\n.*?^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Part:
    """A piece of Python, or a file.

    Attributes:
        line: The page's line before its first one.
        file: Where it is written to, instead of being run.
    """

    text: str
    line: int
    file: str | None = None


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def parts(page: Path) -> Iterator[Part]:
    """Yield what runs on a page, in order."""
    text = page.read_text()
    for found in _PART.finditer(text):
        for group in ("text", "shown", "hidden"):
            if found[group] is not None:
                line = text.count("\n", 0, found.start(group))
                yield Part(found[group], line, found["file"] if group == "text" else None)


def run(page: Path) -> int:
    """Run a page in the current folder and return how many pieces of Python it had."""
    module = types.ModuleType(page.stem)
    sys.modules[page.stem] = module
    count = 0
    with asyncio.Runner() as runner:
        for part in parts(page):
            if part.file is not None:
                Path(part.file).write_text(part.text)
                continue
            count += 1
            # The lines of the page, so that a traceback says where.
            text = "\n" * part.line + part.text
            result = eval(compile(text, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), module.__dict__)
            if inspect.iscoroutine(result):
                runner.run(result)
    return count


def main(page: str) -> None:
    """Run one page in an empty folder."""
    path = Path(page).resolve()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        print(f"{run(path)} pieces of Python")
        os.chdir(ROOT)


if __name__ == "__main__":
    main(sys.argv[1])
