"""`mcpfusion store`: init and check, for every engine that needs no server, and for PostgreSQL."""

from pathlib import Path

from ..support.postgres_servers import shared
from .conftest import Cli
from .test_main import error_line


def test_a_file_is_created_by_init_and_not_by_check(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/w.db"
    assert "there is no such file" in error_line(cli("store", "check", "--store", url))
    assert not (tmp_path / "w.db").exists()
    for _ in range(2):
        made = cli("store", "init", "--store", url)
        assert (made.returncode, made.stdout) == (0, "it is ready\n")
    checked = cli("store", "check", "--store", url)
    assert (checked.returncode, checked.stdout) == (0, "it can be used\n")


def test_what_is_no_store_is_wrong_usage(cli: Cli) -> None:
    for command in ("init", "check"):
        assert "ends with its server's process" in error_line(cli("store", command, "--store", "memory://"), 2)
        assert "is no store URL" in error_line(cli("store", command, "--store", "w.db"), 2)
        line = error_line(cli("store", command, "--store", "postgresql://u:s3cret@h/d?mcpfusion_x=1"), 2)
        assert "no parameter 'mcpfusion_x'" in line
        assert "s3cret" not in line


def test_a_schema_is_made_by_init_alone(cli: Cli) -> None:
    url = shared().new_schema_url()
    schema = url.partition("mcpfusion_schema=")[2]
    assert "its schema is missing or incomplete (42P01); run mcpfusion store init" in error_line(
        cli("store", "check", "--store", url)
    )
    made = cli("store", "init", "--store", url)
    version, there, done, ready = made.stdout.splitlines()
    assert version.startswith("PostgreSQL ")
    assert (there, done, ready) == (f"schema {schema!r}, version 1", "the schema was created", "it is ready")
    again = cli("store", "init", "--store", url)
    assert again.stdout.splitlines() == [version, there, ready]
    checked = cli("store", "check", "--store", url)
    assert (checked.returncode, checked.stdout.splitlines()) == (0, [version, there, "it can be used"])
    assert shared().execute(f"SELECT count(*) FROM {schema}.workflow") == [(0,)]


def test_check_tells_what_is_wrong(cli: Cli) -> None:
    away = error_line(cli("store", "check", "--store", "postgresql://u:s3cret@127.0.0.1:1/d"))
    assert away == "PostgreSQL store: it cannot be reached; start it, or correct the URL"
    nobody = error_line(cli("store", "check", "--store", shared().url(user="nobody")))
    assert nobody == 'PostgreSQL store: role "nobody" does not exist; check the user in the URL, and pg_hba.conf'
    url = f"{shared().schema_url()}&options=-c%20default_transaction_read_only%3Don"
    assert "it only takes reads" in error_line(cli("store", "check", "--store", url))
