"""Bugs of recurrent language models with attention, of the coverage penalty and of noise in the decoder."""

from __future__ import annotations

from tests.contract.planting import Bug

PAST = [
    Bug(
        "the prediction reads the key in place of the third part",
        "attention.key_value",
        '_part("predict", states, 2 * self.query_width)',
        '_part("predict", states, 0, self.site.dim - 2 * self.query_width)',
        (
            "recurrent_language_model: the_model_is_its_equations(predict)",
            "recurrent_language_model: a_decoder_predicts_from_the_third_part_too(luong)",
        ),
    ),
    Bug(
        "a span reaches a state too far",
        "attention.key_value",
        "TokenWindow(2 * self.width + 1, span + 1, causal=True)",
        "TokenWindow(2 * self.width + 1, span + 2, causal=True)",
        ("recurrent_language_model: the_model_is_its_equations(key-value)",),
    ),
    Bug(
        "the parts of an n-gram of states are in the wrong order",
        "models.rnn",
        "(self.window.width, -1)).flip(-2)",
        "(self.window.width, -1))",
        ("recurrent_language_model: the_model_is_its_equations(4-gram)",),
    ),
]

COVERAGE = [
    Bug(
        "more attention than one counts",
        "decoding.length_and_coverage_penalty",
        "clamp(LEAST, 1.0)",
        "clamp_min(LEAST)",
        ("coverage_penalty: a_wide_beam_finds_the_best_of_all_texts(bahdanau)",),
    ),
    Bug(
        "padding of the source is never covered",
        "decoding.length_and_coverage_penalty",
        "share.where(spread(self.real, share.size(0)), 0.0)",
        "share",
        ("coverage_penalty: a_wide_beam_finds_the_best_of_all_texts(transformer)",),
    ),
    Bug(
        "the penalty of another hypothesis",
        "decoding.beam_search",
        "limits.ending.gather(1, parent)",
        "limits.ending.gather(1, 0 * parent)",
        ("coverage_penalty: a_wide_beam_finds_the_best_of_all_texts(transformer)",),
    ),
]

NOISE = [
    Bug(
        "noise in every chain",
        "decoding.noisy_decoding",
        "(state.chain > 0)",
        "(state.chain >= 0)",
        ("noisy_decoding: the_result_is_never_less_probable_than_the_greedy_text",),
    ),
    Bug(
        "every chain has the same noise",
        "decoding.noisy_decoding",
        "chain * 0x3F4A7C15D1B54A33",
        "chain * 0",
        ("noisy_decoding: the_noise_is_normal_and_independent",),
    ),
]
