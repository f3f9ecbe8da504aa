# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half: which tokens, which blocks, and each request once."""

from types import SimpleNamespace

import pytest
import torch
from conftest import ATTENTION, STATE, blocks, cache_config, decode_params, engine, prefill_params, request
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched import scheduler as vllm_scheduler
from vllm.v1.kv_cache_interface import SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

from kvferry.vllm import scheduler as half
from kvferry.vllm.scheduler import Scheduler


def consumer(config):
    return Scheduler(engine("kv_consumer"), config)


def producer(config):
    return Scheduler(engine("kv_producer"), config)


# --- the prompt boundary ------------------------------------------------------------------------------


@pytest.mark.parametrize("embeds", [False, True])
def test_prefill_of_state_drops_the_last_element_once(hybrid, embeds):
    scheduler, one = producer(hybrid), request(33, prefill_params(), embeds=embeds)
    scheduler.on_new_request(one)
    scheduler.on_new_request(one)  # preempted and seen again
    assert one.num_prompt_tokens == 32
    assert one.num_tokens == 32
    assert one.max_tokens == 1
    assert len(one.prompt_embeds if embeds else one.prompt_token_ids) == 32


def test_prefill_of_ids_and_embeddings_drops_the_last_of_both(hybrid):
    """vLLM's workers write what is an id as wide as the ids are: one more ends them."""
    one = Request(
        request_id="r1",
        prompt_token_ids=list(range(33)),
        prompt_embeds=torch.zeros(33, 4),
        prompt_is_token_ids=[index % 3 == 0 for index in range(33)],
        sampling_params=SamplingParams(max_tokens=8, extra_args={"kv_transfer_params": prefill_params()}),
        pooling_params=None,
    )
    producer(hybrid).on_new_request(one)
    lengths = {len(one.prompt_token_ids), len(one.prompt_embeds), len(one.prompt_is_token_ids), one.num_prompt_tokens}
    assert lengths == {32}
    assert one.prompt_is_token_ids == [index % 3 == 0 for index in range(32)]


def test_prefill_of_one_element_drops_nothing(hybrid):
    scheduler, one = producer(hybrid), request(1, prefill_params())
    scheduler.on_new_request(one)
    assert one.num_prompt_tokens == 1


def test_prefill_of_attention_keeps_all(attention):
    scheduler, one = producer(attention), request(33, prefill_params())
    scheduler.on_new_request(one)
    assert one.num_prompt_tokens == 33


def test_prompt_logprobs_are_computed_whole(hybrid):
    scheduler, one = producer(hybrid), request(33, prefill_params(), prompt_logprobs=1)
    scheduler.on_new_request(one)
    assert one.num_prompt_tokens == 33


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize(
    ("tokens", "computed", "wanted"), [(33, 0, 32), (33, 16, 16), (2, 0, 1), (33, 32, 0), (1, 0, 0)]
)
def test_decode_of_state_asks_for_all_but_the_last(hybrid, embeds, tokens, computed, wanted):
    """vllm#47466: the last token is computed anew, and never was part of the state that is loaded."""
    one = request(tokens, decode_params(), embeds=embeds)
    assert consumer(hybrid).get_num_new_matched_tokens(one, computed) == (wanted, wanted > 0)


def test_decode_of_attention_asks_for_all(attention):
    assert consumer(attention).get_num_new_matched_tokens(request(33, decode_params()), 16) == (17, True)


@pytest.mark.parametrize("prefill_drafts", [False, True])
@pytest.mark.parametrize("decode_drafts", [False, True])
def test_a_window_of_draft_layers_does_not_move_the_boundary(prefill_drafts, decode_drafts):
    """Also where one side only drafts: what is asked for is what is offered."""
    window = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.bfloat16, sliding_window=32)

    def side(role, drafts):
        config = engine(role)
        config.speculative_config = SimpleNamespace() if drafts else None
        config.model_config = SimpleNamespace(get_total_num_hidden_layers=lambda: 1)
        return Scheduler(config, cache_config(ATTENTION, *[window] * drafts))

    prefill, decode = side("kv_producer", prefill_drafts), side("kv_consumer", decode_drafts)
    one, other = request(33, prefill_params()), request(33, decode_params())
    prefill.on_new_request(one)
    decode.on_new_request(other)
    assert one.num_prompt_tokens == 33
    assert decode.get_num_new_matched_tokens(other, 0) == (33, True)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_first_stage_may_have_no_layer_of_a_group(drafts):
    """vLLM hands the scheduler what the first stage has. Draft layers are in the last one."""
    config, caches = engine("kv_consumer"), cache_config(ATTENTION)
    config.speculative_config = SimpleNamespace() if drafts else None
    config.model_config = SimpleNamespace(get_total_num_hidden_layers=lambda: 1)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.bfloat16, sliding_window=32)
    caches.kv_cache_groups.append(type(caches.kv_cache_groups[0])([], window))
    decode, arrived = Scheduler(config, caches), request(33, decode_params())
    decode.on_new_request(arrived)
    assert decode.get_num_new_matched_tokens(arrived, 0) == (33 if drafts else 32, True)


# --- what is asked for -----------------------------------------------------------------------------------


def test_tables_begin_at_the_local_hit(hybrid):
    scheduler, one = consumer(hybrid), request(50, decode_params())
    # 16 tokens are here already; a null, the live state block and two of scratch; four blocks of attention
    scheduler.update_state_after_alloc(one, blocks([0, 7, 8, 9], [3, 4, 5, 6]), 33)
    (ask,) = scheduler.build_metadata().asks
    assert ask.tokens == 49
    assert ask.groups == [(0, [7]), (16, [4, 5, 6])]
    assert (ask.engine_id, ask.bootstrap) == ("prefill-0", "http://127.0.0.1:8998")


WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=ATTENTION.dtype, sliding_window=32)


def test_a_window_keeps_its_nulls_in_their_places():
    scheduler, one = consumer(cache_config(ATTENTION, WINDOW)), request(65, decode_params())
    scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4], [0, 0, 5, 6]), 64)
    (ask,) = scheduler.build_metadata().asks
    assert ask.groups == [(0, [1, 2, 3, 4]), (0, [0, 0, 5, 6])]


@pytest.mark.parametrize("caches", [True, False])
@pytest.mark.parametrize("windows", [1, 0])
def test_whole_blocks_of_a_window_are_wanted_where_prefixes_are_cached(caches, windows):
    config = engine("kv_consumer")
    config.cache_config.enable_prefix_caching = caches
    config.speculative_config = None
    config.model_config = SimpleNamespace(get_total_num_hidden_layers=lambda: 2)
    scheduler, one = Scheduler(config, cache_config(ATTENTION, *[WINDOW] * windows)), request(65, decode_params())
    scheduler.on_new_request(one)
    scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4], *[[0, 0, 5, 6]] * windows), 64)
    assert scheduler.build_metadata().asks[0].whole_blocks == bool(caches and windows)


def test_a_window_ends_before_the_element_that_is_computed_again():
    # Loaded whole, a prompt of 64 would have the window's tokens 33 to 63, and vLLM computes token 63 again, which
    # reads token 32 (or, where 32 begins a block, the null block in its place).
    config = cache_config(ATTENTION, WINDOW)
    scheduler, one = consumer(config), request(64, decode_params())
    assert scheduler.get_num_new_matched_tokens(one, 0) == (63, True)
    scheduler.update_state_after_alloc(one, blocks([1, 2, 3, 4], [0, 0, 5, 6]), 63)
    assert scheduler.build_metadata().asks[0].tokens == 63
    # The prefill side would give up the block of token 32, too.
    prefill, one = producer(config), request(64, prefill_params())
    prefill.on_new_request(one)
    assert one.num_prompt_tokens == 63


@pytest.mark.parametrize(("table", "live"), [([5], [5]), ([0, 5, 6, 7], [5]), ([5, 6], [5]), ([], [])])
def test_live_state_block(table, live):
    """vllm#47466: blocks of drafts lie behind the one that has the state."""
    assert half.live_state_block(table, STATE) == live


def test_full_hit_only_releases(hybrid):
    scheduler, one = consumer(hybrid), request(33, decode_params())
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 0)
    (ask,) = scheduler.build_metadata().asks
    assert (ask.groups, ask.tokens) == ([], 0)
    assert scheduler.request_finished(one, ([7], [3])) == (False, None)
    assert scheduler.build_metadata().is_empty()


def test_one_transfer_a_request(hybrid):
    scheduler, one = consumer(hybrid), request(33, decode_params())
    scheduler.on_new_request(one)
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 32)
    assert len(scheduler.build_metadata().asks) == 1
    # vLLM calls again when the load has come, and when the request was preempted
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 0)
    assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 0)
    assert scheduler.build_metadata().is_empty()


def test_new_attention_blocks_are_zeroed_by_vllm(hybrid, attention):
    """vllm#50696, the other way round. Their last block is loaded in part, and a kernel multiplies what lies behind by
    zero: NaN stays NaN."""
    assert consumer(hybrid).wholly_loaded_groups == (0,)
    assert consumer(attention).wholly_loaded_groups == ()


# --- aborts -------------------------------------------------------------------------------------------------


def test_abort_before_it_is_scheduled_releases_the_prefill_side(hybrid):
    scheduler, one = consumer(hybrid), request(33, decode_params())
    scheduler.on_new_request(one)
    one.status = RequestStatus.FINISHED_ABORTED
    assert scheduler.request_finished(one, ([], [])) == (False, None)
    assert scheduler.has_pending_work()
    (ask,) = scheduler.build_metadata().asks
    assert ask.groups == []
    assert not scheduler.has_pending_work()


def test_abort_while_it_loads(hybrid):
    scheduler, one = consumer(hybrid), request(33, decode_params())
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 32)
    scheduler.build_metadata()
    one.status = RequestStatus.FINISHED_ABORTED
    assert scheduler.request_finished(one, ([7], [3])) == (False, None)
    assert scheduler.build_metadata().aborted == ["t1"]


def test_no_abort_once_it_was_loaded(hybrid):
    scheduler, one = consumer(hybrid), request(33, decode_params())
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 32)
    scheduler.build_metadata()
    scheduler.loaded({"r1"})
    scheduler.request_finished(one, ([7], [3]))
    assert scheduler.build_metadata().is_empty()


# --- the prefill side ---------------------------------------------------------------------------------------


def finish(one, tokens, status=RequestStatus.FINISHED_LENGTH_CAPPED):
    one.status = status
    one.num_computed_tokens = tokens


def test_a_prefilled_request_is_expected_then_offered(hybrid):
    scheduler, one = producer(hybrid), request(33, prefill_params())
    scheduler.on_new_request(one)
    assert scheduler.build_metadata().expected == ["t1"]
    finish(one, 32)
    assert scheduler.request_finished(one, ([0, 7, 8, 9], [3, 4])) == (True, None)
    (offer,) = scheduler.build_metadata().offers
    assert (offer.request_id, offer.transfer_id, offer.tokens) == ("r1", "t1", 32)
    assert offer.groups == [(0, [7]), (0, [3, 4])]


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_STOPPED])
def test_a_request_that_ends_otherwise_is_withdrawn(hybrid, status):
    scheduler, one = producer(hybrid), request(33, prefill_params())
    scheduler.on_new_request(one)
    finish(one, 32, status)
    assert scheduler.request_finished(one, ([7], [3, 4])) == (False, None)
    assert scheduler.build_metadata().withdrawn == ["t1"]


def test_preempted_in_its_last_step_is_no_success(attention):
    """vllm#50297: its list of blocks is empty."""
    scheduler, one = producer(attention), request(33, prefill_params())
    scheduler.on_new_request(one)
    finish(one, 33)
    assert scheduler.request_finished(one, ([],)) == (False, None)
    metadata = scheduler.build_metadata()
    assert (metadata.offers, metadata.withdrawn) == ([], ["t1"])


def test_a_state_that_ran_on_is_not_offered(hybrid):
    scheduler, one = producer(hybrid), request(33, prefill_params())
    scheduler.on_new_request(one)
    finish(one, 33)
    assert scheduler.request_finished(one, ([7], [3, 4, 5])) == (False, None)
    assert scheduler.build_metadata().withdrawn == ["t1"]


# --- bad parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"])
def test_a_missing_key_is_counted_and_computed_here(hybrid, missing):
    """Mooncake#4071: the transfer is silently off."""
    params = decode_params()
    del params[missing]
    scheduler, one = consumer(hybrid), request(33, params)
    scheduler.on_new_request(one)
    assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    assert scheduler.stats.data == {"bad_params": 1}


BAD_VALUES = [["t"], 5, {"t": 1}, True, "a\0b", "\ud800", "x" * 335, "\u00e9" * 168]


@pytest.mark.parametrize("value", BAD_VALUES, ids=ascii)
@pytest.mark.parametrize("key", ["transfer_id", "remote_engine_id", "remote_bootstrap_addr"])
def test_what_is_no_text_for_the_wire_is_computed_here(attention, key, value):
    """The client wrote it: an engine outlives any."""
    refused(consumer(attention), request(33, {**decode_params(), key: value}))
    if key == "transfer_id":
        refused(producer(attention), request(33, {**prefill_params(), key: value}))


@pytest.mark.parametrize("params", [["t1"], "t1", 1])
def test_parameters_that_are_no_object_are_computed_here(attention, params):
    one = request(33, params)
    refused(producer(attention), one)
    assert one.kv_transfer_params is None, "vLLM's scheduler looks into them, too"


def test_an_id_may_be_as_long_as_the_wire_has_it(attention):
    scheduler = producer(attention)
    scheduler.on_new_request(request(33, prefill_params("x" * 255)))
    assert scheduler.build_metadata().expected == ["x" * 255]


def refused(scheduler, one):
    """Nothing of it reaches the workers, whatever becomes of it."""
    scheduler.on_new_request(one)
    assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    scheduler.update_state_after_alloc(one, blocks([3, 4, 5]), 0)
    finish(one, 33)
    assert scheduler.request_finished(one, ([3, 4, 5],)) == (False, None)
    assert scheduler.build_metadata().is_empty()
    assert scheduler.stats.data == {"bad_params": 1}


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_vllm_takes_no_notice_of_a_failed_load_that_it_gave_up(policy):
    """An abort is reported as a failed load: vLLM's scheduler looks at those of requests that wait for theirs."""
    waits, gone = (request(33, decode_params(name), name=name) for name in ("waits", "gone"))
    waits.status, gone.status = RequestStatus.WAITING_FOR_REMOTE_KVS, RequestStatus.FINISHED_ABORTED
    scheduler = SimpleNamespace(
        requests={"waits": waits, "gone": gone},
        recompute_kv_load_failures=policy == "recompute",
        failed_recving_kv_req_ids=set(),
    )
    failed = vllm_scheduler.Scheduler._handle_failed_recving(scheduler, {"waits", "gone", "freed"})
    assert failed | scheduler.failed_recving_kv_req_ids == {"waits"}


# --- one id, two requests -----------------------------------------------------------------------------------------


def test_an_id_that_is_loaded_is_not_loaded_for_another_request(attention):
    scheduler, first = consumer(attention), request(33, decode_params())
    scheduler.on_new_request(first)
    scheduler.update_state_after_alloc(first, blocks([3, 4, 5]), 33)
    assert len(scheduler.build_metadata().asks) == 1
    refused(scheduler, request(33, decode_params(), name="r2"))
    first.status = RequestStatus.FINISHED_ABORTED
    scheduler.request_finished(first, ([3, 4, 5],))
    assert scheduler.build_metadata().aborted == ["t1"]
    scheduler.stats.take()
    refused(scheduler, request(33, decode_params(), name="r2"))  # the abort is not reported yet
    scheduler.loaded({"r1"})
    third = request(33, decode_params(), name="r3")
    scheduler.on_new_request(third)
    assert scheduler.get_num_new_matched_tokens(third, 0) == (33, True)


def test_an_id_that_waits_is_not_released_by_another_request(attention):
    scheduler = consumer(attention)
    scheduler.on_new_request(request(33, decode_params()))
    refused(scheduler, request(33, decode_params(), name="r2"))


def test_a_request_that_is_ended_as_it_arrives_is_no_fault(attention):
    """vLLM makes one with the parameters of a request whose client went away (notify_kv_transfer_request_rejected)."""
    scheduler = consumer(attention)
    scheduler.on_new_request(request(33, decode_params()))
    second = request(1, decode_params(), name="r2")
    scheduler.on_new_request(second)
    second.status = RequestStatus.FINISHED_ABORTED
    assert scheduler.request_finished(second, ([],)) == (False, None)
    assert scheduler.build_metadata().is_empty()
    assert scheduler.stats.is_empty()


@pytest.mark.parametrize("offered", [False, True])
def test_an_id_that_is_prefilled_is_not_offered_or_withdrawn_by_another_request(attention, offered):
    scheduler, first = producer(attention), request(33, prefill_params())
    scheduler.on_new_request(first)
    if offered:
        finish(first, 33)
        assert scheduler.request_finished(first, ([3, 4, 5],)) == (True, None)
    scheduler.build_metadata()
    for name, status in (("r2", RequestStatus.FINISHED_ABORTED), ("r3", RequestStatus.FINISHED_LENGTH_CAPPED)):
        twin = request(33, prefill_params(), name=name)
        scheduler.on_new_request(twin)
        assert scheduler.get_num_new_matched_tokens(twin, 0) == (0, False)
        finish(twin, 33, status)
        assert scheduler.request_finished(twin, ([6, 7, 8],)) == (False, None)
        assert scheduler.build_metadata().is_empty()
    assert scheduler.stats.data == {"bad_params": 2}


def test_an_id_is_free_again_when_it_was_sent(attention):
    scheduler, first = producer(attention), request(33, prefill_params())
    scheduler.on_new_request(first)
    finish(first, 33)
    scheduler.request_finished(first, ([3, 4, 5],))
    scheduler.build_metadata()
    scheduler.sent({"r1"})
    scheduler.on_new_request(request(33, prefill_params(), name="r2"))
    assert scheduler.build_metadata().expected == ["t1"]


def test_a_loaded_request_is_not_offered(attention):
    """Only what was accepted for it on arrival is: else a client could have a decode server hold blocks."""
    scheduler, one = consumer(attention), request(33, {**decode_params(), "do_remote_decode": True})
    scheduler.on_new_request(one)
    scheduler.update_state_after_alloc(one, blocks([3, 4, 5]), 33)
    scheduler.loaded({"r1"})
    scheduler.build_metadata()
    finish(one, 33)
    assert scheduler.request_finished(one, ([3, 4, 5],)) == (False, None)
    assert scheduler.build_metadata().is_empty()


def test_roles_are_kept(attention):
    for scheduler, params in ((producer(attention), decode_params()), (consumer(attention), prefill_params())):
        one = request(33, params)
        scheduler.on_new_request(one)
        finish(one, 33)
        assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
        assert scheduler.request_finished(one, ([3, 4, 5],)) == (False, None)
        assert scheduler.build_metadata().is_empty()
        assert scheduler.stats.data == {"bad_params": 1}


def test_requests_without_parameters_are_left_alone(hybrid):
    scheduler, one = producer(hybrid), request(33, None)
    scheduler.on_new_request(one)
    assert scheduler.get_num_new_matched_tokens(one, 0) == (0, False)
    assert scheduler.request_finished(one, ([7], [3])) == (False, None)
    assert scheduler.build_metadata().is_empty()


@pytest.mark.parametrize(
    ("options", "hold", "interval"),
    [({}, "480", 60), ({"lease_ms": 30_000}, "480", 7.5), ({}, "20", 5), ({"lease_ms": 3_600_000}, "20", 60)],
)
def test_leases_are_renewed_while_a_request_waits(hybrid, monkeypatch, options, hold, interval):
    monkeypatch.setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", hold)
    scheduler, one = Scheduler(engine("kv_consumer", **options), hybrid), request(33, decode_params())
    now = 1000.0
    monkeypatch.setattr(half.time, "monotonic", lambda: now)
    scheduler.on_new_request(one)
    for _ in range(3):
        now += interval / 2
        assert scheduler.build_metadata().renewed == []
        now += interval / 2
        assert scheduler.build_metadata().renewed == [half.Renewal("t1", "prefill-0", "http://127.0.0.1:8998")]
    scheduler.update_state_after_alloc(one, blocks([7, 8, 9], [3, 4, 5]), 32)
    now += interval
    assert scheduler.build_metadata().renewed == []
