"""Model families, and how a frontend, an encoder and a decoder become one model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from weft.config.registry import Among, build, keyword_options, with_description
from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.layers.embeddings_and_rotary_positions import Sharing
from weft.layers.lora import Lora
from weft.models.base import Decoder, DecoderSite, Encoded, Encoder, Model, Network, Sizes, least, times
from weft.models.frontends.base import Frontend, FrontendSite, TokenFrontend

Spec = Mapping[str, Any] | str


class VectorEncoder(Encoder):
    """An encoder of vectors, which its frontend makes from any kind of source.

    input_width: of the vectors · depth: number of memories in `Encoded.layers` · finals: (tensors, width) of the last state of
    each layer, if it has one · paired: the memory holds keys and values side by side · embedding_scale, embedding_std: see
    `FrontendSite`.
    """

    input_width: int
    depth: int = 0
    finals: Sequence[tuple[int, int]] = ()
    paired: bool = False
    embedding_scale: float | None = None
    embedding_std: float | None = None
    front: Frontend

    def __init__(self) -> None:
        super().__init__()
        # Registered first: the order of parameters decides how gradient norms are summed, and so whether a resume is exact.
        self.register_module("front", None)

    def attach(self, front: Frontend) -> None:
        """Sets the frontend and combines its facts with those of the encoder."""
        self.front, self.shortens = front, front.shortens
        self.combine(self, front)
        self.max_source = least(front.max_length, times(self.max_length, front.shortens))

    def set_readers(self, count: int) -> None:
        """Tells the encoder how many decoder layers attend to its memory."""

    def forward(self, source: Source) -> Encoded:
        return self.read(*self.front(source))

    @abstractmethod
    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        """The memory of vectors [G, S, input_width]."""

    def read_on(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The memory of the next vectors [G, S, input_width] of a source whose end is not known yet, and the state after them.

        The state is None before the first vectors. Encoders whose memory depends on later vectors refuse.
        """
        raise ConfigError(
            f"model.encoder: {type(self).__name__} reads a source as a whole, so it cannot listen to sound as it comes; train "
            "with model.encoder: {kind: rnn, bidirectional: false}"
        )


class IdentityEncoder(VectorEncoder):
    """No encoder: the vectors of the front, normalised, are the memory, as the annotations of Xu et al. 2015.

    dim: width of the vectors
    """

    supports_packing = cuda_graph_safe = compiles = True

    def __init__(self, *, dim: PositiveInt = 256) -> None:
        super().__init__()
        self.input_width = self.width = dim
        self.norm = nn.LayerNorm(dim)

    def read(self, x: Tensor, layout: Layout | None) -> Encoded:
        return Encoded(self.norm(x), layout)


class ModelFamily(ABC):
    """A kind of model with its options, before it knows the sizes of the data. copies: see `Network`."""

    copies: bool = False
    outer_options: ClassVar[Mapping[str, Any]] = {
        "lora": (
            Lora | None,
            Field(default=None, description="low-rank adapters, trained instead of the weights; null: none"),
        )
    }

    @abstractmethod
    def build(self, sizes: Sizes) -> Network:
        """A model with its initial weights."""

    def build_encoder(self, sizes: Sizes) -> Encoder:
        """Its encoder alone."""
        raise ConfigError(
            f"model.kind: {type(self).__name__} has no encoder to read a source; choose one that has, such as transformer"
        )


class ComposedFamily(ModelFamily):
    """A family made of a frontend, an encoder and a decoder; each is built when it is known what it connects."""

    def __init__(
        self,
        encoder: Callable[[], VectorEncoder],
        decoder: Callable[[DecoderSite], Decoder],
        share: Sharing,
        front: Callable[[FrontendSite], Frontend] = TokenFrontend,
    ) -> None:
        self.encoder, self.decoder, self.share, self.front = encoder, decoder, share, front

    def build_encoder(self, sizes: Sizes) -> VectorEncoder:
        encoder = self.encoder()
        encoder.attach(self.front(FrontendSite(sizes, encoder.input_width, encoder.embedding_scale, encoder.embedding_std)))
        return encoder

    def build(self, sizes: Sizes) -> Model:
        if self.share == "all" and not sizes.shared:
            raise ConfigError(
                "model.share_embeddings: all needs one vocabulary for both sides; "
                "set data.shared_vocabulary: true, or model.share_embeddings: output"
            )
        encoder = self.build_encoder(sizes)
        source = encoder.front if self.share == "all" and isinstance(encoder.front, TokenFrontend) else None
        site = DecoderSite(
            sizes.target,
            encoder.width,
            encoder.depth,
            encoder.finals,
            encoder.paired,
            source,
            tied=self.share != "none",
            writes=sizes.writes,
        )
        decoder = self.decoder(site)
        encoder.set_readers(decoder.readers)
        return Model(encoder, decoder)


class FlatFamily(ComposedFamily):
    """A family of one kind of encoder and of decoder, which takes the options of both at once.

    parts: encoder, decoder and, unless it is a plain `TokenFrontend`, the frontend, each with the family's names for its
    options where they differ · derived: options of the parts that the family sets itself.
    """

    parts: ClassVar[Sequence[tuple[type, Mapping[str, str]]]]
    derived: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *, share_embeddings: Sharing = "all", **options: Any) -> None:
        """
        share_embeddings: one table for source, target and output (all), for target and output (output), or separate ones (none)
        """
        made = []
        for part, names in self.parts:
            known = {name: names.get(name, name) for name, *_ in keyword_options(part)}
            made.append(partial(part, **{name: options[key] for name, key in known.items() if key in options}))
        encoder, decoder, *front = made
        super().__init__(encoder, decoder, share_embeddings, *front)

    @classmethod
    def list_options(cls) -> Iterator[tuple[str, Any, Any]]:
        """(name, type, default) of the options of the family and of its parts, each once."""
        known = set(cls.derived)
        for part, names in [(cls.__init__, {}), (FlatFamily.__init__, {}), *cls.parts]:
            for name, hint, default in keyword_options(part):
                key = names.get(name, name)
                if key not in known:
                    known.add(key)
                    yield key, with_description(part, name, hint), default


class ComposedModel(ComposedFamily):
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
    family: ModelFamily = build("weft.models:MODELS", spec, where=where)
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
    family: ModelFamily = build("weft.models:MODELS", spec, where=where)
    return family.build_encoder(sizes)
