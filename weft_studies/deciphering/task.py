"""Deciphering: half of a text as it is and the other half in a cipher, without pairs; learnt by CipherGAN.

Shapes: P places after which the cipher repeats · V symbols of the vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from weft.config.registry import Among
from weft.data.batch import UNK, pad
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.predictor import BatchItem, Prediction, Predictor
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError
from weft.evaluation.metrics import Counts, Metric
from weft.explain.explanation import shown
from weft.explain.html_page import image
from weft.models.base import Network, Sizes
from weft.models.encoder_decoder import build_model
from weft.tasks.base import LOSS, Loss, Measure, TaskContext, TaskInfo
from weft_studies.deciphering.cipher_gan import AdversarialLoss as Losses
from weft_studies.deciphering.cipher_gan import (
    CipherGan,
    GeneratorOutput,
    Tables,
    discriminator_loss,
    generator_loss,
    replay_fakes,
    straight_through_sample,
)
from weft_studies.deciphering.data import (
    SIDES,
    Alphabet,
    CipherBatch,
    CipherTexts,
    Kind,
    Split,
    check_tokenizer,
    compare_frequencies,
    windows,
)


def count_pairs(texts: NDArray[np.int64], symbols: int) -> NDArray[np.int64]:
    """How often each symbol [V] is followed by each other one [V] in texts [B, T]."""
    pairs = texts[:, :-1] * symbols + texts[:, 1:]
    return np.bincount(pairs.ravel(), minlength=symbols * symbols).reshape(symbols, symbols)


def divergence(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """The Jensen–Shannon divergence of two distributions, given as counts, in bits: 0 if they are equal, at most 1."""
    first, second = one / max(1, one.sum()), other / max(1, other.sum())
    middle = (first + second) / 2

    def bits(chances: NDArray[np.float64]) -> float:
        some = chances > 0
        return float((chances[some] * np.log2(chances[some] / middle[some])).sum())

    return (bits(first) + bits(second)) / 2


class SymbolAccuracy(Metric):
    """The share of symbols that are right, place by place; places where the reference has `unknown` do not count.

    separator: what stands between symbols; nothing if each character is one.
    """

    name = "accuracy"

    def __init__(self, separator: str, unknown: str) -> None:
        self.separator, self.unknown = separator, unknown

    @property
    def signature(self) -> str:
        return f"symbols:{'words' if self.separator else 'characters'}|unknown:not counted"

    def units(self, text: str) -> Sequence[str]:
        return text.split(self.separator) if self.separator else list(text)

    def count(self, hypotheses: Sequence[str], references: Sequence[str]) -> Counts:
        rows = []
        for ours, theirs in zip(map(self.units, hypotheses), map(self.units, references), strict=True):
            counted = [n for n, unit in enumerate(theirs) if unit != self.unknown]
            rows.append([sum(n < len(ours) and ours[n] == theirs[n] for n in counted), len(counted)])
        return np.array(rows, np.float64).reshape(-1, 2)


class DecipheringPredictor(Predictor[str, Prediction]):
    """A model that deciphers. A long text is read in windows of `extent` symbols. `score` is the log-probability of the text.

    period: places after which the cipher repeats.
    """

    forks = False

    def __init__(
        self,
        model: Network,
        resolved: DecodingOptions,
        alphabet: Alphabet,
        extent: int,
        warn: Warn | None = None,
        *,
        period: int = 1,
    ) -> None:
        super().__init__(model, resolved, warn)
        self.alphabet, self.extent, self.period = alphabet, extent, period

    def encode_input(self, inputs: Sequence[str], first_line: int) -> list[list[BatchItem]]:
        texts = [self.alphabet.read(line) for line in inputs]
        return [[BatchItem(text[at : at + self.extent]) for at in range(0, len(text), self.extent)] for text in texts]

    def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[tuple[list[int], float]]:
        with self.arithmetic(1):
            logits = self.model.solve(pad([part.ids for part in parts]).to(self.model.device)).float()
        best = logits.log_softmax(-1).max(-1)
        return [
            (predicted[: part.size], sum(scores[: part.size]))
            for predicted, scores, part in zip(best.indices.tolist(), best.values.tolist(), parts, strict=True)
        ]

    def join_outputs(self, given: str, parts: list[BatchItem], results: list[tuple[list[int], float]]) -> Prediction:
        symbols = [symbol for predicted, _ in results for symbol in predicted]
        tokens, read = (self.alphabet.tokens(some) for some in (symbols, [symbol for part in parts for symbol in part.ids]))
        score = sum(score for _, score in results)
        return Prediction(self.alphabet.write(symbols), score, [symbol + UNK for symbol in symbols], tokens, read)

    @torch.no_grad()
    def mapping(self) -> Tensor:
        """How the model reads each symbol of the cipher [P, V, V]: probabilities of plain symbols, the mean over all places
        of a text that have the same key."""
        size = len(self.alphabet.units)
        every = torch.arange(size, device=self.model.device)[:, None].expand(-1, self.extent)
        chances: Tensor = self.model.solve(every).softmax(-1).cpu()
        return torch.stack([chances[:, place :: self.period].mean(1) for place in range(self.period)])


JUDGES: dict[str, Any] = {"kind": "adam", "betas": [0.0, 0.9], "factor": 0.1}
"""Discriminators learn more slowly than the tables of generators."""


class DecipheringTask(CipherTexts):
    """Learns a cipher from half of the windows of a text as they are, and the other half in the cipher.

    Texts are cut into windows, and each window is enciphered from its first symbol on. Two scores of a validation need no key:
    the loss is that of the way through both generators and back, and the divergence compares pairs of neighbouring symbols in
    deciphered and plain text. The accuracy is measured with the key.

    cipher: shift; vigenere: shifts in turn; substitution: any permutation of the symbols
    key: the shifts; of a substitution, its random seed
    extent: symbols of a window, a multiple of the numbers of the key
    split: halves: the first half of the windows is plain; alternate: every other one, so that both are texts of one kind
    spread: tables begin with pairs of symbols whose logarithms of frequencies differ by about this; 0: at random
    loss: of generators and discriminators
    draws: whether discriminators see symbols that are drawn from the generators' probabilities, or the probabilities themselves
    cycle_weight: weight of the way through both generators and back, which grows from 0
    cycle_steps: updates until it has its full weight
    penalty: weight of the gradient penalty of the discriminators
    judges: optimiser of the discriminators
    pool: fakes of earlier updates that discriminators are shown again, 50 in the paper; 0: none
    """

    info = TaskInfo(
        commands=('weft predict {run} "a text in the cipher"', "weft evaluate {run} --data TEXT"),
        count_unit="texts",
        inference_kind="forward",
    )
    measures = (Measure("accuracy", "accuracy"), Measure("divergence", "divergence", higher_is_better=False), LOSS)

    def __init__(
        self,
        context: TaskContext,
        *,
        cipher: Kind = "shift",
        key: list[NonNegativeInt] = [3],  # noqa: B006
        extent: PositiveInt = 100,
        split: Split = "halves",
        spread: NonNegativeFloat = 0.5,
        loss: Losses = "wasserstein",
        draws: bool = True,
        cycle_weight: NonNegativeFloat = 5.0,
        cycle_steps: PositiveInt = 2000,
        penalty: NonNegativeFloat = 10.0,
        judges: Annotated[dict[str, Any], Among("weft.training:OPTIMIZERS")] = JUDGES,
        pool: NonNegativeInt = 0,
    ) -> None:
        super().__init__(context)
        check_tokenizer(self.config.data.tokenizer)
        if not key or (cipher != "vigenere" and len(key) > 1):
            raise ConfigError(f"task.key: {key}: give one number, or with task.cipher: vigenere at least one")
        if extent % len(key):
            raise ConfigError(f"task.extent: {extent} is not a multiple of the {len(key)} numbers of task.key")
        self.kind, self.key, self.extent, self.split = cipher, key, extent, split
        self.loss, self.draws, self.cycle_weight, self.penalty, self.pool = loss, draws, cycle_weight, penalty, pool
        self.cycle_steps, self.judges, self.spread = cycle_steps, judges, spread
        self.info = replace(self.info, fixed_length=extent)
        self._pools: dict[str, Tensor] = {}

    def build(self, spec: Mapping[str, Any], sizes: Sizes) -> Network:
        model = build_model(spec, sizes)
        if not isinstance(model, CipherGan):
            raise ConfigError("model.kind: the task deciphering needs two generators and discriminators; use cipher_gan")
        if model.places % len(self.key) or model.places > self.extent:
            allowed = f"a multiple of the length of task.key ({len(self.key)}), at most task.extent ({self.extent})"
            raise ConfigError(f"model.places: {model.places}: set it to {allowed}")
        if self.spread and isinstance(model.encipher, Tables) and hasattr(self, "train"):
            plain, hidden = (windows(self.train, rows, self.extent) for rows in self.sides)
            likely = compare_frequencies(plain, self.cipher(hidden), len(self.symbols), model.places, self.spread)
            model.begin(likely)
        return model

    def parameters(self, model: CipherGan) -> dict[str, list[nn.Parameter]]:
        return {"model": model.writers(), "discriminator": model.judges()}

    def optimizers(self) -> Mapping[str, Mapping[str, Any]]:
        return {"discriminator": self.judges}

    def predictor(self, model: Network, resolved: DecodingOptions, warn: Warn | None = None) -> DecipheringPredictor:
        return DecipheringPredictor(model, resolved, self.alphabet, self.extent, warn, period=len(self.cipher.table))

    def metrics(self, *, tokenize: str | None = None, lowercase: bool = False) -> list[Metric]:
        return [SymbolAccuracy(self.alphabet.separator, self.alphabet.unknown)]

    def losses(self, model: CipherGan, batch: CipherBatch, update: int) -> Iterator[Loss]:
        count = torch.tensor(len(batch.plain), device=batch.plain.device)
        written = model(batch.plain, batch.cipher, straight_through_sample) if self.draws else model(batch.plain, batch.cipher)
        cycle = _cycle(written, batch)
        with model.without_judges():
            fooled = generator_loss(model.of_cipher, model.embed(written.cipher), self.loss)
            fooled = fooled + generator_loss(model.of_plain, model.embed(written.plain), self.loss)
        weight = self.cycle_weight * min(1.0, update / self.cycle_steps)
        yield Loss(fooled + weight * cycle, count, {"cycle": cycle.detach(), "fooled": fooled.detach()})
        losses = []
        for side, judge, real, fakes in (
            ("plain", model.of_plain, batch.plain, written.plain),
            ("cipher", model.of_cipher, batch.cipher, written.cipher),
        ):
            shown = model.embed(self._remembered(side, fakes))
            losses.append(discriminator_loss(judge, model.embed(real), shown, self.penalty, self.loss))
        yield Loss(losses[0] + losses[1], count, optimizer="discriminator")

    def _remembered(self, side: str, fakes: Tensor) -> Tensor:
        """The fakes to judge, some of them from earlier updates."""
        if not self.pool:
            return fakes.detach()
        pool = self._pools.get(side)
        shown, self._pools[side] = replay_fakes(None if pool is None else pool.to(fakes.device), fakes, self.pool)
        return shown

    def extra_state(self) -> dict[str, Tensor]:
        return {f"pool/{side}/{_process()}": pool.cpu() for side, pool in self._pools.items()}

    def load_extra_state(self, tensors: Mapping[str, Tensor]) -> None:
        names = {side: f"pool/{side}/{_process()}" for side in SIDES}
        self._pools = {side: tensors[name].clone() for side, name in names.items() if name in tensors}

    @cached_property
    def plain_pairs(self) -> NDArray[np.int64]:
        """How often each symbol is followed by each other one in plain windows of the training text [V, V]."""
        return count_pairs(windows(self.train, self.sides[0], self.extent), len(self.symbols))

    @torch.no_grad()
    def evaluate(self, model: CipherGan) -> dict[str, float]:
        """The loss of the way back, the divergence of symbol pairs from the plain half, and the accuracy without UNK.

        All are measured on windows of the validation data or of the cipher text.
        """
        right = known = texts = 0
        cycle, pairs = 0.0, np.zeros_like(self.plain_pairs)
        for batch in self.validation(model):
            counted = batch.plain != 0
            predicted = model.solve(batch.cipher).argmax(-1)
            right, known = right + int(((predicted == batch.plain) & counted).sum()), known + int(counted.sum())
            cycle, texts = cycle + float(_cycle(model(batch.plain, batch.cipher), batch)), texts + len(batch.plain)
            pairs += count_pairs(predicted.cpu().numpy(), len(self.symbols))
        apart = divergence(pairs, self.plain_pairs)
        return {"accuracy": 100 * right / max(1, known), "divergence": apart, "loss": cycle / max(1, texts)}

    def explanation(self, predictor: DecipheringPredictor, prediction: Prediction, text: str) -> str:
        """For each place of the key, an image: a row per symbol of the cipher, a column per plain symbol, dark where the model
        expects that one; and the symbols of the text with the plain symbols they were read as."""
        pictures = ""
        for place, chances in enumerate(predictor.mapping().numpy(), start=1):
            shade = (255 * (1 - chances)).astype(np.uint8)
            pictures += f"<figure class='picture exact'>{image(shade, 'the learnt mapping')}"
            pictures += f"<figcaption>place {place} of the key: cipher ↓ plain →</figcaption></figure>\n"
        pairs = dict.fromkeys(zip(prediction.source_tokens, prediction.tokens, strict=True))
        rows = "".join(f"<tr><th>{escape(shown(one))}</th><td>{escape(shown(other))}</td></tr>\n" for one, other in pairs)
        return f"{pictures}<table class=sound>\n{rows}</table>\n"


def _cycle(written: GeneratorOutput, batch: CipherBatch) -> Tensor:
    """Σ |p − one-hot| per symbol of both texts after both generators, summed over texts: 0 if they come back as they were."""
    missed = [
        1 - again.gather(-1, true[..., None])
        for again, true in ((written.plain_again, batch.plain), (written.cipher_again, batch.cipher))
    ]
    return 2 * sum(each.mean((1, 2)).sum() for each in missed)  # type: ignore[return-value]


def _process() -> int:
    """The number of this process among those that train together."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
