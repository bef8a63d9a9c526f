"""Refusals: what is wrong, where, and what would be right."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict

_SECRET = re.compile(r"(?i)(hf_[a-z0-9]{8,}|sk-[a-z0-9_-]{8,}|(api[-_]?key|token|secret|passw(or)?d)s?\s*[=:]\s*\S{6,}|eyJ[\w-]{10,}\.)")


def redact(text: str) -> str:
    """``text``, or a placeholder when it looks like a credential."""
    return "(hidden: looks like a secret)" if _SECRET.search(text) else text


class Problem(BaseModel):
    """One reason for a refusal. ``where`` is a field path such as ``Deployment.inference.options['max-model-len']``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str
    where: str
    message: str
    help: str = ""
    value: str | None = None

    def render(self) -> str:
        """The problem as a person reads it: place, then cause, then help."""
        lines = [self.where, f"  {redact(self.message)}"]
        if self.value is not None:
            lines.append(f"  given: {redact(self.value)}")
        if self.help:
            lines.append(f"  help: {self.help}")
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
        """The problems as JSON objects; values that look like secrets are hidden."""
        shown: list[dict[str, Any]] = []
        for problem in self.problems:
            fields = problem.model_dump()
            for key in ("message", "value"):
                if isinstance(fields[key], str):
                    fields[key] = redact(fields[key])
            shown.append(fields)
        return shown


class UserError(Exception):
    """A request that cannot be carried out as given. The command line prints it without a traceback and exits with ``exit_code``."""

    def __init__(self, message: str, *, help: str = "", exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.help = help
        self.exit_code = exit_code
