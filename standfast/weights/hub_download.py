"""Downloads one commit of a hub repository. Runs as a script with the control plane's Python.

``python -P hub_download.py REPO COMMIT DIRECTORY`` prints one JSON object a line: ``{"total_bytes", "files"}`` once
the listing is known, and at the end ``{"done": [[name, size], ...]}`` or ``{"kind", "message", "help"}``. It is a
process of its own so that a cancelled fetch can be ended. Files that are complete in DIRECTORY are kept; so a download
that was cut off goes on where it was, file by file.
"""

import errno
import json
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

_OTHER_FRAMEWORKS = (".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite", ".mlmodel", ".mlpackage")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_OTHER_FOLDERS = ("onnx/", "openvino/", "coreml/", "original/")


def wanted(names: Collection[str]) -> list[str]:
    """The files of a repository that an engine reads: one format of the weights, and all that is not weights."""
    has_safetensors = any(name.endswith(".safetensors") and not name.startswith(_OTHER_FOLDERS) for name in names)
    dropped = _OTHER_FRAMEWORKS + ((*_PICKLED, ".gguf") if has_safetensors else ())
    folders = _OTHER_FOLDERS if has_safetensors else _OTHER_FOLDERS[:3]
    return sorted(name for name in names if not name.endswith(dropped) and not name.startswith((*folders, ".git")))


def explain(error: BaseException, repo: str, revision: str) -> dict[str, str]:
    """What a failure of ``huggingface_hub`` means: ``{"kind", "message", "help"}``."""
    from huggingface_hub import errors

    cause: BaseException | None = error
    while isinstance(cause, errors.LocalEntryNotFoundError):
        cause = cause.__cause__ or cause.__context__
    error = cause or error
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return _permanent("HF_HUB_OFFLINE is set, so the hub was not asked.", "Unset it where the stack runs.")
    if isinstance(error, errors.GatedRepoError):
        return _permanent(
            f"Access to {repo} on the hub is restricted.",
            "Accept its terms on its page there, and set HF_TOKEN where the stack runs to a token that may read it.",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return _permanent(f"{repo} has no revision {revision!r} on the hub.", "Correct HubSource(revision=...).")
    if isinstance(error, errors.RepositoryNotFoundError | errors.DisabledRepoError) or status in (401, 403, 404):
        return _permanent(
            f"The hub has no repository {repo}, or the token in use may not read it (HTTP {status}).",
            "Correct Model.id or HubSource(repo=...); for a private one, set HF_TOKEN where the stack runs.",
        )
    if isinstance(error, errors.HFValidationError):
        return _permanent(f"{repo!r} is not the name of a repository.", "Write owner/name.")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _permanent("The disk is full.", "Free some space, then deploy again.")
    if isinstance(error, PermissionError):
        return _permanent(f"{error.filename} may not be written.", "Give the stack's user access.")
    said = f"HTTP {status}" if status is not None else f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return {"kind": "transient", "message": f"The hub could not be reached for {repo} ({said}).", "help": ""}


def _permanent(message: str, help: str) -> dict[str, str]:
    return {"kind": "permanent", "message": message, "help": help}


def download(repo: str, commit: str, directory: Path) -> list[tuple[str, int]]:
    """Bring the files of one commit into ``directory``; returns their names and sizes."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.hf_api import RepoFile

    listing = HfApi().list_repo_tree(repo, recursive=True, revision=commit)
    sizes = {entry.path: entry.size for entry in listing if isinstance(entry, RepoFile)}
    files = {name: sizes[name] for name in wanted(sizes)}
    _tell({"total_bytes": sum(files.values()), "files": len(files)})
    _remove_remains(directory, files)
    # The names are patterns there; brackets are the way to write a special character literally.
    literal = [name.translate({ord(mark): f"[{mark}]" for mark in "[*?"}) for name in files]
    if files:
        snapshot_download(repo, revision=commit, local_dir=directory, allow_patterns=literal)
    wrong = [name for name, size in files.items() if _size(directory / name) != size]
    if wrong:
        raise ConnectionError(f"{wrong[0]} was not delivered whole")
    shutil.rmtree(directory / ".cache", ignore_errors=True)
    return sorted(files.items())


def _remove_remains(directory: Path, files: dict[str, int]) -> None:
    """Remove what a download that was cut off left, and files that were cut short since."""
    for remains in directory.glob(".cache/huggingface/download/**/*.incomplete"):
        remains.unlink()
    for name, size in files.items():
        if _size(directory / name) not in (size, None):
            (directory / name).unlink()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main(repo: str, commit: str, directory: str) -> int:
    """Run as a script; see the module's text."""
    try:
        _tell({"done": download(repo, commit, Path(directory))})
    except Exception as error:
        _tell(explain(error, repo, commit))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
