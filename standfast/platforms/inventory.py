"""What this host has: processors, memory, GPUs."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from standfast.plans.record import NonNegative, Positive, Record
from standfast.values import parse_memory

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Gpu(Record):
    """One GPU. ``index`` is NVML's (PCI bus order), which CUDA shares under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``."""

    index: NonNegative
    uuid: str
    name: str
    memory_bytes: Positive

    def matches(self, wanted: str) -> bool:
        """Whether this is the type ``wanted``: ``any``, or a part of the product name such as ``H100``, in any case."""
        return wanted.lower() == "any" or wanted.lower() in self.name.lower()


class HostInventory(Record):
    """What the control worker may use of its host. ``cpus`` honours the affinity mask, ``memory_bytes`` a cgroup's
    limit.
    """

    host: str
    cpus: Positive
    memory_bytes: Positive
    gpus: tuple[Gpu, ...] = ()


def read_inventory(environment: Mapping[str, str] | None = None) -> HostInventory:
    """Read this host. In ``environment`` (default: the process's own), ``STANDFAST_HOST`` gives it another name, and
    ``STANDFAST_HOST_MEMORY`` (such as ``64GiB``) says how much memory replicas may claim, in place of what there is.

    Blocks for up to a second where NVML has to be loaded. Without NVML, or where it fails, there are no GPUs.
    """
    variables = os.environ if environment is None else environment
    return HostInventory(
        host=variables.get("STANDFAST_HOST") or socket.gethostname(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=parse_memory(variables["STANDFAST_HOST_MEMORY"])
        if "STANDFAST_HOST_MEMORY" in variables
        else min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_memory_limits()]),
        gpus=visible_gpus(_read_gpus(), variables.get("CUDA_VISIBLE_DEVICES")),
    )


def visible_gpus(gpus: tuple[Gpu, ...], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` admits: indexes or UUIDs (also the start of one); like CUDA, stop at the
    first unknown one.
    """
    if visible is None:
        return gpus
    admitted: list[Gpu] = []
    for word in (part.strip() for part in visible.split(",")):
        found = [gpu for gpu in gpus if word and (word == str(gpu.index) or gpu.uuid.startswith(word))]
        if len(found) != 1:
            break
        admitted.append(found[0])
    return tuple(sorted(admitted, key=lambda gpu: gpu.index))


def _memory_limits() -> list[int]:
    limits: list[int] = []
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):
            # No such cgroup version here, or "max": no limit.
            continue
    return [limit for limit in limits if limit > 0]


def _read_gpus() -> tuple[Gpu, ...]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        # No driver, no library or no permission all mean the same here: no GPU can be used.
        return ()
    try:
        return tuple(_read_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
