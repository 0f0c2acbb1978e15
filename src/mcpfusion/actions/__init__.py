"""What can be called: actions and their signatures, results and errors, and the middleware around them."""

from .action import Action, BindingSpec
from .builder import ActionBuilder, ActionKeywords
from .context import Context, WorkflowView
from .elicitation import Answer
from .errors import ArgumentsError, InputRequired, RegistrationError, ResultError, ToolError
from .middleware import Call, CallNext, Middleware, compose
from .registry import ActionRegistry
from .results import ToolResult, error_result, text
from .signature import Signature

__all__ = [
    "Action",
    "ActionBuilder",
    "ActionKeywords",
    "ActionRegistry",
    "Answer",
    "ArgumentsError",
    "BindingSpec",
    "Call",
    "CallNext",
    "Context",
    "InputRequired",
    "Middleware",
    "RegistrationError",
    "ResultError",
    "Signature",
    "ToolError",
    "ToolResult",
    "WorkflowView",
    "compose",
    "error_result",
    "text",
]
