# SPDX-License-Identifier: Apache-2.0
"""The option `peer_layouts`: a start that is refused where the other side's documents do not fit this server's.

Each worker's half gives its document to vLLM, which hands those of all workers to the scheduler's half: there, on the
host of the engine's core, both sides are known. Whether they fit is the library's to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.logger import init_logger

from kvferry.layout import Layout
from kvferry.plan import Plan
from kvferry.report import Reason, Refused
from kvferry.vllm._options import options_of

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

logger = init_logger(f"vllm.{__name__}")  # below the logger that vLLM sets up

_OPTION = "kvferry: peer_layouts"

#: A document's most (docs/reasons.md, document_size): more is not even read.
_MAX_BYTES = 64 << 20

#: What is said if it fails, who gives, who gets.
_Way = tuple[str, list[Layout], list[Layout]]


@dataclass
class OwnDocument(KVConnectorHandshakeMetadata):
    """A worker's layout document, as JSON, on its way to the scheduler's half."""

    text: str


def own_document(config: KVTransferConfig, layout: Layout) -> OwnDocument | None:
    """What a worker gives to vLLM at its start: nothing, unless it is asked for."""
    return OwnDocument(layout.to_json()) if _folder_of(config) is not None else None


def _folder_of(config: KVTransferConfig) -> str | None:
    return options_of(config).get("peer_layouts")


# --- reasons as text -----------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass
class _Findings:
    """Reasons, each once: those that differ in layer or worker only are one for a person."""

    reasons: dict[str, Reason] = field(default_factory=dict)  # by their texts
    dropped: int = 0

    def take(self, refused: Refused) -> None:
        if not refused.reasons:  # there was no memory for them
            raise refused
        self.reasons.update((str(reason), reason) for reason in refused.reasons)
        self.dropped += refused.dropped

    def kinds(self) -> list[list[Reason]]:
        found: dict[tuple[str, ...], list[Reason]] = {}
        for one in self.reasons.values():
            found.setdefault((one.code, one.stream, one.axis, one.place, one.expected, one.found), []).append(one)
        return list(found.values())

    def text(self, indent: str = "  ") -> str:
        kinds = self.kinds()
        total = f"; {len(self.reasons)} over all layers and workers" if len(kinds) != len(self.reasons) else ""
        lines = [f"({_count(len(kinds), 'reason')}{total}):", *map(_kind_text, kinds)]
        if self.dropped:
            lines.append(f"and {self.dropped} more, of which no details were kept")
        return f"\n{indent}".join(lines)


def _kind_text(kind: Sequence[Reason]) -> str:
    return str(kind[0]) + (f" [and {len(kind) - 1} more of other layers or workers]" if len(kind) > 1 else "")


# --- documents of one side -----------------------------------------------------------------------


def _faults_of(name: str, workers: Sequence[tuple[str, Layout]]) -> Iterable[str]:
    """Why documents, with their places, are not those of all workers of one engine."""
    by_size: dict[str, str] = {}
    by_ranks: dict[str, str] = {}
    for place, layout in workers:
        one = layout.worker
        by_size.setdefault(f"TP {one.tp_size}, PP {one.pp_size}", place)
        ranks = f"dp{one.dp_rank} pp{one.pp_rank} tp{one.tp_rank}"
        if (other := by_ranks.setdefault(ranks, place)) != place:
            yield f"engine {name}: expected one document of worker {ranks}, found {other} and {place}"
    if len(by_size) > 1:
        found = "; ".join(f"{size} in {place}" for size, place in by_size.items())
        yield f"engine {name}: expected workers of one server, found {found}: one of them is of an earlier start"
        return
    engines = len({layout.worker.dp_rank for _, layout in workers})
    wanted = engines * workers[0][1].worker.tp_size * workers[0][1].worker.pp_size
    if len(by_ranks) != wanted:
        yield f"engine {name}: expected the documents of all its {wanted} workers, found {len(by_ranks)}"


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise ValueError("\n  ".join(faults if len(faults) == 1 else [f"{len(faults)} faults:", *faults]))


def _read_file(path: Path) -> Layout:
    """ValueError: it is no layout document."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):  # to open a pipe waits for a writer
            raise ValueError(f"{path}: expected a layout document, found: Not a regular file")
        if found.st_size > _MAX_BYTES:
            raise ValueError(
                f"{path}: expected a layout document of at most {_MAX_BYTES} bytes, found {found.st_size} bytes"
            )
        return Layout.parse(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: expected a layout document, found: {error.strerror}") from None
    except Refused as refused:
        findings = _Findings()
        findings.take(refused)
        raise ValueError(f"{path} is no layout document {findings.text('    ')}") from None


def read_folder(folder: str, own: str = "") -> dict[str, list[Layout]]:
    """The workers of each engine whose documents are there. ValueError: what is wrong with it, all at once.

    Hidden files, those that kvferry is still writing (`.part`), and documents of the engine `own` are none of them.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith(".") and not name.endswith(".part"))
    except OSError as error:
        raise ValueError(f"{folder}: expected a folder of layout documents, found: {error.strerror}") from None
    if not names:
        raise ValueError(f"{folder}: expected a folder of layout documents, found none in it")
    faults: list[str] = []
    engines: dict[str, list[tuple[str, Layout]]] = {}
    for path in (Path(folder, name) for name in names):
        try:
            layout = _read_file(path)
        except ValueError as error:
            faults.append(str(error))
        else:
            engines.setdefault(layout.engine_id, []).append((str(path), layout))
    if engines.pop(own, None) and not engines and not faults:
        faults.append(f"{folder}: expected documents of the other side, found this server's own only, engine {own}")
    if not faults:
        faults += [fault for name, workers in engines.items() for fault in _faults_of(name, workers)]
    _refuse(faults)
    return {name: [layout for _, layout in workers] for name, workers in engines.items()}


def _read_own(metadata: Mapping[tuple[int, int], Any]) -> list[Layout]:
    """Of all workers of this server."""
    own: list[tuple[str, Layout]] = []
    for (pp_rank, tp_rank), given in metadata.items():
        if not isinstance(given, OwnDocument):
            raise ValueError(
                f"expected each worker's layout document, found {type(given).__name__}, another connector's"
            )
        own.append((f"worker pp{pp_rank} tp{tp_rank}", Layout.parse(given.text)))
    if not own:
        raise ValueError("expected each worker's layout document, found none")
    _refuse(list(_faults_of(own[0][1].engine_id, own)))
    return [layout for _, layout in own]


# --- both sides ----------------------------------------------------------------------------------


def _findings(sources: Sequence[Layout], targets: Sequence[Layout]) -> _Findings:
    """What `kvferry check` says of these two engines."""
    findings = _Findings()
    for target in targets:
        try:
            Plan(sources, target)
        except Refused as refused:
            findings.take(refused)
    return findings


def _ways(config: KVTransferConfig, folder: str, own: list[Layout], name: str, peers: list[Layout]) -> Iterable[_Way]:
    here = own[0].engine_id
    if config.is_kv_consumer:
        yield f"engine {name} in {folder} cannot serve this server, engine {here}", peers, own
    if config.is_kv_producer:
        yield f"this server, engine {here}, cannot serve engine {name} in {folder}", own, peers


def check_peers(config: KVTransferConfig, metadata: Mapping[tuple[int, int], Any]) -> None:
    """Ends the start of a server that does not fit the engines whose documents are in the folder of `peer_layouts`.

    metadata: what own_document gave, by stage and TP rank. ValueError: the folder is not what it should be. Refused:
    all reasons why requests between the two sides would fail.
    """
    folder = _folder_of(config)
    if folder is None:
        return
    try:
        own = _read_own(metadata)
        engines = read_folder(folder, own[0].engine_id)
    except ValueError as error:
        raise ValueError(f"{_OPTION}: {error}") from None
    texts: list[str] = []
    reasons: list[Reason] = []
    dropped = 0
    for name, peers in engines.items():
        for said, sources, targets in _ways(config, folder, own, name, peers):
            findings = _findings(sources, targets)
            if findings.reasons:
                texts += [f"{_OPTION}: {said} {findings.text()}"]
                reasons += findings.reasons.values()
                dropped += findings.dropped
    if reasons:
        raise Refused("\n".join(texts), "refused", reasons, dropped)
    counts = ", ".join(f"{name} ({_count(len(peers), 'worker')})" for name, peers in engines.items())
    logger.info("%s: all fits this server, engine %s: %s", _OPTION, own[0].engine_id, counts)
