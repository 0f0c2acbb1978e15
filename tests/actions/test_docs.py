"""The examples of docs/actions.md run as they stand, in order, with the checks that the page hides."""

import re
from pathlib import Path

import pytest

from mcpfusion.actions import ActionKeywords
from tests.docs.pages import ROOT, parts, run

PAGE = ROOT / "docs" / "actions.md"


def test_the_examples_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(PAGE) == len(list(parts(PAGE)))
    text = PAGE.read_text()
    remark = re.findall(r"print\(.*\)  # (.*)", text)
    shown = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert capsys.readouterr().out == "\n".join([*remark, *shown])


def test_the_page_names_every_method() -> None:
    table = PAGE.read_text().partition("| method and keyword | meaning |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)\(", table)) == set(ActionKeywords.__annotations__)
