"""Remote files as data, through fsspec: https, s3, gs, hf and whatever else it knows.

A remote file is copied into the cache once, under a name that depends on its address and its state there. So training reads it
at the speed of a disk and can be resumed without a network, and a file that changes is copied again. The files of a pattern,
such as `s3://bucket/corpus-*.tsv.zst`, are copied into one folder, so that the pattern means their copies there.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.data.corpus import cache_folder, close_own, trusted_place
from weft.errors import DataError
from weft.file_access import replacing_file, why_untrusted
from weft.version import install

ADDRESS = re.compile(r"(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^,#]+")
STATE = ("ETag", "etag", "LastModified", "last_modified", "mtime", "created", "size", "md5Hash", "checksum")
"""Names that file systems give to facts that change with a file."""

BLOCK = 1 << 22

PATTERN = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*://[^*?\[]*/[^/]*[*?\[][^/]*")
"""Addresses that stand for several files of one folder. A page of the web has no list of its files, and a ? is a parameter."""

SECRET = re.compile(
    r"[?&][\w.-]*(?:token|sig|signature|secret|password|passwd|credential|api[_-]?key|access[_-]?key)=", re.IGNORECASE
)
"""Parameters of an address that let everybody read the file who has it."""

USER = re.compile(r"(?!github)[a-z][a-z0-9+.-]*://[^/?#]*@", re.IGNORECASE)
"""Addresses with a name, a password or a token before the host. In github://owner:repository@revision there is none."""


def local_copies(spec: str) -> str:
    """`spec` with the paths of local copies in place of addresses."""
    return ADDRESS.sub(lambda address: str(local_copy(address[0].strip())), spec)


def local_copy(address: str) -> Path:
    """The copy of a remote file in the cache, fetched if it is not there or has changed; of a pattern, that of the copies.

    Without a connection, an earlier copy is used. Raises DataError if there is none.
    """
    if USER.match(address) or SECRET.search(address):
        raise DataError(
            f"{address.partition('://')[0]}://…: this address has a password or a token in it, which the run, its log and its "
            "card would show. Download the file and name the copy, or give the secret to fsspec: in ~/.config/fsspec, or "
            "FSSPEC_HTTPS"
        )
    folder = cache_folder(None) / "remote" / hashlib.blake2b(address.encode(), digest_size=12).hexdigest()
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise DataError(f"{address}: remote files need the package fsspec: {install('remote')}") from None
    try:
        system, path = url_to_fs(address)
        pattern = PATTERN.match(address) is not None
        paths = sorted(system.glob(path)) if pattern else [path]
        if not paths:
            raise FileNotFoundError("no file has such a name")
        place = trusted_place(folder / _state({each: system.info(each) for each in paths} if pattern else system.info(path)))
        for each in paths:
            copy = place / Path(each).name
            if not copy.exists():
                place.mkdir(parents=True, exist_ok=True)
                with system.open(each, "rb") as source, replacing_file(copy) as target:
                    shutil.copyfileobj(source, target, BLOCK)
        close_own(place)
        return place / Path(path).name
    except (OSError, ValueError, ImportError, NotImplementedError) as error:
        kept = sorted((file for file in folder.glob("*/*") if not why_untrusted(file)), key=lambda file: file.stat().st_mtime)
        if kept and isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            return kept[-1].with_name(Path(address).name) if PATTERN.match(address) else kept[-1]
        raise DataError(f"{address}: the file cannot be fetched: {str(error) or type(error).__name__}.") from None


def _state(info: Mapping[str, Any]) -> str:
    """A hash of the facts that change with a file, or with the files of a pattern."""
    nested = {name: _state(facts) for name, facts in info.items() if isinstance(facts, dict)}
    known = nested or {key: str(info[key]) for key in STATE if info.get(key) is not None}
    return hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=8).hexdigest()
