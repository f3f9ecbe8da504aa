# SPDX-License-Identifier: Apache-2.0
"""One layer's cache spec and view to the streams of a layout document.

What a spec says about sizes is taken, never computed again from types; what a view says about strides is
taken, never derived from sizes. How a page is cut inside is docs/layout-format.md's table; where a backend
is not known to lie so, it is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kvferry.report import Reason
from kvferry.vllm._facts import LayerFacts, ModelFacts, View

Axis = dict[str, Any]
Stream = dict[str, Any]

PAGED, STATE, RING = "paged", "state", "ring"

#: Spec classes by name. A class that is not here, a subclass too, is refused: it may lie otherwise.
KINDS = {
    "FullAttentionSpec": PAGED,
    "SlidingWindowSpec": PAGED,
    "RSWASpec": PAGED,
    "MLAAttentionSpec": PAGED,
    "SlidingWindowMLASpec": PAGED,
    "MambaSpec": STATE,
    "CircularBufferSpec": RING,
}

#: Spec classes that vLLM 0.32 has, and why they are not carried.
UNCARRIED = {
    "ChunkedLocalAttentionSpec": "its blocks are dropped chunk by chunk, which no window says",
    "SinkFullAttentionSpec": "its first blocks are the model's and not the request's",
    "CrossAttentionSpec": "its blocks hold an encoder's states and not the prompt's",
    "HiddenStateCacheSpec": "it is no cache of the model",
    "HiSparseHotSpec": "it is a request's working set",
    "HiSparseResidentSpec": "its blocks are copies of host memory",
    "EncoderOnlyAttentionSpec": "it has no cache",
}

#: Backends whose pages have key, then value, in each cell.
TOKEN_MAJOR = frozenset(
    [
        *("FLASH_ATTN", "FLASH_ATTN_DIFFKV", "FLASHINFER", "TRITON_ATTN", "TRITON_ATTN_DIFFKV"),
        *("FLEX_ATTENTION", "TURBOQUANT", "ULTRAQUANT"),
        *("TRITON_FLASH_ATTN", "TRITON_FLASHINFER"),  # two backends on one cache, written by Triton's
    ]
)
#: Backends whose pages have one state after another (V4's packed ones: data, then scales).
LATENT = frozenset(
    [
        *("FLASH_ATTN_MLA", "FLASHMLA", "FLASHINFER_MLA", "CUTLASS_MLA", "TRITON_MLA", "CPU_MLA"),
        *("FLASHMLA_SPARSE", "FLASH_ATTN_MLA_SPARSE", "FLASHINFER_MLA_SPARSE"),
        *("FLASHINFER_MLA_SPARSE_SM90", "FLASHINFER_MLA_SPARSE_SM120"),
        *("FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4", "CPU_V4_MLA_SPARSE", "DEEPSEEK_SPARSE_SWA"),
        *("FLASHMLA_SPARSE_DSV41", "FLASHINFER_MLA_SPARSE_DSV41", "FLASHMLA_MEGA_ATTN_DSV41"),
    ]
)
#: Backends of sparse indexers: data of all states, then their scales.
INDEXER = frozenset(["DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "DEEPSEEK_V41_INDEXER", "CPU_V4_INDEXER"])
COMPRESSOR = frozenset(["CompressorBackend"])
TAIL = frozenset(["KPOOL_TAIL"])


@dataclass
class Page:
    """A layer on its way into streams. `reasons` collects what does not fit."""

    layer: str
    group: str
    segment: str
    spec: Any
    view: View
    blocks: int
    facts: LayerFacts
    model: ModelFacts
    reasons: list[Reason]
    streams: list[Stream] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return KINDS[type(self.spec).__name__]

    @property
    def ratio(self) -> int:
        """Pages a block: views are of kernel blocks where those are smaller."""
        return self.view.shape[0] // self.blocks

    @property
    def states(self) -> int:
        return self.view.shape[2]

    def refuse(self, code: str, expected: str, found: str, what: str) -> None:
        self.reasons.append(
            Reason(
                code=code,
                layer=self.layer,
                expected=expected,
                found=found,
                message=f"{self.layer}: {what}: expected {expected}, found {found}",
            )
        )

    def add(
        self,
        name: str,
        offset: int,
        cell: int,
        axes: list[Axis],
        dtype: Any,
        form: str = "",
        tokens_per_state: int | None = None,
    ) -> None:
        stream: Stream = {
            "layer": self.layer,
            "name": name,
            "group": self.group,
            "dtype": dtype if isinstance(dtype, str) else dtype_name(dtype),
            "format": form,
            "policy": "optional" if self.facts.draft else "required",
            "segment": self.segment,
            "offset": self.view.offset + offset,
            "pages": self.view.shape[0],
            "page_stride": self.view.strides[0],
            "axes": axes,
            "cell_bytes": cell,
        }
        if self.kind == PAGED:
            stream["page_tokens"] = self.spec.block_size // self.ratio
            stream["tokens_per_state"] = tokens_per_state or self.spec.tokens_per_state
        self.streams.append(stream)

    def tokens(self, stride: int, states: int | None = None) -> Axis:
        return whole("token", self.states if states is None else states, stride)

    def share(self, name: str, local: int, total: int, stride: int) -> Axis:
        """This rank's `local` of `total`, in order of ranks; where these are too few, several ranks hold the same."""
        worker = self.model.worker
        return {
            "name": name,
            "start": worker.tp_rank * total // worker.tp_size // local * local,
            "extent": local,
            "global": total,
            "stride": stride,
        }


def whole(name: str, extent: int, stride: int) -> Axis:
    """An axis that every rank holds all of."""
    return {"name": name, "extent": extent, "stride": stride}


def dtype_name(dtype: Any) -> str:
    """A torch dtype as documents name it."""
    return str(dtype).removeprefix("torch.")


# --- keys and values -----------------------------------------------------------------------------


def _kv_heads(page: Page) -> Axis | None:
    spec, tp_size, total = page.spec, page.model.worker.tp_size, page.facts.kv_heads
    if spec.num_kv_heads != max(1, total // tp_size):
        page.refuse(
            "heads_unfit",
            f"{max(1, total // tp_size)} of the model's {total} KV heads at TP {tp_size}",
            str(spec.num_kv_heads),
            "KV heads of this rank",
        )
        return None
    return page.share("kv_head", spec.num_kv_heads, total, page.view.strides[1])


def _add_kv(page: Page) -> None:
    """Each cell of a page has a key, then the value; or both packed with their scales."""
    spec = page.spec
    heads = _kv_heads(page)
    if heads is None:
        return
    tokens = page.tokens(page.view.strides[2])
    mode = quant_mode(spec)
    key, value = spec.head_size * spec.dtype.itemsize, spec.head_size_v * spec.dtype.itemsize
    if mode in ("none", "fp8_per_tensor") and key + value == spec.state_content_size_bytes:
        form = page.model.fp8 if mode != "none" else ""
        page.add("k", 0, key, [heads, tokens], spec.dtype, form)
        page.add("v", key, value, [heads, tokens], spec.dtype, form)
    else:
        page.add("kv", 0, spec.state_content_size_bytes, [heads, tokens], spec.dtype, mode)


def _add_kv_cpu(page: Page) -> None:
    """CPU attention: of each head first all keys, then all values, in an order of its own."""
    spec, view, size = page.spec, page.view, page.spec.dtype.itemsize
    heads = _kv_heads(page)
    if heads is None:
        return
    if quant_mode(spec) != "none" or spec.head_size != spec.head_size_v:
        page.refuse("backend_unknown", "plain keys and values of one size", quant_mode(spec), "CPU attention")
        return
    dim, keys = spec.head_size, spec.head_size * page.states * size
    if page.facts.isa in ("vec", "vec16"):
        axes = [heads, whole("dim", dim, page.states * size), page.tokens(size)]
        page.add("k", 0, size, axes, spec.dtype)
        page.add("v", keys, dim * size, [heads, page.tokens(dim * size)], spec.dtype)
    elif page.facts.isa == "amx":
        tile = [heads, page.tokens(16 * dim * size, page.states // 16)]
        page.add("k", 0, 16 * dim * size, tile, spec.dtype, "amx", 16)
        pairs = [
            heads,
            whole("dim", dim // 16, 16 * page.states * size),
            page.tokens(32 * size, page.states // 2),
        ]
        page.add("v", keys, 32 * size, pairs, spec.dtype, "amx", 2)
    else:
        page.refuse("backend_unknown", "vec, vec16 or amx", page.facts.isa, "the order of CPU attention's pages")
    if view.strides[2] * page.states != 2 * keys:
        page.refuse("view_unfit", str(2 * keys), str(view.strides[2] * page.states), "bytes of a head in a page")


# --- latents and indexers ------------------------------------------------------------------------


def _add_split(page: Page, name: str, data: int, scale: int, form: str, scale_dtype: str) -> None:
    """A page of states * data bytes, then states * scale.

    A page of several kernel blocks has them one after another, each cut so: then a kernel block is one cell.
    """
    spec, ratio = page.spec, page.spec.tokens_per_state
    tokens = spec.block_size // page.ratio
    kernel = max((size for size in page.facts.kernel_sizes if tokens % size == 0), default=tokens)
    if kernel != tokens:
        _add_opaque(page, name, form, kernel // ratio, kernel)
        return
    page.add(name, 0, data, [page.tokens(data)], spec.dtype, form)
    page.add(f"{name}.scale", page.states * data, scale, [page.tokens(scale)], scale_dtype, form)


def _add_opaque(page: Page, name: str, form: str, states: int, tokens: int) -> None:
    """Runs of so many states that nobody may cut."""
    cell = states * page.spec.state_content_size_bytes
    axis = page.tokens(cell, page.states // states)
    page.add(name, 0, cell, [axis], page.spec.dtype, f"{form}_page{states}", tokens)


def _add_latent(page: Page) -> None:
    spec, cell = page.spec, page.spec.state_content_size_bytes
    cache_dtype = spec.cache_dtype_str or "auto"
    if cache_dtype == "fp8_ds_mla" and spec.model_version == "deepseek_v4":
        _add_split(page, "latent", cell - 8, 8, cache_dtype, dtype_name(spec.dtype))
    elif cache_dtype == "nvfp4_ds_mla":
        _add_opaque(page, "latent", cache_dtype, page.states, page.states * spec.tokens_per_state)
    else:
        form = cache_dtype if cache_dtype == "fp8_ds_mla" else page.model.fp8 if spec.dtype.itemsize == 1 else ""
        page.add("latent", 0, cell, [page.tokens(page.view.strides[2])], spec.dtype, form)


def _add_index(page: Page) -> None:
    """fp8: 4 bytes of scale for 128 of data; mxfp4: 1 for 16. A plain one has whole states."""
    spec, cell = page.spec, page.spec.state_content_size_bytes
    if spec.dtype.itemsize != 1:
        page.add("index", 0, cell, [page.tokens(page.view.strides[2])], spec.dtype)
    elif cell % 33 == 0:
        _add_split(page, "index", cell // 33 * 32, cell // 33, "fp8", "float32")
    elif cell % 17 == 0:
        _add_split(page, "index", cell // 17 * 16, cell // 17, "mxfp4", dtype_name(spec.dtype))
    else:
        page.refuse("view_unfit", "132 or 68 bytes for 128 values", str(cell), "a state of the indexer")


def _add_compressor(page: Page) -> None:
    name = "slot" if page.kind == RING else "token"
    axis = whole(name, page.states, page.view.strides[2])
    page.add("compressor", 0, page.spec.state_content_size_bytes, [axis], page.spec.dtype)


def _add_tail(page: Page) -> None:
    axes = [whole("part", page.view.shape[1], page.view.strides[1]), whole("slot", page.states, page.view.strides[2])]
    page.add("tail", 0, page.spec.state_content_size_bytes, axes, page.spec.dtype)


# --- recurrent state -----------------------------------------------------------------------------


def _add_conv(page: Page, names: tuple[str, ...], local: tuple[int, ...], totals: tuple[int, ...]) -> int:
    """The convolution's projections, side by side; the bytes of all. -1: the shape is another."""
    shape, size = page.spec.shapes[0], page.spec.dtypes[0].itemsize
    channels = sum(local)
    if len(shape) != 2 or channels not in shape:
        page.refuse("view_unfit", f"{channels} channels and rows", str(tuple(shape)), "the convolution's state")
        return -1
    dim_first = shape[0] == channels
    rows = prod(shape) // channels
    channel, row = (rows * size, size) if dim_first else (size, channels * size)
    first = 0
    for name, count, total in zip(names, local, totals, strict=True):
        axes = [page.share("channel", count, total, channel), whole("row", rows, row)]
        if rows:
            page.add(name, first * channel, size, axes, page.spec.dtypes[0])
        first += count
    return channels * rows * size


def _add_gdn(page: Page) -> None:
    """GDN and KDA: q, k and v channels, then a matrix a head; all are cut evenly over the ranks."""
    heads, value, _ = page.spec.shapes[1]
    tp_size = page.model.worker.tp_size
    values = heads * value
    keys = (max(page.spec.shapes[0]) - values) // 2
    local = (keys, keys, values)
    conv = _add_conv(page, ("conv.q", "conv.k", "conv.v"), local, tuple(count * tp_size for count in local))
    _add_ssm(page, conv, "key_value" if page.model.key_value else "")


def _add_mamba2(page: Page) -> None:
    """x channels are cut over the ranks; b and c by groups, or each rank has the only group."""
    heads, dim, state = page.spec.shapes[1]
    worker, groups = page.model.worker, page.model.mamba_groups
    local = (max(page.spec.shapes[0]) - heads * dim) // 2
    each = groups // worker.tp_size if groups % worker.tp_size == 0 else 1 if groups == 1 else 0
    if each == 0 or local != each * state:
        found = f"{local} channels of b for {groups} groups of {state}"
        page.refuse("heads_unfit", "an even share of the groups, or the only one", found, "the convolution of Mamba2")
        return
    totals = (heads * dim * worker.tp_size, groups * state, groups * state)
    conv = _add_conv(page, ("conv.x", "conv.b", "conv.c"), (heads * dim, local, local), totals)
    _add_ssm(page, conv, "")


def _add_ssm(page: Page, offset: int, form: str) -> None:
    if offset < 0:
        return
    heads, *matrix = page.spec.shapes[1]
    cell = prod(matrix) * page.spec.dtypes[1].itemsize
    axis = page.share("head", heads, heads * page.model.worker.tp_size, cell)
    page.add("ssm", offset, cell, [axis], page.spec.dtypes[1], form)


def _add_state(page: Page) -> None:
    spec = page.spec
    kind = getattr(spec.mamba_type, "name", str(spec.mamba_type))
    add: dict[str, Callable[[Page], None]] = {"GDN_ATTN": _add_gdn, "MAMBA2": _add_mamba2}
    if getattr(spec, "tp_replicated", False):
        page.add("state", 0, spec.state_content_size_bytes, [], spec.dtypes[0])
    elif kind not in add or len(spec.shapes) != 2:
        found = f"{kind} with {len(spec.shapes)} states"
        page.refuse("state_unknown", "GDN_ATTN or MAMBA2 with 2 states", found, "recurrent state")
    else:
        add[kind](page)


# --- a layer -------------------------------------------------------------------------------------


def quant_mode(spec: Any) -> str:
    """The spec's quantisation in lower case, "none" if it has none."""
    mode = getattr(spec, "kv_quant_mode", None)
    return getattr(mode, "name", str(mode or "none")).lower()


def content_of(spec: Any, backend: str) -> str:
    """What a cache holds: kv, latent, index, compressor, tail or state; "": not known."""
    kind, name = KINDS.get(type(spec).__name__, ""), type(spec).__name__
    latent = name in ("MLAAttentionSpec", "SlidingWindowMLASpec")
    if kind == STATE:
        return "state"
    if backend in COMPRESSOR and (latent or kind == RING):
        return "compressor"
    if backend in TAIL and kind == RING:
        return "tail"
    if latent:
        return "index" if backend in INDEXER else "latent" if backend in LATENT else ""
    if kind == PAGED and (backend in TOKEN_MAJOR or backend == "CPU_ATTN"):
        return "kv"
    return ""


def _fits(page: Page) -> bool:
    """Whether the view has the spec's sizes: [blocks * ratio, heads, states / ratio, content]."""
    spec, view = page.spec, page.view
    found = f"{view.shape} with strides {view.strides}"
    if len(view.shape) != 4 or page.blocks == 0 or view.shape[0] % page.blocks or page.ratio == 0:
        page.refuse("view_unfit", f"[a multiple of {page.blocks} blocks, heads, states, content]", found, "view")
        return False
    if page.kind == PAGED and (spec.block_size % page.ratio or spec.tokens_per_state != int(spec.tokens_per_state)):
        page.refuse("view_unfit", "whole states and kernel blocks", f"{spec.tokens_per_state} tokens a state", "view")
        return False
    states = spec.num_states // page.ratio
    content = view.shape[3] * view.strides[3]
    expected = (spec.num_heads, states, spec.state_content_size_bytes)
    if (*view.shape[1:3], content) != expected:
        page.refuse("view_unfit", f"heads, states, bytes {expected}", found, "view")
        return False
    if page.kind == PAGED and spec.num_heads != spec.num_kv_heads:
        page.refuse("view_unfit", f"{spec.num_kv_heads} heads", f"{spec.num_heads} head slots", "packed heads")
        return False
    return True


def add_streams(page: Page) -> None:
    """Adds the layer's streams to page.streams, or why not to page.reasons."""
    content = content_of(page.spec, page.facts.backend)
    if not content:
        found = f"{page.facts.backend} for a {type(page.spec).__name__}"
        page.refuse("backend_unknown", "an attention backend whose pages are known", found, "attention backend")
        return
    if not _fits(page):
        return
    add = {
        "kv": _add_kv_cpu if page.facts.backend == "CPU_ATTN" else _add_kv,
        "latent": _add_latent,
        "index": _add_index,
        "compressor": _add_compressor,
        "tail": _add_tail,
        "state": _add_state,
    }
    add[content](page)
