"""Reads the one field of a request body that the gateway needs: ``model``."""

import msgspec


class ModelFieldError(ValueError):
    """The body does not name exactly one model. The text says why; it never quotes the body."""


class _Seen:
    """Marks the place of ``model`` for the decoder, which then reports every occurrence."""


class _Body(msgspec.Struct, gc=False):
    model: _Seen


_SEEN = _Seen()
_occurrences: list[object] = []


def _note(_type: type, value: object) -> _Seen:
    _occurrences.append(value)
    return _SEEN


_DECODER = msgspec.json.Decoder(_Body, dec_hook=_note)
_LONGEST = 512


def model_of(body: bytes) -> str:
    """The value of the top-level ``model`` of a JSON object.

    The decoder skips the rest without building it (about 1 GB/s), and calls back for each ``model`` key however it is
    escaped, so that a second one, which another parser might prefer to the first, is seen and refused.
    """
    _occurrences.clear()
    try:
        _DECODER.decode(body)
        found = _occurrences.copy()
    except msgspec.ValidationError as error:
        raise ModelFieldError(
            "the body names no model: 'model' is missing"
            if "model" in str(error)
            else "the body must be a JSON object with a 'model'"
        ) from None
    except (msgspec.DecodeError, RecursionError):
        raise ModelFieldError("the body is not valid JSON") from None
    finally:
        _occurrences.clear()
    if len(found) > 1:
        raise ModelFieldError("the body names 'model' more than once")
    name = found[0]
    if not isinstance(name, str) or not name or len(name) > _LONGEST:
        raise ModelFieldError(f"'model' must be a string of 1 to {_LONGEST} characters")
    return name
