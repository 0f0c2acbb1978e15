"""The entry of the `mcpfusion` command: exit codes, and every error in one line.

Exit codes: 0 it went well; 1 it was refused or failed; 2 the command was used wrongly; 130 it was interrupted.
With MCPFUSION_TRACEBACK=1 in the environment an error's traceback is printed as well.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import cast

_EXTRA = frozenset({"click", "rich", "watchfiles"})
_INTERRUPTED = 130  # as a shell reports a process that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's own) and return its exit code."""
    try:
        return _run(arguments)
    except BrokenPipeError:
        # As click does where it notices. What is still buffered would raise again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if missing in _EXTRA:
            return _fail(f'this needs {missing}: pip install "mcpfusion[cli]"')
        cause = _cause(error)
        return _fail(f"{type(cause).__name__}: {cause}")


def _run(arguments: Sequence[str] | None) -> int:
    import click
    from click.exceptions import NoArgsIsHelpError

    from mcpfusion.cli.app import app

    try:
        code = app.main(arguments, prog_name="mcpfusion", standalone_mode=False)
        sys.stdout.flush()
    except NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "mcpfusion"
        return _fail(f"{error.format_message()} (see '{where} --help')", error.exit_code)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except click.Abort as error:
        # click makes one of a Ctrl-C, and at a question it hides the cause.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return _INTERRUPTED
        return _fail("aborted")
    return code if isinstance(code, int) else 0


def _cause(error: BaseException) -> BaseException:
    # A task group wraps what went wrong; its own message says nothing.
    if isinstance(error, BaseExceptionGroup):
        return _cause(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return error


def _fail(message: str, code: int = 1) -> int:
    if os.environ.get("MCPFUSION_TRACEBACK"):
        traceback.print_exc()
    sys.stderr.write(f"mcpfusion: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
