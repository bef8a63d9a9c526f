"""Run a Python file by its path and leave the process as it was found.

Imports of the file's siblings work while it runs. Afterwards ``sys.path`` is as before, and the file and its siblings
are gone from ``sys.modules``, so that two files of one name, or two siblings of one name, never meet. What the file
imports from installed packages stays loaded, as after any import.

A file that fails is reported with its own place: `ProblemsError` for a refused object, `UserError` for the rest.
"""

import difflib
import importlib
import linecache
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import standfast
from standfast.problems import ProblemsError, UserError
from standfast.sources import call_line

_LOCK = threading.RLock()
_PACKAGE = Path(__file__).resolve().parent
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True, kw_only=True)
class LoadedFile:
    """A file that has run: where it is, what it says, and the names it defined, in order."""

    path: Path
    source: str
    names: dict[str, Any]

    @property
    def shown(self) -> str:
        """The path as people read it."""
        return shown_path(self.path)


def load_file(path: Path | str, *, purpose: str) -> LoadedFile:
    """Run a Python file. ``purpose`` names it in messages: "config file", "target file".

    Raises `UserError` or `ProblemsError`.
    """
    given = Path(path).expanduser()
    file = given.absolute()
    source = _read(file, given, purpose)
    name = f"standfast_file_{abs(hash(file)):x}"
    module = types.ModuleType(name)
    module.__file__ = str(file)
    try:
        code = compile(source, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(error) from None
    except ValueError as error:
        raise UserError(f"The {purpose} cannot be read: {error}.", where=shown_path(file)) from None
    with _LOCK, _isolated(file.parent, name, module):
        try:
            exec(code, module.__dict__)
        except ProblemsError as error:
            raise _placed(error, file) from None
        except UserError:
            raise
        except SyntaxError as error:
            raise _syntax_error(error) from None
        except (Exception, SystemExit) as error:
            raise _failure(error, file, purpose) from None
    names = {key: value for key, value in module.__dict__.items() if key not in _MODULE_NAMES}
    return LoadedFile(path=file, source=source, names=names)


_MODULE_NAMES = {*types.ModuleType("").__dict__, "__builtins__", "__file__"}


def shown_path(path: Path) -> str:
    """Relative to the working directory where that is shorter, else absolute."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _read(file: Path, given: Path, purpose: str) -> str:
    if file.is_dir():
        raise UserError(f"{given} is a directory, not a {purpose}.", help=f"Name one of the files in it: {given}/*.py")
    if not file.exists():
        near = [path.name for path in sorted(file.parent.glob("*.py"))] if file.parent.is_dir() else []
        found = f"The directory holds {', '.join(near[:8])}." if near else ""
        raise UserError(f"There is no {purpose} {given}.", help=found)
    try:
        return file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"The {purpose} {given} is not a Python file in UTF-8.") from None
    except OSError as error:
        raise UserError(f"The {purpose} {given} cannot be read: {error.strerror}.") from None


# -- isolation ---------------------------------------------------------------------------------------------------------


@contextmanager
def _isolated(directory: Path, name: str, module: types.ModuleType) -> Iterator[None]:
    path, modules, write = list(sys.path), dict(sys.modules), sys.dont_write_bytecode
    importers = set(sys.path_importer_cache)
    for hidden in [key for key in sys.modules if _is_foreign_twin(key, directory)]:
        del sys.modules[hidden]
    sys.modules[name] = module
    sys.path.insert(0, str(directory))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    linecache.checkcache()
    try:
        yield
    finally:
        siblings = {key for key in sys.modules if key not in modules and _is_sibling(key, directory, modules)}
        for key in siblings:
            del sys.modules[key]
        sys.modules.pop(name, None)
        sys.modules.update(modules)
        sys.path[:] = path
        sys.dont_write_bytecode = write
        for key in set(sys.path_importer_cache) - importers:
            if Path(key).is_relative_to(directory):
                del sys.path_importer_cache[key]


def _is_foreign_twin(key: str, directory: Path) -> bool:
    """Whether a loaded module has the name of a sibling but came from elsewhere, so that it would hide the sibling."""
    top = key.partition(".")[0]
    if top in sys.stdlib_module_names or not ((directory / f"{top}.py").is_file() or _is_package(directory / top)):
        return False
    return top in sys.modules and _home_of(sys.modules[top]) not in (None, directory)


def _is_sibling(key: str, directory: Path, before: dict[str, types.ModuleType]) -> bool:
    top = key.partition(".")[0]
    return top not in before and top in sys.modules and _home_of(sys.modules[top]) == directory


def _is_package(directory: Path) -> bool:
    return (directory / "__init__.py").is_file()


def _home_of(module: types.ModuleType) -> Path | None:
    """The directory in which a top-level module was found."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.has_location and spec.origin else None


# -- failures ----------------------------------------------------------------------------------------------------------


def _user_frames(error: BaseException) -> list[tuple[types.FrameType, int, int]]:
    """The frames of the user's own files, outermost first: frame, line, instruction."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if _is_users(frame.f_code.co_filename):
            frames.append((frame, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    return frames


def _is_users(filename: str) -> bool:
    path = Path(filename)
    return path.is_absolute() and not any(path.resolve().is_relative_to(root) for root in (_PACKAGE, *_LIBRARIES))


def _placed(error: ProblemsError, file: Path) -> ProblemsError:
    """The problems with the place of the call that was refused, or of the argument itself where it can be found."""
    frames = _user_frames(error)
    if not frames:
        return ProblemsError(tuple(problem.at(shown_path(file), None) for problem in error.problems))
    frame, line, instruction = frames[-1]
    where = Path(frame.f_code.co_filename)
    source = "".join(linecache.getlines(str(where)))
    position = _position(frame.f_code, instruction)
    return ProblemsError(
        tuple(
            problem.at(shown_path(where), call_line(source, position, problem.where) or line)
            for problem in error.problems
        )
    )


def _position(code: types.CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    positions = list(code.co_positions())
    index = instruction // 2
    return positions[index] if 0 <= index < len(positions) else (None, None, None, None)


def _failure(error: BaseException, file: Path, purpose: str) -> UserError:
    frames = _user_frames(error)
    places = [f"{shown_path(Path(frame.f_code.co_filename))}:{line}" for frame, line, _ in frames]
    where = places[-1] if places else shown_path(file)
    if isinstance(error, SystemExit):
        return UserError(f"The {purpose} ends the program.", help="Remove the call of sys.exit.", where=where)
    text = str(error)
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    help = f"Reached from {', '.join(reversed(places[:-1]))}." if len(places) > 1 else ""
    if isinstance(error, ModuleNotFoundError) and error.name:
        help = f"Only files beside the {purpose} and installed packages can be imported. {help}".strip()
    elif isinstance(error, ImportError) and error.name == "standfast":
        missing = text.partition("'")[2].partition("'")[0]
        close = difflib.get_close_matches(missing, standfast.__all__, n=1, cutoff=0.5)
        message = f"ImportError: standfast has no name {missing!r}"
        help = f"Did you mean {close[0]!r}? {help}".strip() if close else help
    return UserError(message, help=help, where=where)


def _syntax_error(error: SyntaxError) -> UserError:
    file = shown_path(Path(error.filename)) if error.filename else ""
    line = (error.text or "").strip()
    return UserError(
        f"{type(error).__name__}: {error.msg}",
        help=f"The line reads: {line}" if line else "",
        where=f"{file}:{error.lineno}" if error.lineno else file,
    )
