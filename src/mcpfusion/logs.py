"""Logs for operators: one line of JSON or of text for each record, with the trace it belongs to.

No record of this library names a workflow by its handle, or holds an argument or a token. What an exception says may
hold anything, so that the JSON form gives the types of exceptions and the places where they were raised, and the
message only of those that promise to hold nothing of the kind.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Literal, cast

from mcpfusion.telemetry import SPECIALIST, STATE, TOOL, WORKFLOW, kind_of, trace_ids

Form = Literal["json", "text"]

LEVELS = ("debug", "info", "warning", "error")

_FIELDS = (WORKFLOW, TOOL, STATE, SPECIALIST)


class JsonFormatter(logging.Formatter):
    """A JSON object for each record: time, level, logger, message, trace_id, span_id, and fields of this library."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        if (ids := trace_ids()) is not None:
            line["trace_id"], line["span_id"] = ids
        line |= {field: value for field in _FIELDS if (value := record.__dict__.get(field)) is not None}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            line["exception"] = _told(error)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A line for people, and the whole traceback of an exception: for development."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the record's own line."""
        ids = trace_ids()
        return super().formatMessage(record) + (f" [trace {ids[0]}]" if ids else "")


def configure_logging(form: Form | None = None, level: str | None = None) -> None:
    """Write the process's logs to standard error.

    Args:
        form: `json` for machines, `text` for people. None: text, unless logging is set up already.
        level: The least level that is written, one of `LEVELS`. None: warnings, unless logging is set up already.
    """
    if form is None and level is None and logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=(level or "warning").upper(), handlers=[handler], force=True)


def _message(record: logging.LogRecord) -> str:
    """Return the message, with the kinds of the exceptions in it instead of what they say."""
    if not isinstance(record.args, tuple):
        return record.getMessage()
    given = cast("tuple[Any, ...]", record.args)
    told = tuple(_said(each) if isinstance(each, BaseException) else each for each in given)
    return str(record.msg) % told if told else str(record.msg)


def _said(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}" if getattr(error, "safe_to_log", False) else kind_of(error)


def _told(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    told: dict[str, Any] = {"type": kind_of(error), "at": [f"{at.filename}:{at.lineno} {at.name}" for at in frames]}
    safe = _safe(error)
    return {**told, "message": str(safe)} if safe is not None else told


def _safe(error: BaseException) -> BaseException | None:
    """Return the first of an exception and its causes whose message may be logged."""
    each: BaseException | None = error
    for _ in range(5):
        if each is None or getattr(each, "safe_to_log", False):
            return each
        each = each.__cause__ or each.__context__
    return None
