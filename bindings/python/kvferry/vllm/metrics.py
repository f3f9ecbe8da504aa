# SPDX-License-Identifier: Apache-2.0
"""What the connector tells vLLM's own KV connector metrics: log lines and Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Histogram
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)
from vllm.v1.metrics.utils import create_metric_per_engine

#: Observed once per transfer and worker: name -> (Prometheus name, help, buckets).
_SERIES = {
    "sent_seconds": (
        "vllm:kvferry_sent_seconds",
        "From the offer of a prefilled request's blocks to the end of its transfer, per worker.",
        (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 480),
    ),
    "received_seconds": (
        "vllm:kvferry_received_seconds",
        "From asking for a request's cache to having all of it, per worker.",
        (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 120, 480),
    ),
    "sent_bytes": (
        "vllm:kvferry_sent_bytes",
        "Bytes sent for a request, per worker.",
        tuple(4096 * 8**power for power in range(10)),
    ),
    "sent_copies": (
        "vllm:kvferry_sent_copies",
        "Copies (descriptors) that a request took, per worker.",
        tuple(4**power for power in range(11)),
    ),
}

#: Counted: name -> (Prometheus name, help).
_COUNTS = {
    "sends_failed": ("vllm:kvferry_sends_failed", "Offers that ended otherwise than done, but for expired ones."),
    "sends_expired": ("vllm:kvferry_sends_expired", "Offers whose lease ended before they were all sent."),
    "receives_failed": ("vllm:kvferry_receives_failed", "Loads that failed and were reported to vLLM as failed."),
    "receives_aborted": ("vllm:kvferry_receives_aborted", "Loads that were given up since the request had ended."),
    "received_in_part": (
        "vllm:kvferry_received_in_part",
        "Loads without what comes before a window in its first block, since a prefill worker did not hold it: such "
        "blocks leave the prefix cache.",
    ),
    "withdrawn": ("vllm:kvferry_withdrawn", "Prefilled requests that were never offered: aborted or stopped early."),
    "bad_params": ("vllm:kvferry_bad_params", "Requests whose kv_transfer_params cannot be served."),
}


class KvferryStats(KVConnectorStats):
    """Observations since they were last taken. Used by one thread; never raises out of a step."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data or {})

    def observe(self, name: str, value: float) -> None:
        self.data.setdefault(name, []).append(value)

    def count(self, name: str) -> None:
        self.data[name] = self.data.get(name, 0) + 1

    def take(self) -> KvferryStats | None:
        """What was observed, leaving nothing behind; None: nothing."""
        if self.is_empty():
            return None
        data, self.data = self.data, {}
        return KvferryStats(data)

    def reset(self) -> None:
        self.data = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KvferryStats:
        for name, value in other.data.items():
            if isinstance(value, list):
                self.data.setdefault(name, []).extend(value)
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        found: dict[str, int | float] = {}
        for way in ("sent", "received"):
            seconds = sorted(self.data.get(f"{way}_seconds", ()))
            if seconds:
                found[f"{way} requests"] = len(seconds)
                found[f"{way} p50 (ms)"] = round(seconds[len(seconds) // 2] * 1000, 3)
                found[f"{way} max (ms)"] = round(seconds[-1] * 1000, 3)
        if sent := self.data.get("sent_bytes"):
            found["sent MiB"] = round(sum(sent) / 2**20, 3)
            found["sent copies"] = sum(self.data.get("sent_copies", ()))
        for name in _COUNTS:
            if name in self.data:
                found[name.replace("_", " ")] = self.data[name]
        return found


class KvferryPromMetrics(KVConnectorPromMetrics):
    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        histogram, counter = metric_types[Histogram], metric_types[Counter]
        self._series = {
            name: create_metric_per_engine(
                histogram(name=title, documentation=text, buckets=buckets, labelnames=labelnames),
                per_engine_labelvalues,
            )
            for name, (title, text, buckets) in _SERIES.items()
        }
        self._counts = {
            name: create_metric_per_engine(
                counter(name=title, documentation=text, labelnames=labelnames), per_engine_labelvalues
            )
            for name, (title, text) in _COUNTS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._series:
                for each in value:
                    self._series[name][engine_idx].observe(each)
            elif name in self._counts:
                self._counts[name][engine_idx].inc(value)
