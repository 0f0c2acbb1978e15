"""Logs for operators: one line of JSON or of text for each record, with the trace it belongs to.

No record of this library names a workflow by its handle, or holds an argument or a token. What an exception says may
hold anything, so that both forms give the types of exceptions and the places where they were raised, and the message
only of those that promise to hold nothing of the kind.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, Literal, cast

from mcpfusion.telemetry import SPECIALIST, STATE, TOOL, WORKFLOW, chain_of, kind_of, trace_ids

Form = Literal["json", "text"]

LEVELS = ("debug", "info", "warning", "error")

_TALKATIVE = ("mcp", "fastmcp", "sse_starlette", "httpx2", "httpcore2", "redis", "psycopg", "aiosqlite")
"""Loggers of libraries that write requests, answers or addresses at `debug`, which may hold anything."""

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
    """A line for people, with the id of the trace; below it an exception, and the places that it came through."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        ids = trace_ids()
        trace = f" [trace {ids[0]}]" if ids else ""
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {_message(record)}{trace}"
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return line
        told = _told(error)
        said = f": {told['message']}" if "message" in told else ""
        return "\n".join([line, f"  {told['type']}{said}", *(f"    {at}" for at in told["at"])])


def configure_logging(form: Form | None = None, level: str | None = None) -> None:
    """Write the process's logs to standard error.

    Args:
        form: `json` for machines, `text` for people. None: text, unless logging is set up already.
        level: The least level that is written, one of `LEVELS`. None: warnings, unless logging is set up already.
            Of libraries that repeat whole messages at `debug`, `info` is the least.
    """
    if form is None and level is None and not all(map(_is_the_sdks, logging.getLogger().handlers)):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.captureWarnings(True)
    theirs = logging.getLogger("fastmcp")  # which writes by itself, with what exceptions say
    theirs.handlers.clear()
    theirs.propagate = True
    theirs.setLevel(logging.NOTSET)
    logging.basicConfig(level=(level or "warning").upper(), handlers=[handler], force=True)
    for name in _TALKATIVE:
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(max(logging.getLogger().level, logging.INFO))


def _is_the_sdks(handler: logging.Handler) -> bool:
    """Return whether a handler is the one that the SDK's `MCPServer` gives the root logger when it is made: nobody
    asked for it, and it writes what exceptions say."""
    console, form = getattr(handler, "console", None), handler.formatter
    return (
        type(handler).__module__ == "rich.logging"
        and bool(getattr(console, "stderr", False) and getattr(handler, "rich_tracebacks", False))
        and (form is None or (form.datefmt is None and form._fmt == "%(message)s"))  # pyright: ignore[reportPrivateUsage]
    )


def _message(record: logging.LogRecord) -> str:
    """Return the message, with the kinds of the exceptions in it instead of what they say."""
    given = cast("tuple[Any, ...]", record.args) if isinstance(record.args, tuple) else ()
    told = tuple(_said(each) if isinstance(each, BaseException) else each for each in given)
    message = str(record.msg) % told if told else record.getMessage()
    error = record.exc_info[1] if record.exc_info and not record.name.startswith("mcpfusion") else None
    if error is not None and (said := str(error)):  # other libraries write it into the message
        message = message.replace(said, _said(error))
    return message


def _said(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {error}" if getattr(error, "safe_to_log", False) else kind_of(error)


def _told(error: BaseException) -> dict[str, Any]:
    chain = chain_of(error)
    frames = [frame for each in chain for frame in traceback.extract_tb(each.__traceback__)]
    told: dict[str, Any] = {"type": kind_of(error), "at": [f"{at.filename}:{at.lineno} {at.name}" for at in frames]}
    safe = next((each for each in chain if getattr(each, "safe_to_log", False)), None)
    return told if safe is None else {**told, "message": str(safe)}
