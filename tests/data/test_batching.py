"""The order of training data, its batches, and the thread that makes them ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.data.batch import BOS, EOS, PAD, Position
from weft.data.batching import Batches, cut_packed, cut_padded, evaluation_batches, permute, prefetch, round_up
from weft.data.corpus import Corpus
from weft.data.formats import open_pairs
from weft.data.sentence_pairs import collate_pairs, prepare_pairs
from weft.data.tokenizers.word_character_byte import ByteTokenizer


def caption_lengths(count: int, seed: int = 0) -> np.ndarray:
    """Lengths like those of translated captions, about 15 tokens a side."""
    draw = np.random.default_rng(seed)
    source = np.exp(draw.normal(2.65, 0.33, count))
    target = source * np.exp(draw.normal(0.03, 0.17, count))
    return np.clip(np.stack([source, target], 1), 2, 60).astype(np.uint16)


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 1000, 4097])
def test_permutation_is_one(count: int) -> None:
    places = np.arange(count, dtype=np.uint64)
    found = permute(places, count, (1, 2))
    assert sorted(found.tolist()) == list(range(count))
    assert (places == np.arange(count)).all()
    pieces = np.concatenate([permute(part, count, (1, 2)) for part in np.array_split(places, 3)])
    assert (pieces == found).all()


def test_permutation_depends_on_its_key_and_mixes() -> None:
    places = np.arange(50_000, dtype=np.uint64)
    orders = [permute(places, 50_000, key).astype(float) for key in ((1, 0), (1, 1), (2, 0))]
    for i, first in enumerate(orders):
        assert abs(np.corrcoef(first, places)[0, 1]) < 0.02
        for second in orders[i + 1 :]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def epoch(batches: Batches, number: int = 0) -> list[np.ndarray]:
    """The batches of one epoch."""
    found = []
    for rows, position in batches.stream(Position(number)):
        found.append(rows)
        if position.epoch > number:
            return found
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [100, 1 << 18])
def test_an_epoch_has_every_row_once_within_the_budget(packed: bool, window: int) -> None:
    lengths = caption_lengths(1234)
    lengths[7] = (1000, 3)
    batches = epoch(Batches(lengths, 512, seed=3, window=window, packed=packed))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1234))
    for rows in batches:
        side = lengths[rows].astype(int)
        used = side.sum(0).max() if packed else len(rows) * side.max()
        assert used <= 512 or rows.tolist() == [7]


@pytest.mark.parametrize("options", [{}, {"packed": True}, {"rounded": True}])
def test_a_batch_may_meet_its_budget_exactly(options: dict[str, bool]) -> None:
    """40 rows of 8 tokens are 5 batches of 64 tokens: none stays a row short."""
    lengths = np.full((40, 2), 8, np.uint16)
    assert [len(rows) for rows in epoch(Batches(lengths, 64, seed=1, **options))] == [8] * 5
    alone = np.full((3, 2), 64, np.uint16)
    assert [len(rows) for rows in epoch(Batches(alone, 64, seed=1, **options))] == [1] * 3


def test_short_rows_fill_up_to_the_budget_of_the_longest() -> None:
    assert cut_padded(np.array([2, 2, 4, 4, 8, 8, 8, 8, 8]), 64).tolist() == [0, 8, 9]
    assert cut_packed(np.array([[3, 1], [3, 5], [2, 2], [1, 1]]), 8).tolist() == [0, 3, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_the_stream_can_be_entered_anywhere(packed: bool) -> None:
    batches = Batches(caption_lengths(1000), 512, seed=1, window=300, packed=packed)
    whole = list(islice(batches.stream(Position()), 200))
    assert whole[-1][1].epoch > 1
    for start in (0, 3, 11, 50, 51, 120, 198):
        rows, position = next(batches.stream(whole[start][1]))
        assert (rows == whole[start + 1][0]).all()
        assert position == whole[start + 1][1]


def test_epochs_seeds_and_order_differ() -> None:
    lengths = caption_lengths(1000)
    first, second = epoch(Batches(lengths, 512, seed=1)), epoch(Batches(lengths, 512, seed=1), 1)
    other = epoch(Batches(lengths, 512, seed=2))
    again = epoch(Batches(lengths, 512, seed=1))
    assert [rows.tolist() for rows in first] == [rows.tolist() for rows in again]
    assert first[0].tolist() != second[0].tolist()
    assert first[0].tolist() != other[0].tolist()
    sizes = [lengths[rows].max() for rows in first]
    assert sizes != sorted(sizes)


def test_other_rows_come_together_in_another_epoch() -> None:
    batches = Batches(caption_lengths(29_000), 4096, seed=1)
    homes = [np.empty(29_000, int) for _ in range(2)]
    for number, home in enumerate(homes):
        for batch, rows in enumerate(epoch(batches, number)):
            home[rows] = batch
    first, second = np.random.default_rng(0).permutation(np.arange(28_990))[:, None], np.arange(1, 10)
    neighbours = homes[0][first] == homes[0][first + second]
    still = neighbours & (homes[1][first] == homes[1][first + second])
    assert still.sum() / neighbours.sum() < 0.35


@pytest.mark.parametrize("budget", [4096, 8192])
def test_padded_batches_are_well_filled(budget: int) -> None:
    lengths = caption_lengths(29_000)
    real = padded = 0
    for rows in epoch(Batches(lengths, budget, seed=1)):
        side = lengths[rows].astype(int)
        real += side.sum()
        padded += len(rows) * side.max(0).sum()
    assert real / padded > 0.9


def test_packed_batches_are_well_filled() -> None:
    lengths = caption_lengths(29_000)
    batches = epoch(Batches(lengths, 4096, seed=1, packed=True))
    assert lengths.sum(dtype=int) / (len(batches) * 2 * 4096) > 0.94


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [f"{'s' * (i % 7 + 1)}{i}\t{'t' * (i % 5 + 1)}{i}" for i in range(50)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n")
    tokenizer = ByteTokenizer()
    return prepare_pairs([open_pairs(str(folder / "pairs.tsv"))], tokenizer, tokenizer, folder=folder, max_length=99)


def test_padded_batch(corpus: Corpus) -> None:
    rows = np.array([13, 2, 40])
    batch = collate_pairs(corpus, rows, packed=False, budget=512)
    assert batch.rows.tolist() == [13, 2, 40]
    assert batch.source.values.dtype == batch.target.dtype == batch.labels.dtype == torch.int64
    for place, row in enumerate(rows):
        source, target = corpus.row("source", row).tolist(), corpus.row("target", row).tolist()
        gap, short = batch.source.values.shape[1] - len(source), batch.target.shape[1] - len(target)
        assert batch.source.values[place].tolist() == source + [PAD] * gap
        assert batch.target[place].tolist() == [BOS, *target[:-1]] + [PAD] * short
        assert batch.labels[place].tolist() == target + [PAD] * short
        assert target[-1] == EOS
    assert batch.source.layout.lengths.tolist() == corpus.lengths[rows][:, 0].tolist()
    assert batch.target_layout.lengths.tolist() == corpus.lengths[rows][:, 1].tolist()
    assert batch.source.values.shape[1] == corpus.lengths[rows][:, 0].max()
    assert not batch.source.layout.packed


def test_a_rounded_batch_is_the_plain_one_filled_up(corpus: Corpus) -> None:
    rows = np.array([13, 2, 40])
    batch, plain = (collate_pairs(corpus, rows, packed=False, budget=512, rounded=rounded) for rounded in (True, False))
    assert batch.source.values.shape == batch.target.shape
    assert batch.source.values.numel() <= 512 < batch.source.values.numel() + batch.source.values.shape[1]
    for mine, theirs in (
        (batch.source.values, plain.source.values),
        (batch.target, plain.target),
        (batch.labels, plain.labels),
    ):
        assert (mine[: len(rows), : theirs.shape[1]] == theirs).all()
        assert int((mine != PAD).sum()) == int((theirs != PAD).sum())
    assert batch.target_layout.lengths.tolist() == [*plain.target_layout.lengths, *[0] * (len(batch.target) - len(rows))]
    assert (batch.target_layout.known, batch.target_layout.longest) == (None, batch.target.shape[1])


def test_rounded_batches_have_few_shapes_and_are_nearly_full() -> None:
    lengths = caption_lengths(20_000)
    batches = epoch(Batches(lengths, 12_288, seed=1, rounded=True))
    extents = [round_up(int(lengths[rows].max())) for rows in batches]
    assert len(set(extents)) <= 14
    assert all(len(rows) * extent <= 12_288 for rows, extent in zip(batches, extents, strict=True))
    assert lengths.max(1).sum() > 0.8 * 12_288 * len(batches)
    assert sorted(np.concatenate(batches).tolist()) == list(range(20_000))


def test_lengths_are_rounded_up_a_little() -> None:
    rounded = {length: round_up(length) for length in range(1, 3000)}
    assert all(length <= room <= max(length + 3, length * 1.25) for length, room in rounded.items())
    assert len(set(rounded.values())) <= 8 + 4 * 7


def test_packed_batch(corpus: Corpus) -> None:
    rows = np.array([13, 2, 40])
    batch = collate_pairs(corpus, rows, packed=True, budget=64)
    sources = [corpus.row("source", row).tolist() for row in rows]
    targets = [corpus.row("target", row).tolist() for row in rows]
    for found, layout, expected in (
        (batch.source.values, batch.source.layout, sources),
        (batch.labels, batch.target_layout, targets),
        (batch.target, batch.target_layout, [[BOS, *ids[:-1]] for ids in targets]),
    ):
        assert found.shape == (1, 64)
        assert layout.packed
        for segment, ids in enumerate(expected, start=1):
            assert found[layout.segments == segment].tolist() == ids
        assert not found[~layout.mask].any()
    alone = collate_pairs(corpus, rows, packed=True, budget=3)
    assert alone.source.values.shape == (1, sum(map(len, sources)))


def test_a_batch_of_one_row(corpus: Corpus) -> None:
    batch = collate_pairs(corpus, np.array([0]), packed=False, budget=1)
    assert batch.source.values.tolist() == [corpus.row("source", 0).tolist()]


def test_evaluation_sees_every_row_once_sorted(corpus: Corpus) -> None:
    batches = list(evaluation_batches(corpus, 60))
    assert sorted(np.concatenate(batches).tolist()) == list(range(50))
    longest = [int(corpus.lengths[rows].max()) for rows in batches]
    assert longest == sorted(longest)
    assert all(len(rows) * corpus.lengths[rows].max() <= 60 for rows in batches)


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_prefetching_keeps_items_and_order(depth: int) -> None:
    assert list(prefetch(iter(range(100)), depth)) == list(range(100))
    assert list(prefetch(iter([]), depth)) == []


class Broken(Exception):
    pass


def breaks(after: int) -> Iterator[int]:
    yield from range(after)
    raise Broken("the reason")


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_prefetching_forwards_errors_in_their_place(depth: int) -> None:
    items = prefetch(breaks(3), depth)
    assert list(islice(items, 3)) == [0, 1, 2]
    with pytest.raises(Broken, match="the reason"):
        next(items)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_prefetching_is_bounded_and_ends_its_thread() -> None:
    made: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield len(made)

    items = prefetch(endless(), 3)
    assert list(islice(items, 5)) == [1, 2, 3, 4, 5]
    assert threads()
    items.close()
    assert not threads()
    assert len(made) <= 5 + 3 + 2
    list(takewhile(lambda n: n < 3, prefetch(iter(range(10)), 2)))
    assert not threads()


def test_positions_of_a_prefetched_stream_are_those_of_its_items(tmp_path: Path) -> None:
    batches = Batches(caption_lengths(500), 512, seed=1)
    plain = [position for _, position in islice(batches.stream(Position()), 30)]
    ahead = prefetch(batches.stream(Position()), 4)
    assert [position for _, position in islice(ahead, 30)] == plain
    ahead.close()
