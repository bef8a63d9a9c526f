"""Reading option values that several verbs share."""

from standfast.problems import UserError
from standfast.values import parse_duration


def seconds(option: str, given: str | None) -> float | None:
    """A length of time such as ``90s``, ``15m`` or plain seconds. Raises `UserError`."""
    if given is None:
        return None
    try:
        return parse_duration(f"{given}s" if given.replace(".", "", 1).isdigit() else given).total_seconds()
    except ValueError as error:
        raise UserError(f"{option} {given}: {error}.", help="Write 90s, 15m or 1h30m.") from None
