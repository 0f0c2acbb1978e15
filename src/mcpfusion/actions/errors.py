"""What can go wrong with an action: when it is declared, and when it is called."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class ToolError(Exception):
    """A failure whose message is meant for the client.

    Any other exception that leaves a handler reaches the client as a generic message only.

    Attributes:
        message: What the client reads.
        code: A short name for programs to test, such as `CARD_DECLINED`, or None.
        in_doubt: True when the effect may have happened although the call failed.
        data: JSON-able details for the structured part of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        in_doubt: bool = False,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.in_doubt = in_doubt
        self.data: Mapping[str, Any] = dict(data) if data else {}


class ArgumentsError(ToolError):
    """The arguments of a call do not fit the action's signature; the handler was not called.

    The message has one line for each bad field. `data["fields"]` says the same for programs: a list of
    `{"field", "expected", "problem"}`.
    """

    def __init__(self, message: str, *, fields: list[dict[str, str]]) -> None:
        super().__init__(message, code="INVALID_ARGUMENTS", data={"fields": fields})


class RegistrationError(ValueError):
    """An action was declared in a way that cannot work.

    The message names the action, the place and the remedy.
    """


class ResultError(Exception):
    """A handler returned something that is no result of its action.

    For the log: the client sees nothing of the message.
    """


class InputRequired(BaseException):
    """Raised by `Context.elicit` when the answer is not there yet: the call ends, and is run again with it.

    Not an `Exception`, so that a handler's `except Exception` does not mistake it for a failure.

    Attributes:
        key: Names the question; the answer is handed to the next run under it.
        message: The question, for the person who is asked.
        schema: JSON Schema of the answer, flat, as elicitation demands.
    """

    def __init__(self, key: str, message: str, schema: Mapping[str, Any]) -> None:
        super().__init__(key)
        self.key = key
        self.message = message
        self.schema: dict[str, Any] = dict(schema)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest of `known`, or an empty string when nothing is close."""
    if len(word) > 128:
        return ""
    near = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def gist(error: Exception) -> str:
    """Return the first sentence of an error's message: pydantic adds advice that does not apply here."""
    return str(error).split("\n", 1)[0].split(". ", 1)[0].rstrip(".")
