"""Counters and histograms in Prometheus' text format (version 0.0.4)."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Durations in seconds, counted into :data:`BUCKETS_S`."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        running = 0
        for bound, count in zip(BUCKETS_S, self.counts, strict=False):
            running += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {running}'
        running += self.counts[-1]
        yield f'{name}_bucket{{{labels},le="+Inf"}} {running}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {running}"


class ModelMetrics:
    """What one served name has seen. ``classes`` counts answers by the first digit of their status."""

    __slots__ = ("classes", "client_gone", "duration", "first_byte", "inflight")

    def __init__(self) -> None:
        self.classes = [0] * 6
        self.client_gone = 0
        self.inflight = 0
        self.first_byte = Histogram()
        self.duration = Histogram()


class Metrics:
    """All counters of one process. Served names come from the routing table only, so that clients cannot make series
    up.
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelMetrics] = {}
        self.faults: dict[tuple[str, str], int] = {}
        self.refusals: dict[str, int] = {}
        self.unrouted = ModelMetrics()

    def of(self, served_name: str) -> ModelMetrics:
        found = self.models.get(served_name)
        if found is None:
            found = self.models[served_name] = ModelMetrics()
        return found

    def fault(self, backend: str, kind: str) -> None:
        """A transport fault of a backend: ``connect``, ``no_response`` (dead or broken before it) or ``cut``."""
        self.faults[backend, kind] = self.faults.get((backend, kind), 0) + 1

    def refuse(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def render(
        self,
        *,
        inflight: Mapping[str, int],
        revision: int,
        table_age_s: float,
        connections: int,
        log_dropped: int,
        gateway: str,
    ) -> bytes:
        """The exposition text. Gauges that live elsewhere are given by the caller."""
        out: list[str] = []

        def family(name: str, kind: str, text: str, samples: Iterable[str]) -> None:
            out.append(f"# HELP {name} {text}")
            out.append(f"# TYPE {name} {kind}")
            out.extend(samples)

        prefix = "standfast_gateway"
        named = [("", self.unrouted), *sorted(self.models.items())]
        labelled = [(f'model="{escape(name)}"', model) for name, model in named]
        family(
            f"{prefix}_requests_total",
            "counter",
            "Answers by served name and status class; model is empty where no route was found.",
            (
                f'{prefix}_requests_total{{{labels},status="{digit}xx"}} {count}'
                for labels, model in labelled
                for digit, count in enumerate(model.classes)
                if count
            ),
        )
        family(
            f"{prefix}_client_gone_total",
            "counter",
            "Requests whose client left before the answer was complete.",
            (f"{prefix}_client_gone_total{{{labels}}} {model.client_gone}" for labels, model in labelled[1:]),
        )
        family(
            f"{prefix}_in_flight",
            "gauge",
            "Open requests by served name.",
            (f"{prefix}_in_flight{{{labels}}} {model.inflight}" for labels, model in labelled[1:]),
        )
        family(
            f"{prefix}_backend_in_flight",
            "gauge",
            "Open requests by backend.",
            (
                f'{prefix}_backend_in_flight{{backend="{escape(backend)}"}} {count}'
                for backend, count in sorted(inflight.items())
            ),
        )
        for name, text, pick in (
            (
                "time_to_first_byte_seconds",
                "From the complete request to the first byte of the answer's body.",
                "first_byte",
            ),
            ("request_duration_seconds", "From the complete request to the last byte of the answer.", "duration"),
        ):
            family(
                f"{prefix}_{name}",
                "histogram",
                text,
                (
                    line
                    for labels, model in labelled[1:]
                    for line in getattr(model, pick).lines(f"{prefix}_{name}", labels)
                ),
            )
        family(
            f"{prefix}_backend_faults_total",
            "counter",
            "Transport faults of backends; 429 and 503 are answers, not faults.",
            (
                f'{prefix}_backend_faults_total{{backend="{escape(backend)}",kind="{kind}"}} {count}'
                for (backend, kind), count in sorted(self.faults.items())
            ),
        )
        family(
            f"{prefix}_refusals_total",
            "counter",
            "Errors that the gateway itself answered with, by code.",
            (
                f'{prefix}_refusals_total{{code="{escape(code)}"}} {count}'
                for code, count in sorted(self.refusals.items())
            ),
        )
        family(f"{prefix}_connections", "gauge", "Open client connections.", [f"{prefix}_connections {connections}"])
        family(
            f"{prefix}_table_revision",
            "gauge",
            "The revision that requests are routed by.",
            [f"{prefix}_table_revision {revision}"],
        )
        family(
            f"{prefix}_table_age_seconds",
            "gauge",
            "Time since the registry last confirmed the routing table.",
            [f"{prefix}_table_age_seconds {table_age_s:.3f}"],
        )
        family(
            f"{prefix}_access_lines_dropped_total",
            "counter",
            "Access lines lost because the reader of the log stalled.",
            [f"{prefix}_access_lines_dropped_total {log_dropped}"],
        )
        family(
            f"{prefix}_info",
            "gauge",
            "Which gateway process answered.",
            [f'{prefix}_info{{gateway="{escape(gateway)}"}} 1'],
        )
        return ("\n".join(out) + "\n").encode()


def escape(label: str) -> str:
    """A label value with backslash, quote and line feed escaped."""
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
