"""Readers of weft, each with valid files to begin from, for the campaign of bad input."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import wave
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.config import overrides, yaml_document
from weft.config.registry import build
from weft.config.sections import load_config
from weft.data.cleaning.clean import CleaningJob, clean
from weft.data.cleaning.filters import Choices, PairChecker
from weft.data.cleaning.learnt_statistics import LearntStatistics
from weft.data.column_checks_and_listed_files import check_columns, content_digest, open_listed, read_inputs
from weft.data.formats import Pairs, open_pairs, read_sources
from weft.data.phrases.phrase_translation import PhraseTranslator, translate_by_vectors
from weft.data.sentence_pairs import prepare_pairs
from weft.data.sentence_splitting import SentenceCounts, SentenceSplitter, split
from weft.data.text_lines import read_lines
from weft.data.tokenizers import Tokenizer, load_tokenizers, save_tokenizers
from weft.data.tokenizers.added_tokens import load_extended
from weft.data.word_vectors.bilingual_dictionary import Dictionary
from weft.data.word_vectors.mapping import MappedVectors
from weft.data.word_vectors.vectors import read_vectors
from weft.decoding.shortlist import Shortlist
from weft.errors import WeftError
from weft.evaluation.contrastive_pairs import read_contrasts
from weft.interop.exporting import export_run
from weft.interop.importing import import_model
from weft.runs.open_run import open_run
from weft.runs.packed_run import pack_run, unpack_run
from weft.runs.run_folder import complete, records
from weft.runs.trained_model import check_text
from weft.runs.weight_files import read_metadata, read_tensors
from weft.serve.access_control import parse_key, read_keys
from weft.serve.languages import detect_language
from weft.tasks.captioning.data import read_image
from weft.tasks.classification.data import Labels
from weft.tasks.pairs.data import FIELDS as TWO_TEXTS
from weft.tasks.pairs.data import Numbers
from weft.tasks.quality.calibration import Calibration
from weft.tasks.quality.data import quality_format
from weft.tasks.reading.data import open_passages
from weft.tasks.tagging.data import Lexicon, Vocabulary, open_tagged
from weft.tasks.transcription.log_mel import LogMel, features, stream_wav, wav_size
from weft.tasks.translation.documents import open_document, open_file
from weft.tasks.translation.glossary import Glossary, read_glossary
from weft.tasks.translation.markup_and_tag_transfer import find_literals, untranslated, visible
from weft.tasks.translation.protected_spans import PATTERNS
from weft.tasks.translation.segmenter import Segmenter, Translation
from weft.tasks.translation.translation_memory import TranslationMemory
from weft.tasks.two_texts import read_two_texts
from weft.training import checkpoint
from weft.watch.run_reader import RunReader
from weft_studies.answering.data import open_stories, read_story

TEXTS = [
    f"{a} {b} {c}{end}"
    for a in ("The red dog", "A small bird", "Dr. Smith", "Two old horses")
    for b in ("runs on", "sees the", "drinks 2.5 l of", "reads %s and {name} on")
    for c in ("green grass", "12 stones", "<b>cold</b> water", "https://a.example/b?c=1")
    for end in (".", "!", ", again? Yes.")
]
TRANSLATIONS = [text.swapcase() for text in TEXTS]
PAIRS = list(zip(TEXTS, TRANSLATIONS, strict=True))


@dataclass(frozen=True)
class Reader:
    """Something that reads files of a folder. files: valid ones by name · read: raises WeftError for what it does not read."""

    name: str
    files: dict[str, bytes]
    read: Callable[[Path], object]


def all_of(pairs: Pairs) -> int:
    """The number of pairs that are read in all ways. Raises WeftError only if that is what each of them raises."""
    check_columns(pairs, lambda message: None)
    pairs.digest()
    count = sum(1 for _ in pairs)
    if any(number < 0 for number in pairs.left_out.values()):
        raise AssertionError("a negative number of pairs was left out")
    for _ in pairs.sources():
        pass
    return count


def tried(*actions: Callable[[], object]) -> None:
    """Does everything, then raises the first WeftError."""
    first: WeftError | None = None
    for action in actions:
        try:
            action()
        except WeftError as error:
            first = first or error
    if first is not None:
        raise first


def make_tokenizers() -> dict[str, Tokenizer]:
    """A trained tokenizer of each kind."""
    made = {}
    for kind in ("bpe", "unigram", "sentencepiece", "words", "characters", "bytes"):
        made[kind] = build("weft.data:TOKENIZERS", {"kind": kind}, where="data.tokenizer")
        made[kind].train(TEXTS + TRANSLATIONS, 320)
    return made


# Lines


def line_readers(tokenizers: dict[str, Tokenizer]) -> dict[str, Callable[[str], object]]:
    """Readers of a line or a small text, by name."""
    checker = PairChecker(Choices(), LearntStatistics(PAIRS, ("en", "de")))
    memory, glossary = TranslationMemory(PAIRS), Glossary([("dog", "Hund"), ("grass", "!Gras"), ("狗", "x")])
    bpe = tokenizers["bpe"]
    segmenter = Segmenter(bpe, bpe, room=50, most=None, copies=False, split=SentenceSplitter("en"), warn=lambda message: None)

    def spans(text: str) -> None:
        marked = find_literals(text, (), tuple(PATTERNS))
        visible(text, marked.literals)
        untranslated(text, ())

    def document(text: str, format: str) -> None:
        opened = open_document(text, format, "de")
        opened.fill([Translation(each.text, 0.0) for each in opened.segments])

    def encode(kind: str) -> Callable[[str], object]:
        def read(text: str) -> None:
            tokenizer = tokenizers[kind]
            tokenizer.decode(tokenizer.encode(check_text(text, "text")))
            tokenizer.unknown(text)

        return read

    def spec(text: str) -> object:
        if text.startswith("hf:") or "://" in text or len(text) > 2000:
            return None
        return open_pairs(check_text(text, "name"))

    return {
        "sentences": lambda text: [split(text, language) for language in ("en", "de", "zh")],
        "protected spans": spans,
        **{
            f"{format} text": lambda text, format=format: document(text, format)
            for format in ("html", "markdown", "srt", "vtt")
        },
        **{f"{kind} tokens": encode(kind) for kind in tokenizers},
        "segments": lambda text: segmenter([check_text(text, "text")], [""], [1]),
        "glossary": lambda text: glossary.terms(text),
        "translation memory": lambda text: memory.find(text[:2000]),
        "filters": lambda text: checker.flaws(checker.repaired(text, text[::-1])),
        "override": lambda text: overrides.put({}, (found := overrides.parse_override(text)).path, found.value, "here"),
        "YAML value": lambda text: yaml_document.value(text, "here"),
        "data name": spec,
        "two texts": lambda text: read_two_texts(text, TWO_TEXTS),
        "story": read_story,
        "API key": lambda text: parse_key(text, 1),
        "language": lambda text: detect_language(text, ["en", "de", "fr", "nb", "xx"]),
    }


# Files


def table_files() -> Iterator[Reader]:
    """Data in tables and lines, also compressed and in other encodings."""
    tsv = "".join(f"{source}\t{target}\n" for source, target in PAIRS[:20])
    quoted = "source,target\n" + "".join(f'"{source}","{target}, ""a"""\n' for source, target in PAIRS[:20])
    jsonl = "".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in PAIRS[:20])
    plain = {"a.tsv": tsv, "a.csv": quoted, "a.jsonl": jsonl}
    for name, text in plain.items():
        yield Reader(name, {name: text.encode()}, lambda at, name=name: all_of(open_pairs(str(at / name))))
    packed: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": _bz2, ".xz": _xz, ".zst": _zst}
    for suffix, pack in packed.items():
        name = f"a.tsv{suffix}"
        yield Reader(name, {name: pack(tsv.encode())}, lambda at, name=name: all_of(open_pairs(str(at / name))))
    for encoding in ("utf-16", "cp1252", "shift_jis", "utf-7", "idna", "unicode_escape"):
        content = tsv.encode(encoding) if encoding not in ("idna", "unicode_escape") else tsv.encode()
        spec = f"a.tsv@{encoding}"
        yield Reader(spec, {"a.tsv": content}, lambda at, spec=spec: all_of(open_pairs(str(at / spec))))
    lines = ["".join(f"{line}\n" for line in side[:20]).encode() for side in (TEXTS, TRANSLATIONS)]
    yield Reader("a.en,a.de", {"a.en": lines[0], "a.de": lines[1]}, lambda at: all_of(open_pairs(f"{at}/a.en,{at}/a.de")))
    yield Reader("lines", {"a.txt.gz": gzip.compress(lines[0])}, lambda at: list(read_lines(at / "a.txt.gz")))
    yield Reader("sources", {"a.jsonl": jsonl.encode()}, lambda at: list(read_sources(at / "a.jsonl")))
    tables: dict[str, Callable[[Path], object]] = {
        "glossary.tsv": lambda at: read_glossary(at).terms(TEXTS[0]),
        "dictionary.tsv": Dictionary.read,
        "contrasts.tsv": lambda at: read_contrasts(read_lines(at), "contrasts"),
        "vectors.vec": read_vectors,
        "keys.txt": lambda at: read_keys([], str(at)),
        "tagged.tsv": lambda at: all_of(open_tagged(str(at))),
        "tagged_graph.tsv": lambda at: all_of(open_tagged(str(at), None, True)),
        "quality.jsonl": lambda at: all_of(quality_format("both").open(str(at))),
        "squad.json": lambda at: all_of(open_passages(str(at))),
        "stories.jsonl": lambda at: all_of(open_stories(str(at))),
        "labelled.jsonl": lambda at: all_of(open_pairs(str(at))),
        "labels.tsv": lambda at: Labels(["a", "b"]).read_texts(at),
    }
    squad = {"data": [{"paragraphs": [{"context": "A dog.", "qas": [{"question": "Who?", "answers": [{"text": "dog"}]}]}]}]}
    contents = {
        "glossary.tsv": "dog\tHund\n# a\ngrass\t!Gras\n",
        "dictionary.tsv": "dog\tHund\t0.5\ncat\tKatze\n",
        "contrasts.tsv": "a\tb\tc\nd\te\tf\n",
        "vectors.vec": "2 3\ndog 1 2 3\ncat 0.5 1e-3 -1\n",
        "keys.txt": "secret name=a rate=5\nother admin # b\n",
        "tagged.tsv": "A\tDET\ndog\tNOUN\n\nIt\tPRON\n",
        "tagged_graph.tsv": "A\tDET\t1\ndog\tNOUN\t0\n\nIt\tPRON\t_\n",
        "quality.jsonl": '{"source": "A dog.", "translation": "Ein Hund.", "score": 63.1, "tags": "OK OK BAD"}\n' * 3,
        "squad.json": json.dumps(squad),
        "stories.jsonl": '{"story": ["Mary went home."], "question": "Where is Mary?", "answer": "home"}\n' * 3,
        "labelled.jsonl": '{"sentences": ["One.", "Two."], "label": ["a", "b"]}\n{"text": "x", "label": 1}\n',
        "labels.tsv": "a\tThe first.\nb\tThe other.\n",
    }
    for name, read in tables.items():
        yield Reader(name, {name: contents[name].encode()}, lambda at, name=name, read=read: read(at / name))


def exchange_files() -> Iterator[Reader]:
    """Files of translators and their tools, as data and as documents."""
    contents = exchange_contents()
    for name in ("a.tmx", "a.po", "a1.xlf", "a2.xlf", "a.xlsx", "a.parquet", "a.zip"):
        spec = f"{name}#en,de" if name == "a.zip" else name
        yield Reader(f"{name} as data", {name: contents[name]}, lambda at, spec=spec: all_of(open_pairs(str(at / spec))))
        if name != "a.zip" and name != "a.parquet":
            yield Reader(f"{name} as inputs", {name: contents[name]}, lambda at, name=name: list(read_inputs(at / name)))
    for kind in ("srt", "vtt"):
        files = {f"a.en.{kind}": contents[f"a.{kind}"], f"a.de.{kind}": contents[f"a.{kind}"]}
        spec = ",".join(files)
        yield Reader(
            f"{kind} as data", files, lambda at, files=files: all_of(open_pairs(",".join(str(at / name) for name in files)))
        )
    for name in ("a.txt", "a.html", "a.md", "a.srt", "a.vtt", "a1.xlf", "a2.xlf", "a.tmx", "a.po", "a.csv", "a.docx"):
        yield Reader(f"{name} as a document", {name: contents[name]}, lambda at, name=name: translated(at / name))


def translated(file: Path) -> bytes:
    """A document whose translation is its own text."""
    opened = open_file(file.read_bytes(), file.suffix, "de")
    return opened.filled([Translation(each.text, 0.0) for each in opened.document.segments])


def exchange_contents() -> dict[str, bytes]:
    """A valid file of each kind, made with the libraries that others write them with."""
    import docx
    import openpyxl
    import polib
    import pyarrow
    import pyarrow.parquet
    from translate.storage import tmx, xliff

    def saved(save: Callable[[Any], object]) -> bytes:
        out = io.BytesIO()
        save(out)
        return out.getvalue()

    memory, units = tmx.tmxfile(), xliff.xlifffile()
    for source, target in PAIRS[:12]:
        memory.addtranslation(source, "en", target, "de")
        unit = xliff.xliffunit(source)
        unit.target = target
        units.addunit(unit)
    catalog = polib.POFile()
    catalog.metadata = {
        "Content-Type": "text/plain; charset=UTF-8",
        "Plural-Forms": "nplurals=3; plural=(n%10==1 ? 0 : n%10<5 ? 1 : 2);",
    }
    for number, (source, target) in enumerate(PAIRS[:12]):
        catalog.append(polib.POEntry(msgid=source, msgstr=target, flags=["fuzzy"] if number == 3 else [], comment="a"))
    catalog.append(polib.POEntry(msgid="one", msgid_plural="many", msgstr_plural={0: "eins", 1: "zwei", 2: "viele"}))
    book = openpyxl.Workbook()
    for row in [("source", "target"), *PAIRS[:12], (None, 3.5)]:
        book.active.append(row)
    table = pyarrow.table({"source": TEXTS[:12], "target": TRANSLATIONS[:12]})
    word = docx.Document()
    for text in TEXTS[:4]:
        word.add_paragraph(text).add_run(" bold").bold = True
    word.add_table(2, 2).cell(0, 0).text = "cell"
    cues = "".join(f"{n}\n00:00:{n:02},000 --> 00:00:{n:02},900\n<i>{text}</i>\n\n" for n, text in enumerate(TEXTS[:9], 1))
    second = "".join(
        f'<unit id="{n}"><segment state="final"><source>{_xml(a)}<ph id="1"/></source><target>{_xml(b)}</target>'
        "</segment></unit>"
        for n, (a, b) in enumerate(PAIRS[:9])
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for language, side in (("en", TEXTS), ("de", TRANSLATIONS)):
            archive.writestr(f"a.{language}", "".join(f"{text}\n" for text in side[:12]))
    page = "".join(f"<p title='a'>{text} <img src=x><script>1</script></p>" for text in TEXTS[:6])
    return {
        "a.tmx": bytes(memory),
        "a1.xlf": bytes(units),
        "a2.xlf": f'<xliff version="2.0" srcLang="en" trgLang="de"><file id="a">{second}</file></xliff>'.encode(),
        "a.po": str(catalog).encode(),
        "a.xlsx": saved(book.save),
        "a.parquet": saved(lambda out: pyarrow.parquet.write_table(table, out)),
        "a.zip": out.getvalue(),
        "a.docx": saved(word.save),
        "a.srt": cues.encode(),
        "a.vtt": ("WEBVTT\n\nNOTE a\n\n" + cues.replace(",000", ".000").replace(",900", ".900")).encode(),
        "a.txt": "\n\n".join(TEXTS[:6]).encode(),
        "a.html": f"<!doctype html><html><body>{page}</body></html>".encode(),
        "a.md": f"# {TEXTS[0]}\n\n- *{TEXTS[1]}* [a](b)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode\n```\n".encode(),
        "a.csv": "".join(f'"{source}",{number}\n' for number, source in enumerate(TEXTS[:6])).encode(),
    }


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def media_files() -> Iterator[Reader]:
    """Sound and pictures, also inside of an archive and named by a list."""
    from PIL import Image

    wavs = {}
    for name, width, channels in (("a.wav", 2, 1), ("b.wav", 1, 2), ("c.wav", 3, 1), ("d.wav", 4, 1)):
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(16_000)
            file.writeframes(np.random.default_rng(1).bytes(1600 * width * channels))
        wavs[name] = out.getvalue()
    mel = LogMel(16_000)
    for name, content in wavs.items():
        yield Reader(
            name,
            {name: content},
            lambda at, name=name: tried(
                lambda: features(at / name, mel), lambda: wav_size(at / name), lambda: list(stream_wav(str(at / name), 16_000))
            ),
        )
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 255, (24, 30, 3), np.uint8))
    jpeg = b""
    for kind in ("jpeg", "png", "gif", "bmp", "webp", "tiff"):
        out = io.BytesIO()
        picture.save(out, kind)
        yield Reader(kind, {f"a.{kind}": out.getvalue()}, lambda at, kind=kind: read_image(str(at / f"a.{kind}"), 16))
        jpeg = jpeg or out.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.jpg", jpeg)
    files = {"photos.zip": out.getvalue(), "a.tsv": b"a.jpg\tA dog.\nb.jpg\tA cat.\n"}

    def listed(at: Path) -> None:
        paths = [path for path, _ in open_listed(f"{at}/photos.zip,{at}/a.tsv")]
        tried(*(lambda path=path: (content_digest(path), read_image(path, 16)) for path in paths[:3]))

    yield Reader("listed files", files, listed)


def _bz2(content: bytes) -> bytes:
    import bz2

    return bz2.compress(content)


def _xz(content: bytes) -> bytes:
    import lzma

    return lzma.compress(content)


def _zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


# Runs, models and what training keeps


def make_run(folder: Path) -> Path:
    """A small run that was trained for two steps, with everything that a run can have."""
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")
    settings = {
        "data.tokenizer": {"kind": "sentencepiece"}, "data.vocabulary": 90, "data.shared_vocabulary": True,
        "data.source_language": "en", "data.target_language": "de", "data.cache": str(folder / "cache"),
        "model.dim": 16, "model.heads": 2, "model.feedforward": 16, "model.encoder_layers": 1, "model.decoder_layers": 1,
        "train.steps": 2, "train.batch_tokens": 512, "train.precision": "float32", "train.tensorboard": False,
        "train.device": "cpu", "train.threads": 1, "train.validate_every": 1, "train.save_every": 1, "decode.beam": 1,
        "train.keep_last": 1,
    }  # fmt: skip
    pairs = str(folder / "pairs.tsv")
    weft.train("transformer-portable", data=pairs, valid=pairs, out=folder / "run", set=settings)
    return folder / "run"


def contents(folder: Path, most: int = 4_000_000) -> dict[str, bytes]:
    """The files of a folder by their paths in it."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size < most)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def run_files(folder: Path, run: Path) -> Iterator[Reader]:
    """Run folders, checkpoints, packed runs, and models of other programs."""

    def opened(at: Path) -> None:
        sizes = open_run(at).sizes
        if (at / "shortlist.safetensors").exists():
            Shortlist.read(at, sizes.source, sizes.target, True)

    def watched(at: Path) -> None:
        reader = RunReader(at.parent)
        for name in reader.folders():
            reader.state(name, reader.folder_of(name))
            reader.curves(name)
            reader.details(name)
        reader.differences(list(reader.folders()))

    def checkpoints(at: Path) -> None:
        tried(lambda: checkpoint.check(checkpoint.folder_of(at, 2)), lambda: checkpoint.average(at, 1))
        checkpoint.published(at)
        records(at), complete(at)

    files = contents(run)
    main = {name: files[name] for name in files if "/" not in name and not name.endswith((".png", ".lock", "schema.json"))}
    yield Reader("run folder", main, opened)
    yield Reader("run folder, watched", main, watched)
    yield Reader("checkpoint", files, checkpoints)
    shutil.rmtree(folder / "packed", ignore_errors=True)
    pack_run(run, folder / "a.weft")
    yield Reader("packed run", {"a.weft": (folder / "a.weft").read_bytes()}, lambda at: unpack_run(at / "a.weft", at / "out"))
    for to in ("transformers", "marian", "ctranslate2", "argos"):
        export_run(run, to, folder / to)
        yield Reader(f"{to} model", contents(folder / to), lambda at: import_model(at, at.parent / "imported"))
    tensors = {"model.safetensors": files["model.safetensors"]}
    yield Reader(
        "safetensors",
        tensors,
        lambda at: tried(lambda: read_tensors(at / "model.safetensors"), lambda: read_metadata(at / "model.safetensors")),
    )
    yield Reader("config.yaml", {"config.yaml": files["config.yaml"]}, lambda at: load_config(at / "config.yaml"))


def state_files(folder: Path, tokenizers: dict[str, Tokenizer]) -> Iterator[Reader]:
    """Small files that runs and commands keep."""
    for kind, tokenizer in tokenizers.items():
        place = folder / f"tokenizer-{kind}"
        place.mkdir()
        save_tokenizers(place, tokenizer, tokenizer)
        (place / "marks.json").write_text('{"marks": ["<de>"], "needs_tag": false}')
        spec = {"kind": kind}

        def load(at: Path, spec: dict[str, Any] = spec) -> None:
            both = load_tokenizers(at, spec), load_extended(at, spec)
            for tokenizer, _ in both:
                tokenizer.decode(tokenizer.encode(TEXTS[0]))

        yield Reader(f"{kind} tokenizer", contents(place), load)
    words = Vocabulary(1, False, 100)
    states: dict[str, tuple[str, Callable[[Path], object]]] = {
        "labels.json": ('{"labels": ["a", "b"], "texts": {"a": "x"}}', Labels.load),
        "numbers.json": ('{"mean": 1.5, "deviation": 2.0}', Numbers.load),
        "words.json": ('{"words": [["a", 3, "X"], ["b", 1, "Y"]]}', lambda at: Lexicon.load(at, words)),
        "calibration.json": (
            json.dumps({"score": {"estimates": [0.0, 1.0], "values": [0.1, 0.9]}, "words": None, "threshold": 0.5}),
            lambda at: Calibration.load(at.parent),
        ),
        "sentences.json": ('{"lines": 3, "several": 0.1, "usual": 1}', lambda at: SentenceCounts.load(at.parent)),
        "choices.yaml": (
            "repairs: {unicode: true}\nfilters: {identical: false}\n",
            lambda at: Choices(yaml_document.value(at.read_text("utf-8", "replace"), "choices")),
        ),
    }
    for name, (text, read) in states.items():
        yield Reader(name, {name: text.encode()}, lambda at, name=name, read=read: read(at / name))


def cache_files(folder: Path, tokenizers: dict[str, Tokenizer]) -> Iterator[Reader]:
    """Caches and learnt tables, which are made again or refused if they are damaged."""
    phrases, lines = folder / "phrases", [TEXTS, TRANSLATIONS]
    from weft.data.word_vectors.bilingual_dictionary import map_texts

    mapped = map_texts(*lines)
    (folder / "mapped").mkdir()
    mapped.save(folder / "mapped")
    yield Reader("mapped vectors", contents(folder / "mapped"), MappedVectors.load)
    translate_by_vectors(("en", "de"), lines, mapped).save(phrases)
    yield Reader("phrase tables", contents(phrases), PhraseTranslator.load)
    pairs = folder / "corpus.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS), "utf-8")
    words = tokenizers["words"]
    options: dict[str, Any] = {"max_length": 100, "drop_duplicates": True, "texts": ("source", "target")}
    whole = prepare_pairs([open_pairs(str(pairs))], words, words, folder=folder / "prepared", **options).report

    def prepared(at: Path) -> None:
        found = prepare_pairs([open_pairs(str(pairs))], words, words, folder=at, **options)
        if found.report != whole:
            raise AssertionError("a damaged cache has other counts")
        found.row("source", 0)

    yield Reader("prepared corpus", contents(folder / "prepared"), prepared)

    def counted(file: Path) -> None:
        """Pairs become a corpus, and are cleaned; each is kept or counted as left out."""
        pairs = open_pairs(str(file))
        report = prepare_pairs([pairs], tokenizers["bpe"], words, folder=file.parent / "cache", **options).report
        if report.read != report.kept + sum(report.left_out.values()) or report.read != sum(1 for _ in pairs):
            raise AssertionError(f"not every pair is counted: {report}")
        out = file.parent / "clean.tsv"
        cleaned = clean(CleaningJob([pairs], str(out), left_out=file.parent / "left_out.tsv"))
        aside = sum(1 for _ in read_lines(file.parent / "left_out.tsv"))
        if cleaned["pairs"] != report.read or cleaned["kept"] + aside != report.read:
            raise AssertionError("not every pair is kept or left out")

    for reader in table_files():
        if reader.name in ("a.tsv", "a.csv", "a.jsonl"):
            yield Reader(f"{reader.name} as a corpus", reader.files, lambda at, name=reader.name: counted(at / name))


def file_readers(folder: Path) -> list[Reader]:
    """All readers of files. folder: where valid files are made."""
    tokenizers = make_tokenizers()
    run = make_run(folder)
    parts: Sequence[Iterator[Reader]] = (
        table_files(), exchange_files(), media_files(), run_files(folder, run), state_files(folder, tokenizers),
        cache_files(folder, tokenizers),
    )  # fmt: skip
    return [reader for part in parts for reader in part]
