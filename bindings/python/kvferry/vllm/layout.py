# SPDX-License-Identifier: Apache-2.0
"""Layout documents of vLLM workers, from what a live worker hands to its connector.

    python -m kvferry.vllm.layout --model DIR -tp 2 -pp 2

prints those of every worker without weights and without a GPU; docs/vllm.md says how.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvferry.layout import Layout, Worker
from kvferry.report import Reason, Refused
from kvferry.vllm._facts import LayerFacts, ModelFacts, View, is_draft, model_facts, parallel_reasons
from kvferry.vllm._streams import KINDS, PAGED, STATE, UNCARRIED, Page, Stream, add_streams, content_of
from kvferry.vllm._version import TESTED, importing


@dataclass(frozen=True)
class Segment:
    """One storage: what is registered with a transfer engine, once."""

    name: str
    address: int
    bytes: int


@dataclass(frozen=True)
class Described:
    """A worker's document, and what it leaves out: addresses, and which group is which of vLLM's.

    segments are in the document's order; groups[i] is the name of vLLM's transfer group i.
    """

    layout: Layout
    segments: tuple[Segment, ...]
    groups: tuple[str, ...]


# --- groups --------------------------------------------------------------------------------------


def layer_specs(group: Any) -> dict[str, Any]:
    """A group's spec for each of its layers, where vLLM wraps several in one unwrapped.

    Layers that only share another's cache have no spec of their own and get the first's.
    """
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if inner is None:
        return dict.fromkeys(group.layer_names, group.kv_cache_spec)
    first = next(iter(inner.values()), group.kv_cache_spec)
    return {name: inner.get(name, first) for name in group.layer_names}


def first_spec(group: Any) -> Any:
    """A group's spec, also where this stage has none of its layers."""
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return next(iter(inner.values())) if inner else group.kv_cache_spec


def has_window(spec: Any) -> bool:
    """Whether only a window's tokens are wanted. Other specs may have one for kernels only: all of theirs is stored."""
    return type(spec).__name__.startswith("SlidingWindow")


def window_tokens(spec: Any) -> int:
    """A document's window: the tokens before the next one that a request wants, of a spec that has a window. vLLM's own
    counts the token itself. (Some more that it keeps where several modules draft, no layer attends to.)"""
    return int(spec.sliding_window - 1)


def _spec_reasons(config: Any) -> Iterable[Reason]:
    """Spec classes that are not carried, each once."""
    seen = set()
    for group in config.transfer_groups:
        for layer, spec in layer_specs(group).items():
            name = type(spec).__name__
            if name in KINDS or name in seen:
                continue
            seen.add(name)
            why = UNCARRIED.get(name, f"it is none that vLLM {', '.join(TESTED)} has")
            yield Reason(
                code="spec_unknown",
                layer=layer,
                expected=", ".join(KINDS),
                found=name,
                message=f"{layer}: a {name} is not carried: {why}",
            )


def _draft_window_reasons(vllm_config: Any, config: Any) -> Iterable[Reason]:
    """Draft layers' windows that look like the model's own. Without its hybrid manager vLLM keeps one spec for all of a
    group, which has the window of any of its layers; a side that took that for a window of the model would transfer
    one element less than one that does not draft, and so has no window."""
    for group in config.transfer_groups:
        window = getattr(group.kv_cache_spec, "sliding_window", None)
        if not window or has_window(group.kv_cache_spec) or vllm_config.model_config.get_sliding_window():
            continue
        modules = vllm_config.compilation_config.static_forward_context
        drafts = [name for name in group.layer_names if is_draft(name, modules[name], vllm_config)]
        own = [name for name in group.layer_names if name not in drafts]
        windows = (getattr(modules[name].get_kv_cache_spec(vllm_config), "sliding_window", None) for name in own)
        if drafts and own and not any(windows):
            yield Reason(
                code="draft_window",
                layer=drafts[0],
                expected="a window of the model, or none",
                found=str(window),
                message=f"{drafts[0]}: only draft layers have a window, of {window} tokens, and vLLM keeps it for all"
                f" layers of their group, {own[0]} too: expected a server without --disable-hybrid-kv-cache-manager",
            )


def _stem(group: Any, facts: ModelFacts) -> str:
    """What a group is called, before its number."""
    spec = first_spec(group)
    if KINDS[type(spec).__name__] == STATE:
        return facts.state
    backend = next((facts.layers[name].backend for name in group.layer_names if name in facts.layers), "")
    content = content_of(spec, backend)
    if content == "tail":
        return "ring"
    if content == "compressor":
        return content
    if getattr(spec, "sliding_window", None) and not hasattr(spec, "attention_chunk_size"):
        return "swa"
    return "mla" if hasattr(spec, "cache_dtype_str") else "attn"


def _group_names(config: Any, facts: ModelFacts) -> tuple[str, ...]:
    """States and windows are numbered always, others where there are several."""
    stems = [_stem(group, facts) for group in config.transfer_groups]
    names = []
    for index, stem in enumerate(stems):
        numbered = stem in (facts.state, "swa") or stems.count(stem) > 1
        names.append(f"{stem}{stems[:index].count(stem)}" if numbered else stem)
    return tuple(names)


def _group_document(name: str, group: Any) -> dict[str, Any]:
    spec = first_spec(group)
    kind = KINDS[type(spec).__name__]
    document: dict[str, Any] = {"name": name, "kind": kind}
    if kind == PAGED:
        document["block_tokens"] = group.kv_cache_spec.block_size
        if has_window(spec):
            document["window"] = window_tokens(spec)
    return document


# --- streams -------------------------------------------------------------------------------------


def _segment_names(views: Mapping[str, View], layers: Iterable[str]) -> dict[Hashable, str]:
    """A name for each storage, in the order in which layers come."""
    storages = list(dict.fromkeys(views[layer].storage for layer in layers if layer in views))
    if len(storages) == 1:
        return {storages[0]: "kv"}
    return {storage: f"kv{index}" for index, storage in enumerate(storages)}


def _group_streams(
    name: str,
    group: Any,
    views: Mapping[str, View],
    facts: ModelFacts,
    segments: Mapping[Hashable, str],
    blocks: int,
    reasons: list[Reason],
) -> list[Stream]:
    """The streams of a group's layers. A layer with the view of one before is an alias of its streams."""
    streams: list[Stream] = []
    owners: dict[View, list[Stream]] = {}
    for layer, spec in layer_specs(group).items():
        if layer not in views:
            message = f"{layer}: vLLM lists the layer but registered no cache for it"
            reasons.append(
                Reason(code="cache_missing", layer=layer, expected="a tensor", found="none", message=message)
            )
            continue
        view = views[layer]
        if view in owners:
            for stream in owners[view]:
                stream.setdefault("aliases", []).append(layer)
            continue
        page = Page(
            layer=layer,
            group=name,
            segment=segments[view.storage],
            spec=spec,
            view=view,
            blocks=blocks,
            facts=facts.layers.get(layer, LayerFacts()),
            model=facts,
            reasons=reasons,
        )
        add_streams(page)
        owners[view] = page.streams
        streams += page.streams
    return streams


def describe(config: Any, views: Mapping[str, View], facts: ModelFacts, engine_id: str) -> Described:
    """The document of a worker from plain facts.

    config: a KVCacheConfig, or what has its attributes num_blocks and transfer_groups.
    views: of each layer's tensor. Refused: all reasons why the caches cannot be described.
    """
    reasons = list(_spec_reasons(config))
    if reasons:
        raise Refused.of(reasons)
    names = _group_names(config, facts)
    layers = [layer for group in config.transfer_groups for layer in group.layer_names]
    segments = _segment_names(views, layers)
    streams: list[Stream] = []
    for name, group in zip(names, config.transfer_groups, strict=True):
        streams += _group_streams(name, group, views, facts, segments, config.num_blocks, reasons)
    if reasons:
        raise Refused.of(reasons)
    storages = {view.storage: view for view in views.values()}
    found = tuple(
        Segment(name, storages[storage].address, storages[storage].storage_bytes) for storage, name in segments.items()
    )
    document = {
        "format": "kvferry-layout/1",
        "engine_id": engine_id,
        "worker": asdict(facts.worker),
        "identity": asdict(facts.identity),
        "segments": [{"name": segment.name, "bytes": segment.bytes} for segment in found],
        "groups": [_group_document(name, group) for name, group in zip(names, config.transfer_groups, strict=True)],
        "streams": streams,
    }
    return Described(Layout.from_dict(document), found, names)


def document_from_vllm(
    vllm_config: Any,
    kv_cache_config: Any,
    kv_caches: Mapping[str, Any],
    engine_id: str,
    worker: Worker | None = None,
) -> Described:
    """The document of a live worker, for a connector's register_kv_caches.

    vllm_config, kv_cache_config: as the connector was made with; kv_caches: a tensor a layer.
    worker: its ranks, where vllm_config's parallel_config does not say them. Needs vLLM. Refused: all
    reasons why the caches cannot be described; then nothing may be transferred.
    """
    reasons = [
        *parallel_reasons(vllm_config.parallel_config),
        *_spec_reasons(kv_cache_config),
        *_draft_window_reasons(vllm_config, kv_cache_config),
    ]
    if reasons:
        raise Refused.of(reasons)
    specs = {layer: spec for group in kv_cache_config.transfer_groups for layer, spec in layer_specs(group).items()}
    views = {layer: View.from_tensor(kv_caches[layer]) for layer in specs if layer in kv_caches}
    with importing():
        facts = model_facts(vllm_config, specs, worker)
    return describe(kv_cache_config, views, facts, engine_id)


# --- files ---------------------------------------------------------------------------------------


def file_name(layout: Layout) -> str:
    """The name of a worker's file: its engine and ranks."""
    worker = layout.worker
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in layout.engine_id)
    return f"{safe or 'engine'}.dp{worker.dp_rank}pp{worker.pp_rank}tp{worker.tp_rank}.json"


def write_layout(layout: Layout, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Writes a worker's document into `folder`, else into KVFERRY_LAYOUT_DIR; None if neither is given.

    The folder is made if it is not there. The file appears whole or not at all.
    """
    folder = folder or os.environ.get("KVFERRY_LAYOUT_DIR")
    if not folder:
        return None
    path = Path(folder) / file_name(layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        file.write(layout.to_json() + "\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    return path


if __name__ == "__main__":
    from kvferry.vllm._offline import main

    raise SystemExit(main())
