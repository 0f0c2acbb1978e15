"""The examples of docs/stores.md run as they stand, one after the other."""

import os
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mcpfusion.stores import FsmSnapshot
from mcpfusion.testing import store_contract

DOCS = Path(__file__).parents[2] / "docs" / "stores.md"


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples defined, with what they printed and the files they left."""
    names: dict[str, Any] = {"__name__": "docs"}
    said = StringIO()
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
        patch.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.S | re.M):
            exec(compile(block, str(DOCS), "exec"), names)
    return {**names, "said": said.getvalue(), "files": os.listdir(folder)}


def test_the_first_example_reads_a_new_file(docs: dict[str, Any]):
    assert docs["said"] == "None\n"
    assert docs["files"] == ["invoices.db"]


@pytest.mark.anyio
async def test_the_ten_lines_load_what_they_saved(docs: dict[str, Any]):
    store = docs["InvoiceTable"](docs["db"])
    assert await store.load("INV-2") is None
    assert await store.load("INV-1") == FsmSnapshot("draft", "2026-01-01T00:00:00+00:00")
    moved = FsmSnapshot("review", "2026-01-02T00:00:00+00:00")
    await store.save("INV-1", moved)
    assert await store.load("INV-1") == moved


class TestTheDictStore(store_contract()):
    @pytest.fixture
    async def store(self, docs: dict[str, Any]) -> Any:
        assert issubclass(docs["TestDictStore"], store_contract())
        async with docs["open_dict_store"]() as store:
            yield store


@pytest.mark.parametrize(
    "said",
    ["its folder does not exist", "is the database of another application", "has schema version", "is gone"],
)
def test_the_messages_are_those_of_the_store(said: str):
    import mcpfusion.stores.sqlite_file as source

    assert said in DOCS.read_text(encoding="utf-8")
    assert said in Path(source.__file__).read_text(encoding="utf-8")
