"""What flows: layouts of padded and packed rows, and batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weft.data.batch import BOS, EOS, PAD, SPECIALS, UNK, Layout, PairBatch, Position, Source, pad, unpad
from weft.errors import ConfigError


def test_padded_rows() -> None:
    layout = Layout.padded([3, 0, 2])
    assert layout.segments.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert layout.positions.tolist() == [[0, 1, 2]] * 3
    assert layout.mask.tolist() == [[True] * 3, [False] * 3, [True, True, False]]
    assert layout.lengths.tolist() == [3, 0, 2]
    assert layout.longest == 3 and not layout.packed


@pytest.mark.parametrize("lengths", [[2, 1], np.array([2, 1]), torch.tensor([2, 1])])
def test_padded_takes_lengths_of_any_sort_and_a_wider_extent(lengths: list[int] | np.ndarray | torch.Tensor) -> None:
    layout = Layout.padded(lengths, extent=4)
    assert layout.segments.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    assert layout.segments.dtype == torch.int32 and layout.positions.dtype == torch.int64
    assert layout.longest == 2


def test_the_host_knows_the_lengths_of_a_layout_it_made_and_asks_for_those_of_selected_rows() -> None:
    layout = Layout.padded([2, 0, 3])
    assert layout.known == layout.counts == (2, 0, 3)
    assert layout.to("cpu").known == (2, 0, 3)
    chosen = layout.select(torch.tensor([2, 0]))
    assert chosen.known is None and chosen.counts == (3, 2)


def test_padded_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="5 tokens does not fit into 4"):
        Layout.padded([5], extent=4)


def test_packed_row() -> None:
    layout = Layout.pack([2, 3, 1], budget=9)
    assert layout.segments.tolist() == [[1, 1, 2, 2, 2, 3, 0, 0, 0]]
    assert layout.positions.tolist() == [[0, 1, 0, 1, 2, 0, 0, 1, 2]]
    assert layout.offsets is not None
    assert layout.offsets[:4].tolist() == [0, 2, 5, 6]
    assert layout.offsets[-1] == 9 and layout.offsets.dtype == torch.int32
    assert (layout.offsets.diff() >= 0).all()
    assert layout.longest == 3 and layout.packed and layout.lengths.tolist() == [6]


def test_the_padding_of_a_packed_row_is_cut_into_pieces_no_longer_than_the_longest_sentence() -> None:
    layout = Layout.pack([2, 3], budget=13)
    assert layout.offsets is not None and layout.offsets.tolist() == [0, 2, 5, 8, 11, 13]
    assert layout.positions[0, 5:].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_packed_rows_of_other_sentences_can_have_the_same_sizes() -> None:
    some, others = (Layout.pack(lengths, 16, longest=4, pieces=9) for lengths in ([2, 3, 1], [4, 4, 4, 3]))
    assert some.offsets is not None and others.offsets is not None
    assert some.offsets.tolist() == [0, 2, 5, 6, 10, 14, 16, 16, 16, 16]
    assert others.offsets.tolist() == [0, 4, 8, 12, 15, 16, 16, 16, 16, 16]
    assert some.longest == others.longest == 4


def test_an_empty_sentence_keeps_its_number() -> None:
    """Numbers are the same in source and target, so a sentence that is empty on one side must not move the others."""
    assert Layout.pack([2, 0, 1], budget=3).segments.tolist() == [[1, 1, 3]]


def test_packed_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="10 tokens do not fit into a packed row of 9"):
        Layout.pack([6, 4], budget=9)


def test_select_picks_rows_of_a_padded_layout() -> None:
    chosen = Layout.padded([3, 1, 2]).select(torch.tensor([2, 2, 0]))
    assert chosen.lengths.tolist() == [2, 2, 3]


def test_a_batch_moves_with_its_layouts() -> None:
    layout = Layout.padded([2, 1])
    tokens = torch.tensor([[5, EOS], [EOS, PAD]])
    batch = PairBatch(torch.tensor([7, 3]), Source(tokens, layout), tokens, Layout.pack([2, 1], 4), tokens)
    moved = batch.to("meta")
    assert moved.source.values.is_meta and moved.rows.is_meta and moved.labels.is_meta
    assert moved.source.layout is not None
    assert moved.source.layout.segments.is_meta and moved.target_layout.positions.is_meta
    assert moved.target_layout.offsets is not None and moved.target_layout.offsets.is_meta
    assert moved.source.layout.longest == 2 and moved.source.layout.offsets is None
    assert not batch.source.values.is_meta


def test_special_ids_are_the_first_four() -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3) and len(SPECIALS) == 4


def test_positions_in_the_stream_are_ordered() -> None:
    assert Position() < Position(0, 0, 1) < Position(0, 1, 0) < Position(1)


def test_padding_is_added_and_taken_away() -> None:
    rows = [[5, 6, EOS], [EOS], [7, EOS]]
    assert unpad(pad(rows, 4), Layout.padded([3, 1, 2], 4)) == rows
    assert pad(rows, 4).shape == (3, 4) and unpad(pad(rows), None)[1] == [EOS, PAD, PAD]


def test_rows_are_repeated_one_after_the_other() -> None:
    graph = torch.rand(2, 3, 3) > 0.5
    layout = Layout.padded([3, 1])
    again = Layout(layout.segments, layout.positions, None, layout.longest, layout.known, graph).repeat(2)
    assert again.counts == (3, 3, 1, 1) == tuple(again.lengths.tolist())
    assert again.graph is not None and torch.equal(again.graph, graph[[0, 0, 1, 1]])
    assert torch.equal(again.positions, layout.positions[[0, 0, 1, 1]])
    tokens = torch.tensor([[5, 6, EOS], [EOS, PAD, PAD]])
    batch = PairBatch(torch.tensor([7, 3]), Source(tokens, layout), tokens, layout, tokens + 1).repeat(2)
    assert batch.rows.tolist() == [7, 7, 3, 3] and torch.equal(batch.target, tokens[[0, 0, 1, 1]])
    assert torch.equal(batch.source.values, batch.target) and torch.equal(batch.labels, batch.target + 1)
    assert batch.target_layout.counts == (3, 3, 1, 1) == (batch.source.layout or layout).counts


def test_a_convolution_shortens_rows_and_refuses_edges() -> None:
    layout = Layout.padded([5, 4, 1])
    short = layout.shorten(2, 4)
    assert short.counts == (3, 2, 1) == tuple(short.lengths.tolist()) and short.longest == 3
    assert short.positions.tolist() == [[0, 1, 2, 3]] * 3 and short.segments[1].tolist() == [1, 1, 0, 0]
    edges = Layout(layout.segments, layout.positions, graph=torch.ones(3, 5, 5, dtype=torch.bool))
    with pytest.raises(ConfigError, match="edges name no positions"):
        edges.shorten(2, 4)


def test_batches_of_one_shape_have_one_outline() -> None:
    def batch(lengths: list[int]) -> PairBatch:
        layout, tokens = Layout.padded(lengths), torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        return PairBatch(torch.arange(len(lengths)), Source(tokens, layout), tokens, layout, tokens)

    assert batch([3, 1]).outline() == batch([3, 1]).outline() != batch([3, 1, 1]).outline()
    assert all(isinstance(each, torch.Tensor) for each in batch([2]).tensors())
