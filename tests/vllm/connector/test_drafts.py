# SPDX-License-Identifier: Apache-2.0
"""Which layers draft, by the names that the installed vLLM's draft models give to their layers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import ATTENTION
from vllm.model_executor.models.registry import _SPECULATIVE_DECODING_MODELS, ModelRegistry
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

from kvferry.report import Refused
from kvferry.vllm._facts import _FROM_ZERO, _WRAPPED, is_draft
from kvferry.vllm.layout import document_from_vllm

LAYERS = 32

# The first cached layer of each, for a model of LAYERS layers. Most go on where its layers end.
NAMES = {
    "model.layers.32.self_attn.attn": """
        EagleCohereForCausalLM EagleLlamaForCausalLM EagleLlama4ForCausalLM DFlashDraftModel LiLiCorrDraftModel
        DFlash2DraftModel MuseGlimmerAssistantModel DFlashMuseGlimmerAssistantModel Qwen3DSparkModel
        Qwen3OmniDSparkModel K3DSparkModel DFlashLagunaForCausalLM PEagleDraftModel PeagleLlamaForCausalLM
        Eagle3LlamaForCausalLM Eagle3MiniMaxM2ForCausalLM LlamaForCausalLMEagle3 Eagle3Qwen2_5vlForCausalLM
        Eagle3Qwen3vlForCausalLM Eagle3Qwen3ForCausalLM PeagleQwen3ForCausalLM EagleMistralForCausalLM
        EagleDeepSeekMTPModel Eagle3DeepseekV2ForCausalLM Eagle3DeepseekV3ForCausalLM""",
    "layers.32.self_attn.attn": "EagleMistralLarge3ForCausalLM",
    "model.layers.32.attn.swa_cache": "DSparkDraftModel DSparkV41DraftModel DeepSeekV4MTPModel",
    "model.layers.32.mtp_block.self_attn.attn": """
        MiMoMTPModel DeepSeekMTPModel DeepseekV32MTPModel Dots3NoteMTPModel BailingMoeV3MTPModel BailingMoeV25MTPModel
        ErnieMTPModel LongCatFlashMTPModel Glm4MoeMTPModel Glm4MoeLiteMTPModel GlmOcrMTPModel Glm5NextMTPModel
        OpenPanguMTPModel Step3p5MTP HYV3MTPModel HYV4MTPModel KimiK3MTPModel""",
    "model.eagle_layers.32.self_attn.attn": "EagleMiniCPMForCausalLM",
    "cache_only_layers.32": "ExtractHiddenStatesModel",
    "mtp.layers.0.self_attn.attn": """
        ExaoneMoeMTP Exaone4_5_MTP NemotronHMTPModel Qwen3NextMTP Qwen3_5MTP Qwen3_5MoeMTP InternS2MobiusMTP""",
    "mtp.layers.32.self_attn.attn": "Qwen4ExpMTP",
    "model.mtp.layers.0.self_attn.attn": "MiMoV2MTPModel MiMoV2OmniMTPModel",
    "draft_model.layers.0.self_attn.attn": "Gemma4MTPModel",
    "model.layers.0.transformer_block.attn": "InklingMTPModel",
    "model.layers.0.self_attn.attn": "MiniMaxM3MTP Gemma4DSparkModel",
    "": "MedusaModel",  # has no cache
}
DRAFTS = {model: name for name, models in NAMES.items() for model in models.split()}


# With images, which puts "language_model." in front of its layers' names, and without.
WRAPPED = {"Gemma4DSparkModel": "Gemma4ForConditionalGeneration"}
PLAIN = {"MiniMaxM3MTP": "MiniMaxM3SparseForCausalLM", "Gemma4DSparkModel": "Gemma4ForCausalLM"}


def config(draft=None, speculative=True, own=None):
    own = own or WRAPPED.get(draft, "MiniMaxM3SparseForConditionalGeneration")
    model = SimpleNamespace(get_total_num_hidden_layers=lambda: LAYERS, architecture=own)
    drafts = SimpleNamespace(draft_model_config=SimpleNamespace(architectures=[draft]) if draft else None)
    return SimpleNamespace(model_config=model, speculative_config=drafts if speculative else None)


def test_every_draft_model_of_vllm_is_known():
    assert set(DRAFTS) == set(_SPECULATIVE_DECODING_MODELS)


@pytest.mark.parametrize("model", [model for model, name in DRAFTS.items() if name])
def test_their_layers_draft(model):
    assert is_draft(DRAFTS[model], None, config(model))
    assert not is_draft(DRAFTS[model], None, config(model, speculative=False))


def test_a_whole_model_that_drafts():
    assert is_draft("draft_model.model.layers.0.self_attn.attn", None, config("LlamaForCausalLM"))


@pytest.mark.parametrize("model", [None, *DRAFTS])
def test_those_of_the_model_itself_do_not(model):
    for name in (
        "language_model.model.layers.0.self_attn.attn",
        "language_model.model.layers.31.self_attn.attn",
        "model.decoder.layers.31.self_attn.0.attn",
        "model.layers.1.linear_attn" if DRAFTS.get(model) != "model.layers.0.self_attn.attn" else "model.norm",
    ):
        assert not is_draft(name, None, config(model)), name


@pytest.mark.parametrize("draft", PLAIN)
def test_those_of_a_model_without_images_do_not_though_a_draft_counts_from_0(draft):
    for layer in (0, 3, LAYERS - 1):
        assert not is_draft(f"model.layers.{layer}.self_attn.attn", None, config(draft, own=PLAIN[draft]))
    assert is_draft(f"model.layers.{LAYERS}.self_attn.attn", None, config(draft, own=PLAIN[draft]))
    for unknown in ("", "SomeModel"):
        own = SimpleNamespace(get_total_num_hidden_layers=lambda: LAYERS, architecture=unknown)
        other = SimpleNamespace(model_config=own, speculative_config=config(draft).speculative_config)
        assert not is_draft("model.layers.0.self_attn.attn", None, other)


def test_the_models_whose_layers_have_a_prefix_are_vllms():
    assert set(PLAIN) == _FROM_ZERO
    assert set(ModelRegistry.get_supported_archs()) >= _WRAPPED


def test_a_module_that_vllm_marks_drafts_whatever_its_name():
    assert is_draft("model.layers.0.attn", SimpleNamespace(is_draft_layer=True), config(speculative=False))


@pytest.mark.parametrize(
    ("own", "draft", "configured", "refused"),
    [
        (None, 64, None, True),
        (64, 64, None, False),  # of this stage's own layers
        (None, 64, 64, False),  # of another stage's
        (None, None, None, False),
    ],
)
def test_a_window_that_only_drafts_have_and_all_layers_get_is_refused_at_start(own, draft, configured, refused):
    """As vLLM groups layers with --disable-hybrid-kv-cache-manager."""
    specs = {
        "model.layers.0.attn": replace(ATTENTION, sliding_window=own),
        "mtp.layers.0.attn": replace(ATTENTION, sliding_window=draft),
    }
    group = KVCacheGroupSpec(list(specs), type(ATTENTION).merge(list(specs.values())))
    vllm_config = config("Qwen3_5MTP")
    vllm_config.parallel_config = None
    vllm_config.model_config.get_sliding_window = lambda: configured
    vllm_config.compilation_config = SimpleNamespace(
        static_forward_context={
            name: SimpleNamespace(get_kv_cache_spec=lambda _, spec=spec: spec) for name, spec in specs.items()
        }
    )
    caches = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[group])
    # Without tensors there is nothing to describe: what comes next fails for other reasons.
    with pytest.raises(Refused if refused else AttributeError) as caught:
        document_from_vllm(vllm_config, caches, {}, "engine")
    if refused:
        (reason,) = caught.value.reasons
        assert (reason.code, reason.layer, reason.found) == ("draft_window", "mtp.layers.0.attn", "64")
        assert "model.layers.0.attn too: expected a server without --disable-hybrid" in reason.message
