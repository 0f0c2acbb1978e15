import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpfusion.stores import MemoryStore, SqliteStore, StoreError, VersionedFsmStateStore, open_store

from .records import workflow


def test_memory():
    store = open_store("memory://")
    assert isinstance(store, MemoryStore)
    assert isinstance(store, VersionedFsmStateStore)
    assert open_store("memory://") is not store


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative.db", "relative.db"),
        ("sqlite:///sub/relative.db", "sub/relative.db"),
        ("SQLite:///relative.db", "relative.db"),
        ("sqlite:////absolute/path.db", "/absolute/path.db"),
        ("sqlite:///with%20space%3F%23.db", "with space?#.db"),
        ("sqlite:///100%.db", "100%.db"),
        ("sqlite:///рахунки.db", "рахунки.db"),
        ("sqlite:///user@host.db", "user@host.db"),
    ],
)
def test_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, path: str):
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store._file.path == tmp_path / path
    assert os.listdir(tmp_path) == []


@pytest.mark.anyio
async def test_a_relative_path_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///w.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert await store.write(workflow(), expected_version=0)
    assert (tmp_path / "w.db").is_file()
    await store.aclose()


@pytest.mark.anyio
async def test_create_false_makes_no_file(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/w.db", create=False)
    with pytest.raises(StoreError, match=r"w\.db': there is no such file; check the path"):
        await store.read("ann", "INV-1")
    assert os.listdir(tmp_path) == []
    other = open_store(f"sqlite:///{tmp_path}/w.db")
    assert await other.write(workflow(), expected_version=0)
    assert await store.read("ann", "INV-1") == workflow()
    await other.aclose()
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "needs three slashes and a path;"),
        ("sqlite://w.db", r"needs three slashes and a path \(did you mean sqlite:///w.db\?\)"),
        ("sqlite:///", "names a file"),
        ("sqlite:////", "names a file"),
        ("sqlite:///:memory:", "for a store in memory write memory://"),
        ("sqlite://:memory:", "needs three slashes and a path;"),
        ("sqlite:///w.db?mode=ro", "takes no options"),
        ("sqlite:///w.db#1", "takes no options"),
        ("memory://shared", "memory:// takes no name"),
        ("sqllite:///w.db", r"no store for sqllite:// URLs \(did you mean sqlite\?\)"),
        ("memroy://", r"no store for memroy:// URLs \(did you mean memory\?\)"),
        ("ftp://host/w.db", "no store for ftp:// URLs;"),
        ("file:///w.db", "no store for file:// URLs"),
        ("w.db", r"'w.db' is no store URL \(did you mean sqlite:///w.db\?\)"),
        ("/var/w.db", r"did you mean sqlite:////var/w.db\?"),
        ("sqlite:/w.db", "'sqlite:/w.db' is no store URL;"),
        ("", "'' is no store URL;"),
        ("://", "is no store URL;"),
        ("sqlite", "is no store URL"),
    ],
)
def test_what_is_no_store(url: str, said: str):
    with pytest.raises(ValueError, match=said) as caught:
        open_store(url)
    for known in ("memory://", "sqlite:///relative.db", "sqlite:////absolute/path.db", "postgresql://"):
        assert known in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://user:s3cret@host/db",
        "mongodb://user:s3cret@p@host:1/db?password=s3cret",
        "sqlite://user:s3cret@host/w.db",
        "sqlite://host/w.db?password=s3cret",
        "memory://user:s3cret@host",
        "mongodb:/user:s3cret@host/db",
        "user:s3cret@host/db",
        "user:s3cret@host://db",
        "s3cret@host",
    ],
)
def test_a_secret_is_never_repeated(url: str):
    with pytest.raises(ValueError, match="supported are") as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_sqlite_store_needs_a_file(path: str):
    with pytest.raises(ValueError, match="needs the path of a file"):
        SqliteStore(path)


def test_naming_the_store_imports_no_engine():
    code = (
        "import sys, mcpfusion.stores\n"
        "assert {'sqlite3', 'anyio', 'asyncio', 'mcp', 'pydantic'}.isdisjoint(sys.modules)\n"
        "mcpfusion.stores.open_store('memory://')\n"
        "assert {'sqlite3', 'anyio', 'asyncio', 'mcp', 'pydantic'}.isdisjoint(sys.modules)\n"
        "for name in mcpfusion.stores.__all__: assert getattr(mcpfusion.stores, name)\n"
        "assert 'sqlite3' in sys.modules\n"
        "try: mcpfusion.stores.Nothing\n"
        "except AttributeError as error: assert 'Nothing' in str(error)\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
