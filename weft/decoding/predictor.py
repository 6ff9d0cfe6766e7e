"""The interface of trained models: a stream of inputs in, one output each, in order.

A task writes a subclass that reads inputs, runs batches and joins their results. Windows, batches by size, worker processes and
cancelling are shared.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from weft.attention.base import View
from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import BOS, EOS, Source, power_of_two
from weft.data.tokenizers import Tokenizer
from weft.decoding.continuous_search import Feed
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.generate import GenerationRequest, Sources, generate
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.search_loop import Cancellation
from weft.decoding.search_methods import SearchResult
from weft.errors import ConfigError, DataError
from weft.models.base import Encoded, Model
from weft.worker_processes import Workers, one_thread

WINDOWS = (8, 40, 168, 680, 2048)
"""Where the windows of inputs that are read at once end: few inputs at first, so that the first output comes soon; then more,
so that batches fill up. From the last number on, each of its multiples is the end of one."""

PLACES = 128
"""The most parts that run side by side in a search whose parts come one by one; on a CPU more would not be faster."""

TOGETHER = (4096,)
"""The same when nobody waits for the first output."""

Weights = NDArray[np.float32]
Ready = Callable[[], bool]
"""Whether the next input can be read without waiting."""
Wanted = Callable[[int], bool]
"""Whether somebody still waits for the output of the input with this number, counted from 0."""


NOT_FINITE = (
    "the numbers that the model computes for this input are not finite (NaN or infinity), so its output means nothing. If this "
    "happens in bf16 or int8, set decode.precision: float32; otherwise the weights may be damaged"
)


def json_number(value: float, digits: int | None = 6) -> float | None:
    """A number for JSON, which has none for NaN and infinity; rounded, if there are `digits`."""
    if not math.isfinite(value):
        return None
    return value if digits is None else round(value, digits)


@dataclass
class Prediction:
    """An output as text.

    score: see the subclass · ids: as the model wrote them, EOS included · tokens, source_tokens: for display · attention:
    weights [heads, tokens, attended tokens] per layer, if the input requests them · uses: what each of these layers
    shows (encoder, causal, cross or target) · alternatives: the rest of the n best.
    """

    text: str
    score: float
    ids: list[int] = field(default_factory=list, repr=False)
    tokens: list[str] = field(default_factory=list, repr=False)
    source_tokens: list[str] = field(default_factory=list, repr=False)
    attention: dict[str, Weights] = field(default_factory=dict, repr=False)
    alternatives: list[Any] = field(default_factory=list, repr=False)
    uses: dict[str, View] = field(default_factory=dict, repr=False)

    def lines(self) -> str:
        """The text as it is written to a file, without the last line end: one line."""
        return " ".join(self.text.splitlines())

    def content(self) -> bytes | None:
        """The bytes of a file with the output, such as a recording; None if it is text."""
        return None

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        plain: dict[str, Any] = {"text": self.text, "score": json_number(self.score), "tokens": self.tokens}
        if self.alternatives:
            plain["alternatives"] = [other.document() for other in self.alternatives]
        return plain


@dataclass(eq=False)
class BatchItem:
    """One row of a batch: an input, or a segment of a long one.

    ids: the tokens to read · number: of the input in its stream, from 0 · length: the positions that it takes, if they are not
    as many as its ids.
    """

    ids: list[int]
    number: int = field(default=0, kw_only=True)
    length: int | None = field(default=None, kw_only=True)

    @property
    def size(self) -> int:
        """Its share of the size of a batch."""
        return len(self.ids) if self.length is None else self.length


def seed_of(content: bytes) -> int:
    """A number that names a source to sampling. It depends only on what is read, not on the batch."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little") >> 1


class ExpectedCost(NamedTuple):
    """The expected cost of a batch item: `rows` computed side by side, for `steps` steps."""

    rows: int
    steps: int


@dataclass(frozen=True)
class TextInput:
    """A line of text. attention: whether to add the weights of the model."""

    text: str
    attention: bool = False


In = TypeVar("In", bound=Hashable)
Out = TypeVar("Out")


class Predictor(ABC, Generic[In, Out]):
    """A trained model that answers inputs.

    Inputs are frozen and hashable: together with the model and the options, an input determines its output, so it can be the
    key of a cache. `warn` receives messages about inputs that are cut or shortened.

    forks: whether batches are spread over worker processes (decode.workers).
    """

    forks: ClassVar[bool] = True

    context_lines: int = 0
    """Lines before an input that are read with it."""

    def __init__(self, model: Any, options: DecodingOptions, warn: Warn | None = None) -> None:
        self.model, self.options, self.warn = model, options, warn or (lambda message: None)
        self._warned = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {type(self.model).__name__} on {self.model.device}, {self.options.search.kind} search>"

    def parse_input(self, line: str, **fields: Any) -> Any:
        """The input for a line of text: the line, unless inputs have `fields` such as prefix.

        `attention` asks for the weights of the model, and is ignored where there are none.
        """
        refuse({name: value for name, value in fields.items() if name != "attention"}, "inputs of this task are plain lines")
        return line

    def arithmetic(self, beams: int | None = None) -> AbstractContextManager[None]:
        """Inference in the chosen precision. beams: competing hypotheses per source; None: as many as the options say."""
        beams = self.options.beams if beams is None else beams
        return self.options.arithmetic(next(self.model.parameters()).dtype, beams)

    def forward(self, *inputs: Any) -> Any:
        """The output of the model, in the chosen precision."""
        with self.arithmetic(1):
            return self.model(*inputs)

    def run_search(self, sources: Sources, request: GenerationRequest) -> SearchResult:
        """The texts of sources in the chosen precision; see `weft.decoding.generate`."""
        with self.arithmetic():
            return generate(self.model, sources, request)

    def sentences(self, text: str) -> list[str]:
        """The parts of a text that are answered, and explained, one by one."""
        return [text]

    def listen(self, sound: Any) -> Iterator[str]:
        """The text of a sound as it comes, in parts, each as soon as no later sound can change it.

        sound: a wav file, a stream of one, or samples [N] between −1 and 1 in pieces, at the rate of the task.
        """
        raise ConfigError("only a run that transcribes can listen to sound as it comes; the task of this one is another")

    @abstractmethod
    def encode_input(self, inputs: Sequence[In], first_line: int) -> list[list[Any]]:
        """The batch items of each input: none if it is blank, several if it is too long.

        Messages count lines from `first_line`.
        """

    @abstractmethod
    def run(self, parts: list[Any], control: Cancellation | None = None) -> list[Any]:
        """The result of each part of a batch. It must not depend on the other parts of the batch."""

    def begin(self, parts: list[Any], control: Cancellation | None = None) -> Callable[[], list[Any]]:
        """Does the part of `run` that needs the device; the returned function does the rest, while another batch may run."""
        results = self.run(parts, control)
        return lambda: results

    def joinable(self, part: Any) -> bool:
        """Whether the options, and what the part asks for, let it join others; a model on another device may do it."""
        return False

    def continuous(self, part: Any) -> bool:
        """Whether `stream` gives the place of a part like this one to another as soon as its result is known."""
        return False

    def stream(self, first: Sequence[Any], feed: Feed[Any]) -> None:
        """Runs these parts, and those of the same group that the feed gives, until it gives none: here in batches."""
        parts = list(first)
        while parts:
            control = Cancellation(len(parts), partial(_wanted, feed, parts), feed.between)
            feed.finish(parts, self.begin(parts, control))
            parts = list(feed.take(self.places))

    @abstractmethod
    def join_outputs(self, given: In, parts: list[Any], results: list[Any]) -> Out:
        """The output of an input, from the results of its parts. There are none if the input is blank or was cancelled."""

    def group(self, part: Any) -> Hashable:
        """Only parts of one group are batched together."""
        return None

    @property
    def rounds(self) -> bool:
        """Whether batches are cut to powers of two, the sizes that recorded searches come in."""
        return False

    @property
    def places(self) -> int:
        """The most parts that run side by side when they come one by one."""
        return PLACES

    @property
    def workers(self) -> int:
        return self.options.workers if self.forks else 1

    @property
    def budget(self) -> int:
        """Source tokens per batch; workers share decode.batch_tokens."""
        return max(1, self.options.batch_tokens // self.workers)

    def expected_cost(self, part: Any) -> ExpectedCost:
        """The expected cost of a part, for a queue that bounds the time of its batches."""
        return ExpectedCost(1, part.size)

    def predict(
        self,
        inputs: Iterable[In],
        *,
        together: bool = False,
        ready: Ready | None = None,
        wanted: Wanted | None = None,
        first_line: int = 1,
        processes: int | None = None,
    ) -> Iterator[Out]:
        """An output for each input, in order. Inputs are read as they are needed, so the stream may be endless.

        together: read many inputs before the first output, which fills batches best. ready: see `Ready`; no output waits for an
        input that is not ready, so slow inputs are answered one by one. wanted: see `Wanted`; the output of an
        input that is no longer wanted is incomplete and must not be kept. Worker processes check it between batches only.
        processes: the most that compute batches, which are cut as for all workers.

        Batches depend on the places of inputs among all lines, so a part of them that begins where a window does, at
        `first_line`, is computed in the batches of the whole.
        """
        stream, ends = iter(inputs), TOGETHER if together else WINDOWS
        start, place = 0, first_line - 1
        count = self.workers if processes is None else min(processes, self.workers)

        def work(batch: list[BatchItem]) -> list[Any]:
            control = None if wanted is None else Cancellation(len(batch), lambda row: wanted(batch[row].number))
            with one_thread() if count < self.workers else nullcontext():
                return self.run(batch, control)

        with Workers(count, work) as workers:
            while window := list(_window(stream, size := _window_size(place, ends), ready)):
                groups = self.encode_input(window, first_line + start)
                for number, parts in enumerate(groups, start=start):
                    for part in parts:
                        part.number = number
                results: dict[BatchItem, Any] = {}
                every = [part for parts in groups for part in parts]
                if self.rounds and len(every) > self.places // 2:
                    # On a GPU a step takes about as long for fewer texts, so none of them should be complete already.
                    flow = ListFeed([part for part in every if self.continuous(part)], wanted)
                    self.stream(flow.take(self.places), flow)
                    results = flow.results
                    every = [part for part in every if part not in results]
                for batch, outputs in workers.run(self._batches(every, wanted)):
                    results.update(zip(batch, outputs, strict=True))
                for given, parts in zip(window, groups, strict=True):
                    # Parts are missing if their input was cancelled before they were run.
                    done = all(part in results for part in parts)
                    output = self.join_outputs(given, parts, [results[part] for part in parts] if done else [])
                    self.check_numbers(output)
                    yield output
                start, place = start + len(window), place + size  # as if inputs that are not ready yet were in this window

    def check_numbers(self, output: Any) -> None:
        """Warns, once, of an output whose score is NaN: no search and no softmax gives one to numbers that are finite."""
        if isinstance(output, Prediction) and math.isnan(output.score) and not self._warned:
            self._warned = True
            self.warn(NOT_FINITE)

    def _batches(self, parts: Sequence[BatchItem], wanted: Wanted | None = None) -> Iterator[list[BatchItem]]:
        """Parts of similar size together, longest first, within the token budget."""
        groups: dict[Hashable, list[BatchItem]] = {}
        for part in sorted(parts, key=lambda part: -part.size):
            groups.setdefault(self.group(part), []).append(part)
        most = -(-len(parts) // self.workers)
        for group in groups.values():
            for batch in self._cut(group, most):
                if kept := [part for part in batch if wanted is None or wanted(part.number)]:
                    yield kept

    def _cut(self, parts: Sequence[BatchItem], most: int) -> Iterator[list[BatchItem]]:
        batch: list[BatchItem] = []
        for part in parts:
            if batch and (batch[0].size * (len(batch) + 1) > self.budget or len(batch) == most):
                # A recorded batch is padded to a power of two, so the surplus is better spent on the next batch.
                size = power_of_two(len(batch) + 1) // 2 if self.rounds else len(batch)
                yield batch[:size]
                batch = batch[size:]
            batch.append(part)
        if batch:
            yield batch


class ListFeed(Feed[BatchItem]):
    """Parts that all wait from the beginning, longest first, and their results."""

    def __init__(self, parts: Sequence[BatchItem], wanted: Wanted | None = None) -> None:
        self._waiting, self._wanted = sorted(parts, key=lambda part: part.size), wanted
        self.results: dict[BatchItem, Any] = {}

    def take(self, room: int) -> list[BatchItem]:
        taken = [self._waiting.pop() for _ in range(min(room, len(self._waiting)))]
        return [part for part in taken if self.wanted(part)]

    def finish(self, parts: Sequence[BatchItem], results: Callable[[], Sequence[Any]]) -> None:
        self.results.update(zip(parts, results(), strict=True))

    def wanted(self, part: BatchItem) -> bool:
        return self._wanted is None or self._wanted(part.number)


class TextPredictor(Predictor[TextInput, Out]):
    """A predictor of lines of text without a search.

    reader: what it reads texts with, such as a tokenizer · no_fields: why its inputs have no prefix, no terms and the like.
    """

    forks = False
    no_fields: ClassVar[str]

    def __init__(self, model: Any, reader: Any, options: DecodingOptions, warn: Warn | None = None) -> None:
        super().__init__(model, options, warn)
        self.reader = reader

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> TextInput:
        refuse(fields, self.no_fields)
        return TextInput(line, attention)


@dataclass(frozen=True)
class MediaInput:
    """A file to write a text about. attention: whether to add attention weights."""

    path: str
    attention: bool = False


class MediaPredictor(Predictor[MediaInput, Prediction], ABC):
    """A predictor that writes a text about a file, such as a picture or a recording. Its score is that of the search.

    tokenizer: that of its texts · noun: what messages call a file.
    """

    noun: ClassVar[str]

    def __init__(self, model: Any, tokenizer: Tokenizer, options: DecodingOptions, warn: Warn | None = None) -> None:
        super().__init__(model, options, warn)
        self.tokenizer = tokenizer
        if isinstance(model, Model):
            options.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        if options.config.n_best > 1:
            options.search.check(["n_best"])

    def parse_input(self, line: str, *, attention: bool = False, **fields: Any) -> MediaInput:
        refuse(fields, f"a {self.noun} has no such field; leave it out")
        return MediaInput(line.strip(), attention)

    def write(self, hypothesis: Hypothesis) -> Prediction:
        ids = hypothesis.tokens
        text = self.tokenizer.decode([token for token in ids if token != EOS])
        return Prediction(text, hypothesis.score, ids, self.tokenizer.tokens(ids))

    def join_outputs(self, given: MediaInput, parts: list[BatchItem], results: list[list[Prediction]]) -> Prediction:
        if not results or not results[0]:
            return Prediction("", 0.0)
        best, *rest = results[0]
        best.alternatives = rest
        return best

    @torch.inference_mode()
    def add_attention(self, written: Prediction, source: Source) -> Encoded:
        """Adds the weights of every layer that has any, and returns what the encoder made of the source."""
        with record(self.model) as recorded:
            encoded: Encoded = self.model.encode(source)
            if isinstance(self.model, Model):
                fed = torch.tensor([[BOS, *written.ids[:-1]]], device=self.model.device)
                self.model.decoder.hidden_states(fed, self.model.decoder.init_state(encoded))
        written.attention, written.uses = first_row(self.model, recorded)
        return encoded


def _window_size(place: int, ends: Sequence[int]) -> int:
    """The size of the window that begins with the input at this place, counted from 0."""
    last = ends[-1]
    return next((end for end in ends if end > place), (place // last + 1) * last) - place


def _window(stream: Iterator[In], most: int, ready: Ready | None) -> Iterator[In]:
    """The next inputs: one, and up to `most` if they are ready."""
    for number, given in enumerate(islice(stream, most), start=1):
        yield given
        if number < most and ready is not None and not ready():
            return


def _wanted(feed: Feed[Any], parts: Sequence[Any], row: int) -> bool:
    return feed.wanted(parts[row])


def refuse(fields: Mapping[str, Any], reason: str) -> None:
    """Raises DataError if a line comes with fields that its predictor does not know."""
    if given := [name for name, value in fields.items() if value]:
        raise DataError(f"{' and '.join(given)}: {reason}")
