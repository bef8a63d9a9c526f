"""Refusals: what is wrong, where, and what would be right."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

#: What credentials look like: the prefixes that providers give them, tokens in three parts, keys in PEM,
#: ``name=value`` pairs whose name says so, and the user part of a URL.
_SECRET = re.compile(
    r"""
    \b(?:hf_|sk-|sf-|tml-|nvapi-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|a[ks]-)(?=[\w-]*\d)[A-Za-z0-9_-]{8,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | \beyJ[\w-]{10,}\.[\w.-]*
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*
    | \bBearer[ ]+[\w.~+/-]{8,}=*
    | (?i:api[-_]?key|access[-_]?key|secret|passw(?:or)?d)s?['"]?\s*[=:]\s*['"]?
      (?!Secret\()(?:(?=[^\s'"]*\d)[^\s'"]{6,}|[^\s'"]{12,})
    | (?i:token)['"]?\s*[=:]\s*['"]?(?=[^\s'"]*\d)(?=[^\s'"]*[A-Za-z])[^\s'"]{8,}
    | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)
    """,
    re.VERBOSE | re.DOTALL,
)
_HIDDEN = "(hidden: looks like a secret)"


def redact(text: str) -> str:
    """``text`` with every part that looks like a credential replaced; unchanged if nothing does."""
    return _SECRET.sub(_HIDDEN, text)


class Problem(BaseModel):
    """One reason for a refusal.

    ``where`` is a field path such as ``Deployment.inference.options['max-model-len']``; ``value`` is what was given
    there, ``limit`` what would have been accepted, where that is a bound or a choice (the message says it in words);
    ``file`` and ``line`` say where it was written, if that is known. Texts that look like secrets are hidden as soon as
    the problem is made.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str
    where: str
    message: str
    help: str = ""
    value: str | None = None
    limit: str | None = None
    file: str | None = None
    line: int | None = None

    @field_validator("where", "message", "help", "value", "limit")
    @classmethod
    def _hide_secrets(cls, text: str | None) -> str | None:
        return None if text is None else redact(text)

    def at(self, file: str, line: int | None) -> "Problem":
        """The same problem, with the place where it was written."""
        return self.model_copy(update={"file": file, "line": line})

    def render(self) -> str:
        """The problem as a person reads it: what is wrong, where, and what would be right."""
        place = "" if self.file is None else self.file if self.line is None else f"{self.file}:{self.line}"
        lines = [f"error: {self.message}", f"  --> {'  '.join(part for part in (place, self.where) if part)}"]
        if self.value is not None and self.value not in self.message:
            lines.append(f"   = given: {self.value}")
        if self.help:
            lines.append(f"   = help: {self.help}")
        return "\n".join(lines)


class ProblemsError(ValueError):
    """A config or a plan was refused. Holds every problem found, not only the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        if not problems:
            raise ValueError("ProblemsError needs at least one problem")
        self.problems = problems
        super().__init__("\n".join(problem.render() for problem in problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return (ProblemsError, (self.problems,))

    def to_json(self) -> list[dict[str, Any]]:
        """The problems as JSON objects."""
        return [problem.model_dump(mode="json") for problem in self.problems]


class UserError(Exception):
    """A request that cannot be carried out as given.

    The command line prints it without a traceback and exits with ``exit_code``. ``where`` is a place such as
    ``configs/qwen.py:14``.
    """

    def __init__(self, message: str, *, help: str = "", where: str = "", exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.where = where
        self.exit_code = exit_code

    def render(self) -> str:
        """The error as a person reads it, in the style of `Problem.render`."""
        lines = [f"error: {redact(self.message)}"]
        if self.where:
            lines.append(f"  --> {self.where}")
        if self.help:
            lines.append(f"   = help: {redact(self.help)}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_user_error, (type(self), self.args, self.__dict__))


def _user_error(kind: type[UserError], args: tuple[Any, ...], state: dict[str, Any]) -> UserError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
