"""Reading an engine's log across rotations, by offsets that count from its first byte."""

from pathlib import Path

#: A rotation between two looks at the directory is followed by hours without one.
_TRIES = 5


def read_log(path: Path, offset: int, limit: int) -> tuple[bytes, int]:
    """Up to ``limit`` bytes from ``offset``, and the offset to go on from.

    The launcher renames a full file to ``<name>.<offset of its end>`` and keeps one such file. An offset before what is
    kept is moved to its start, one beyond the end to the end.
    """
    for _ in range(_TRIES):
        full = _full_files(path)
        read = _read(path, full, max(0, offset), limit)
        if full == _full_files(path):
            return read
    return b"", offset


def _read(path: Path, full: list[tuple[int, Path]], offset: int, limit: int) -> tuple[bytes, int]:
    for end, older in full:
        if offset >= end:
            continue
        try:
            with older.open("rb") as file:
                start = end - file.seek(0, 2)
                offset = max(offset, start)
                file.seek(offset - start)
                data = file.read(limit)
        except FileNotFoundError:
            continue
        if data:
            return data, offset + len(data)
    base = full[-1][0] if full else 0
    try:
        with path.open("rb") as file:
            offset = min(max(offset, base), base + file.seek(0, 2))
            file.seek(offset - base)
            data = file.read(limit)
    except FileNotFoundError:
        return b"", max(offset, base)
    return data, offset + len(data)


def _full_files(path: Path) -> list[tuple[int, Path]]:
    suffixes = [(name.name[len(path.name) + 1 :], name) for name in path.parent.glob(f"{path.name}.*")]
    return sorted((int(suffix), name) for suffix, name in suffixes if suffix.isdigit())
