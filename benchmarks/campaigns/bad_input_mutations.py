"""Changes of valid lines and files that make bad input of them: cut, mixed, repeated, lying, nested and damaged inside."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import struct
import zipfile
from collections.abc import Callable
from typing import Any

FRAGMENTS = (
    "\0", "\x1b[31m", "\x1e", "\x1f", "\ufeff", "\u2028", "\u2029", "\x85", "\r", "\r\n", "\v\f", "\t", "\t\t", "\u202e",
    "\u200d", "e\u0301\u0301\u0301", "\U0001f3f3\ufe0f\u200d\U0001f308", "狗", "￭", "▁", "<0x41>", "</s>", "<unk>", "\ufffc",
    "\ufffe", '"', '""', "'", "\\", "\\u0000", "\\ud800", "{", "}", "[", "]", "{{", "%s", "%(a)s", "%1$s", "${a}", "<", ">",
    "</", "<b>", "</i>", "<!--", "<![CDATA[", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&amp;", "&#x0;", "&#1114112;", "&b;", "-->",
    "00:00:01,000 --> 00:00:02,000", "99999999999:1:1.5", "WEBVTT", "msgid", "msgstr[99]", "#~ ", "nplurals=9**99;", "- ",
    ": ", "&a *a", "!!python/object:os.system", "? ", "|\n", "**", "](", "```", "#", "sep=", ",", ";", "|", "nan", "-inf",
    "1e999", "-1", "0", "9" * 400, "9" * 5000, "١٢٣", "²", "true", "null", "https://a.b/?c", "a@b.c",
)  # fmt: skip
"""Texts that readers treat specially."""

SHORT = tuple(each for each in FRAGMENTS if len(each) < 100)
"""Those that most lines have."""

RAW = (
    b"\xff", b"\xfe\xff", b"\xff\xfe", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80",
    b"\x00\x00", b"\xe2\x82", b"\n",
)  # fmt: skip
"""Bytes that are not UTF-8, halves of surrogate pairs, and parts of characters."""

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63, 2**80, 1e308, float("inf"), float("nan"), "", "x", "\ud800", "9" * 5000, [], {}, [[]],
    [None], {"": {}}, ["a", 1],
)  # fmt: skip
"""JSON values in place of others."""

HUGE = 200_000
"""Characters of huge lines, and levels of bombs."""

Rng = random.Random


def fuzzed_line(seeds: list[str], rng: Rng) -> str:
    """A line: fragments and seeds, put together, repeated or nested; sometimes huge, or with halves of surrogate pairs."""
    text = rng.choice(seeds)
    for _ in range(rng.randrange(4)):
        at, piece = rng.randrange(len(text) + 1), rng.choice(SHORT if rng.random() < 0.7 else seeds)
        text = text[:at] + piece + text[at + rng.randrange(4) * rng.randrange(2) :]
    if rng.random() < 0.03:
        one, other = rng.choice(FRAGMENTS), rng.choice(FRAGMENTS)
        count = rng.randrange(1, 2 + 1_000 // len(one + other))
        text += rng.choice([(one + other) * count, one * count + other * count])
    if rng.random() < 0.05:
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at] + chr(rng.choice([rng.randrange(0xD800, 0xE000), rng.randrange(32), rng.randrange(0x110000)])) + text[at:]
        )
    if rng.random() < 0.0001:
        text = (text + rng.choice(FRAGMENTS)) * (HUGE // (len(text) + 1))
    return text


def fuzzed_bytes(line: str, rng: Rng) -> bytes:
    """A line as bytes: mostly UTF-8, sometimes another encoding, damaged, or a mixture of two."""
    content = line.encode("utf-8", "surrogatepass" if rng.random() < 0.5 else "replace")
    kind = rng.random()
    if kind < 0.02:
        return line.encode(rng.choice(["utf-16", "utf-16-le", "utf-32", "cp1252", "shift_jis"]), "ignore")
    if kind < 0.06:
        at = rng.randrange(len(content) + 1)
        return content[:at] + rng.choice(RAW) + content[at:]
    return content


def damaged(content: bytes, rng: Rng, other: bytes = b"") -> bytes:
    """A file after one to three changes that know nothing of its format. other: content that may be mixed in."""
    for _ in range(rng.randrange(1, 4)):
        content = rng.choice(DAMAGES)(content, rng, other)
    return content


def _cut(content: bytes, rng: Rng, other: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _removed(content: bytes, rng: Rng, other: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.randrange(1, 200) :]


def _flipped(content: bytes, rng: Rng, other: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 8) if content else 0):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _inserted(content: bytes, rng: Rng, other: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    piece = rng.choice(RAW) if rng.random() < 0.4 else rng.choice(FRAGMENTS).encode()
    return content[:at] + piece + content[at:]


def _repeated(content: bytes, rng: Rng, other: bytes) -> bytes:
    at = rng.randrange(len(content) + 1)
    piece = content[at : at + rng.randrange(1, 80)] or b"a"
    return content[:at] + piece * rng.choice([2, 5, 50, HUGE // len(piece)]) + content[at:]


def _numbers(content: bytes, rng: Rng, other: bytes) -> bytes:
    found = list(re.finditer(rb"\d+", content[:100_000]))
    if not found:
        return content
    place = rng.choice(found)
    number = rng.choice([b"-1", b"0", b"99999999999999999999", b"1e400", b"9" * 5000, b"NaN", b"2147483648", b"0.5"])
    return content[: place.start()] + number + content[place.end() :]


def _mixed(content: bytes, rng: Rng, other: bytes) -> bytes:
    if not other:
        return content
    at, size = rng.randrange(len(other)), rng.randrange(1, 400)
    place = rng.randrange(len(content) + 1)
    return content[:place] + other[at : at + size] + content[place:]


def _recoded(content: bytes, rng: Rng, other: bytes) -> bytes:
    text = content[:HUGE].decode("utf-8", "replace")
    half = rng.randrange(len(text) + 1) if rng.random() < 0.5 else len(text)
    return text[:half].encode(rng.choice(["utf-16", "cp1252", "utf-32", "utf-8-sig"]), "ignore") + text[half:].encode()


def _shuffled(content: bytes, rng: Rng, other: bytes) -> bytes:
    lines = content.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


def _columns(content: bytes, rng: Rng, other: bytes) -> bytes:
    mark = rng.choice([b"\t", b",", b'"', b"\n\n", b" "])
    return content.replace(mark, rng.choice([b"", mark * 2, b"\t", b";"]), rng.randrange(1, 5))


Damage = Callable[[bytes, Rng, bytes], bytes]
DAMAGES: tuple[Damage, ...] = (
    _cut, _removed, _flipped, _inserted, _inserted, _repeated, _numbers, _mixed, _recoded, _shuffled, _columns,
)  # fmt: skip


def bomb(rng: Rng) -> bytes:
    """Content that becomes large or deep if it is read carelessly."""
    depth = rng.choice([200, 3_000, HUGE // 4])
    return rng.choice(
        [
            lambda: b"[" * depth,
            lambda: b'{"a":' * depth,
            lambda: b'{"a":[' * depth + b"]}" * depth,
            lambda: b"a: {" * depth,
            lambda: b"a: &a [b, b]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (c + 1, c + 1, c, c) for c in range(97, 121)),
            lambda: b"- " * depth,
            lambda: b"<a>" * depth,
            lambda: b"<!DOCTYPE a [<!ENTITY a 'b'>" + b"<!ENTITY c '&a;&a;&a;'>" * 20 + b"]><a>&c;</a>",
            lambda: b"a" * (HUGE * 4),
            lambda: b"a\n" * HUGE,
            lambda: b"9" * HUGE,
        ]
    )()


def changed_json(content: bytes, rng: Rng) -> bytes:
    """JSON in which one value is another one, missing or deep inside lists."""
    document = json.loads(content)
    places = [((), document)]
    for path, value in places:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        places += [((*path, key), inner) for key, inner in list(items)[:60]]
        if len(places) > 2000:
            break
    path, _ = rng.choice(places)
    new = rng.choice(VALUES)
    if not path:
        return json.dumps(new).encode()
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if rng.random() < 0.2:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    written = json.dumps(document, ensure_ascii=rng.random() < 0.5, allow_nan=True)
    return written.encode("utf-8", "surrogatepass")


def changed_header(content: bytes, rng: Rng) -> bytes:
    """A safetensors file whose header lies: about its own length, or about shapes, types and places."""
    size = struct.unpack("<Q", content[:8])[0]
    header, rest = content[8 : 8 + size], content[8 + size :]
    if rng.random() < 0.3:
        wrong = rng.choice([0, 1, size - 1, size + 1, len(content), 1 << 31, 1 << 62, (1 << 64) - 1])
        return struct.pack("<Q", wrong) + header + rest
    new = changed_json(header, rng) if rng.random() < 0.8 else damaged(header, rng)
    return struct.pack("<Q", len(new)) + new + rest


def changed_archive(content: bytes, rng: Rng) -> bytes:
    """A .zip file whose members are well packed, with one of them changed, added, renamed or twice."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    out = io.BytesIO()
    chosen = rng.randrange(len(members))
    with zipfile.ZipFile(out, "w") as archive:
        for number, (entry, inner) in enumerate(members):
            name, kind = entry.filename, entry.compress_type
            if number == chosen:
                way = rng.random()
                if way < 0.7:
                    inner = changed(inner, rng, name)
                elif way < 0.8:
                    name = rng.choice(["../a", "/etc/a", "a\0b", name.upper(), "é" * 200])
                elif way < 0.9:
                    continue
                else:
                    kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
            archive.writestr(zipfile.ZipInfo(name), inner, kind)
    return out.getvalue()


COMPRESSORS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (gzip.compress, gzip.decompress),
    ".bz2": (bz2.compress, bz2.decompress),
    ".xz": (lzma.compress, lzma.decompress),
}
"""How to pack and unpack, by the ends of names. A .zst file is damaged as a whole."""


def changed(content: bytes, rng: Rng, name: str, other: bytes = b"") -> bytes:
    """A changed file: where its format is known, often inside of what holds it, so that readers come past the first check."""
    inside = rng.random() < 0.7
    try:
        if inside and content[:2] == b"PK":
            return changed_archive(content, rng)
        for suffix, (pack, unpack) in COMPRESSORS.items():
            if inside and name.endswith(suffix):
                return pack(changed(unpack(content), rng, name.removesuffix(suffix), other))
        if inside and name.endswith(".safetensors"):
            return changed_header(content, rng)
        if inside and content[:1] in (b"{", b"[") and name.endswith("jsonl"):
            lines = content.split(b"\n")
            at = rng.randrange(len(lines))
            lines[at] = changed_json(lines[at], rng)
            return b"\n".join(lines)
        if inside and content[:1] in (b"{", b"["):
            return changed_json(content, rng)
    except (ValueError, OSError, EOFError, RecursionError, NotImplementedError, zipfile.BadZipFile, struct.error):
        pass
    if rng.random() < 0.05:
        return bomb(rng)
    return damaged(content, rng, other)
