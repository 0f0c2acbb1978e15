"""Every vector replayed: 100 machines made by hand and 400 random ones, as XState 5 answered."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from . import replay

DATA = Path(__file__).parent.parent / "data" / "xstate"
FILES = sorted(DATA.glob("*.json"))
VECTORS = [pytest.param(vector, id=vector["name"]) for path in FILES for vector in replay.vectors_in(path)]


def test_all_files_are_here() -> None:
    assert len(FILES) == 102
    assert len(VECTORS) == 500


@pytest.mark.parametrize("vector", VECTORS)
def test_vector(vector: Mapping[str, Any]) -> None:
    assert replay.replay(vector) == len(vector["steps"]) + 1


def test_the_tool_counts_and_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = DATA / "flat_linear.json"
    bad = tmp_path / "bad.json"
    vector = json.loads(good.read_text())
    vector["steps"][-1]["expected"]["value"] = "elsewhere"
    bad.write_text(json.dumps(vector))
    assert replay.main([str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 0 failed"
    assert replay.main([str(good), str(bad)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"
