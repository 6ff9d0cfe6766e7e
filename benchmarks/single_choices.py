"""One choice at a time on Multi30k en-de under one budget: positions, wiring, what the decoder is fed, penalties, noise.

    python benchmarks/single_choices.py DIR --out OUT [--seeds 2] [--minutes 9] [--only alibi,shaw] [--steps-scale 0.01]

DIR, budget and scores are those of `families.py`. Transformers differ from `transformer-small`, and recurrent models from
`rnn-luong`, in the one setting that the title names.
"""

from __future__ import annotations

from families import WINDOW, System, compare, parser


def _positions(title: str, kind: str = "none", absolute: str = "none") -> System:
    spec = f"{{kind: full, position: {kind}, bias: false}}"
    sets = (f"model.encoder_self={spec}", f"model.decoder_self={spec}", f"model.position={absolute}")
    return System(f"positions: {title}", "transformer-small", sets)


def _fed(title: str, sampling: str) -> System:
    return System(f"fed {title}", "rnn-luong", (f"task.sampling={sampling}",))


def _luong(title: str, *sets: str, decode: tuple[str, ...] = ()) -> System:
    return System(title, "rnn-luong", sets, decode=decode)


CHOICES = {
    "none": _positions("none"),
    "sinusoid": _positions("sinusoids (Vaswani et al. 2017)", absolute="sinusoidal"),
    "learned": _positions("learned (Gehring et al. 2017)", absolute="learned"),
    "shaw": _positions("a vector for each distance (Shaw et al. 2018)", "shaw"),
    "alibi": _positions("ALiBi (Press et al. 2022)", "alibi"),
    "rotary": _positions("rotary (Su et al. 2021)", "rotary"),
    **{
        f"wiring-{kind}": System(f"wiring: {title}", "transformer-small", (f"model.wiring={kind}",))
        for kind, title in (("last", "the last encoder layer"), ("same", "the one of the same depth"), ("mix", "a learned mix"))
    },
    "fed-truth": _luong("fed true tokens (teacher forcing)"),
    "fed-linear": _fed("two passes, linear decay", "{kind: two_pass, decay: {kind: linear, slope: 1.5e-4}}"),
    "fed-exponential": _fed("two passes, exponential decay", "{kind: two_pass, decay: {kind: exponential, base: 0.9997}}"),
    "fed-sigmoid": _fed("two passes, inverse sigmoid decay", "{kind: two_pass, decay: {kind: inverse_sigmoid, k: 500}}"),
    "fed-free": _fed("its own predictions only (free running)", "free"),
    "guided": _luong("guided attention, weight 1", "task.guided_weight=1.0"),
    "coverage": _luong(
        "coverage (See et al. 2017)", "model.attention={kind: location_aware, coverage: true}", "task.coverage_weight=1.0"
    ),
    "doubly": _luong("doubly stochastic attention (Xu et al. 2015)", "task.doubly_stochastic_weight=1.0"),
    "noise": _luong("noise in the states at test time (Cho 2016)", decode=("decode.search={kind: noisy, where: states}",)),
    "greedy": _luong("greedy search, for comparison with noise", decode=("decode.search=greedy",)),
    "unfed": _luong("without input feeding", "model.input_feeding=false"),
    "local-m": _luong("local-m, window ±5", f"model.attention={{kind: local_m, {WINDOW}}}"),
    "location": _luong("location", "model.attention=location"),
}


def main() -> None:
    compare("single_choices", CHOICES, parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
