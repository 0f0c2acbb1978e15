"""What the pages point to is there, and what they are to say of themselves is up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import pages
from .pages import ROOT

PAGES = pages.pages()
WRITTEN = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/*.py"), *ROOT.glob("benchmarks/*.py")]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"({page.name})" not in index] == [
        "README.md"
    ]
    examples = [path.name for path in ROOT.glob("examples/*.py")]
    assert examples
    assert [name for name in examples if f"../examples/{name}" not in index] == []


def test_the_picture_is_what_the_server_answers(tmp_path: Path) -> None:
    drawn = tmp_path / "menus.svg"
    subprocess.run([sys.executable, str(ROOT / "docs" / "make_menus.py"), str(drawn)], check=True, timeout=60)
    assert drawn.read_text() == (ROOT / "docs" / "menus.svg").read_text(), "run python docs/make_menus.py"


def test_the_passage_page_has_the_defaults_of_the_code() -> None:
    from mcpfusion.gate.options import Options

    text = (ROOT / "docs" / "passage.md").read_text()
    for name in ("time_limit", "lease_margin", "conflict_wait"):
        assert f"| `{name}` | {getattr(Options(), name):g} s |" in text


def test_the_gating_page_explains_every_code() -> None:
    from typing import get_args

    from mcpfusion.gate import refusal

    text = (ROOT / "docs" / "gating.md").read_text()
    assert [code for code in get_args(refusal.Code) if f"| `{code}` |" not in text] == []


def test_the_architecture_page_names_rooms_that_are_there_and_every_module_of_the_gate() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "mcpfusion"
    drawn = re.findall(r"^  (\w+)/ ", text, re.MULTILINE)
    assert len(drawn) >= 8
    assert [room for room in drawn if not (source / room / "__init__.py").exists()] == []
    modules = [path.name for path in (source / "gate").glob("*.py") if path.name != "__init__.py"]
    assert [name for name in modules if f"`gate/{name}`" not in text] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_pages_name_nothing_of_the_workshop(page: Path) -> None:
    assert not re.search(r"(?<![\w.:/])/(home|root|tmp|work)/", page.read_text())
