"""Model families, and how a front, an encoder and a decoder become one model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from weft.config.registry import Among, build
from weft.errors import ConfigError
from weft.layers.embedding import Sharing
from weft.models.base import Decoder, DecoderSite, Encoder, Front, FrontSite, Model, Network, Sizes, VectorEncoder
from weft.models.fronts import TokenFront

Spec = Mapping[str, Any] | str


class Family(ABC):
    """A kind of model with its options, before it knows the sizes of the data. copies: see `Network`."""

    copies: bool = False

    @abstractmethod
    def build(self, sizes: Sizes) -> Network:
        """A model with its initial weights."""

    def build_encoder(self, sizes: Sizes) -> Encoder:
        """Its encoder alone."""
        raise ConfigError(
            f"model.kind: {type(self).__name__} has no encoder to read a source; choose one that has, such as transformer"
        )


class Composition(Family):
    """A family made of a front, an encoder and a decoder; each is built when it is known what it connects."""

    def __init__(
        self,
        encoder: Callable[[], VectorEncoder],
        decoder: Callable[[DecoderSite], Decoder],
        share: Sharing,
        front: Callable[[FrontSite], Front] = TokenFront,
    ) -> None:
        self.encoder, self.decoder, self.share, self.front = encoder, decoder, share, front

    def build_encoder(self, sizes: Sizes) -> VectorEncoder:
        encoder = self.encoder()
        encoder.attach(self.front(FrontSite(sizes, encoder.input_width, encoder.embedding_scale, encoder.embedding_std)))
        return encoder

    def build(self, sizes: Sizes) -> Model:
        if self.share == "all" and not sizes.shared:
            raise ConfigError(
                "model.share_embeddings: all needs one vocabulary for both sides; "
                "set data.shared_vocabulary: true, or model.share_embeddings: output"
            )
        encoder = self.build_encoder(sizes)
        source = encoder.front if self.share == "all" and isinstance(encoder.front, TokenFront) else None
        site = DecoderSite(
            sizes.target, encoder.width, encoder.depth, encoder.finals, encoder.paired, source, tied=self.share != "none"
        )
        decoder = self.decoder(site)
        encoder.set_readers(decoder.readers)
        return Model(encoder, decoder)


class Composed(Composition):
    """Any front, encoder and decoder.

    front: turns the source into vectors
    encoder: reads the vectors
    decoder: writes the target
    share_embeddings: one table for source, target and output (all), for target and output (output), or separate ones (none)
    """

    def __init__(
        self,
        *,
        front: Annotated[dict[str, Any], Among("weft.models:FRONTS")] = {"kind": "tokens"},  # noqa: B006
        encoder: Annotated[dict[str, Any], Among("weft.models:ENCODERS")] = {"kind": "transformer"},  # noqa: B006
        decoder: Annotated[dict[str, Any], Among("weft.models:DECODERS")] = {"kind": "transformer"},  # noqa: B006
        share_embeddings: Sharing = "output",
    ) -> None:
        super().__init__(
            partial(build, "weft.models:ENCODERS", encoder, where="model.encoder"),
            partial(build, "weft.models:DECODERS", decoder, where="model.decoder"),
            share_embeddings,
            partial(build, "weft.models:FRONTS", front, where="model.front"),
        )


def build_model(spec: Spec, sizes: Sizes, where: str = "model") -> Network:
    """The model that `spec`, the section `model` of a configuration, describes."""
    family: Family = build("weft.models:MODELS", spec, where=where)
    return family.build(sizes)


def build_encoder_decoder(spec: Spec, sizes: Sizes, where: str = "model") -> Model:
    """`build_model` for tasks that read a source and write a target."""
    model = build_model(spec, sizes, where)
    if isinstance(model, Model):
        return model
    raise ConfigError(
        f"{where}.kind: a {type(model).__name__} has no encoder to read a source with; choose a model with an encoder and a "
        "decoder, such as transformer"
    )


def build_encoder(spec: Spec, sizes: Sizes, where: str = "model") -> Encoder:
    """The encoder of the model that `spec` describes."""
    family: Family = build("weft.models:MODELS", spec, where=where)
    return family.build_encoder(sizes)
