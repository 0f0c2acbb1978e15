import os
from collections.abc import Generator

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# `make test-stores` promises that every engine was there: a test that would be skipped fails instead.

if os.environ.get("MCPFUSION_REQUIRE_ENGINES") == "1":

    def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
            report.outcome = "failed"
            report.longrepr = f"skipped, though MCPFUSION_REQUIRE_ENGINES is set: {report.longrepr}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        _fail_if_skipped(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        _fail_if_skipped(report)
        return report
