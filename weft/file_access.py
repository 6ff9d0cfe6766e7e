"""Reasons why a file or folder cannot be used (it is missing, permissions forbid it); files that are replaced atomically."""

import codecs
import errno
import glob
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

NO_FILE = "there is no such file"

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Raised by code that takes plain data apart, as JSON has it, if the data has another form than the code expects."""

ROOT = 0
"""The number of the system's own user, who can write everywhere."""

ASIDE = ".tmp-"
"""Prefix of files that are still being written. After a crash such a file may remain."""


def why_unreadable(path: str | Path, what: str = "file") -> str | None:
    """A clause that says why this user cannot read a file or folder; None if nothing is in the way.

    what: "file", or "folder" if the path should be one.
    """
    path = Path(path)
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            os.scandir(path).close()
            os.stat(path / ".")  # entering a folder needs another permission than listing it
        elif stat.S_ISREG(found.st_mode):
            os.close(os.open(path, os.O_RDONLY))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no name has a null character or half of a surrogate pair
        return f"there is no such {what}"
    except PermissionError:
        return denied(path, "read it")
    except OSError as error:
        return f"the {what} cannot be read: {error.strerror or error}"
    return None


def denied(path: str | Path, wish: str) -> str:
    """A clause that names the file or folder whose permissions forbid `wish` ("read it"), its owner, and a remedy."""
    path = Path(path).absolute()
    closed = next((folder for folder in reversed(path.parents) if folder.is_dir() and not os.access(folder, os.X_OK)), None)
    needed = "".join(letter for letter, word in (("r", "read"), ("w", "write")) if word in wish)
    place, need = (path, needed) if closed is None else (closed, "x")
    if closed is None and not place.exists():  # a file to create
        place, need, wish = path.parent, "w", f"write to the folder {path.parent}"
    facts = place.stat()
    if closed is not None:
        wish = f"enter the folder {closed}"
    elif need == "r" and stat.S_ISDIR(facts.st_mode):
        need = "rx"
    owner, mode = _user(facts.st_uid), stat.filemode(facts.st_mode)
    return (
        f"permission denied: the user {_user(os.geteuid())} may not {wish} ({mode}, owner {owner}); "
        f"the owner can allow it: chmod a+{need} {place}"
    )


def why_unwritable(folder: Path) -> str | None:
    """A clause that says why this user cannot create files in a folder; None if nothing is in the way."""
    if problem := why_unreadable(folder, "folder"):
        return problem
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return "it is on a read-only file system" if read_only else denied(folder, "write there")


def why_untrusted(path: Path, *, chosen: bool = False, inside: bool = True) -> str | None:
    """A clause that says who else may have written what a cache holds; None if only this user or the system could.

    path: a file or a folder, with what is `inside` · chosen: the user has named the cache, so whoever may write there is
    trusted, unless that is everybody.
    """
    for each in (path, *(sorted(path.rglob("*")) if inside and path.is_dir() else ())):
        facts = each.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return f"{each} is a link"
        others = stat.S_IWOTH if chosen or _own_group(facts.st_gid) else stat.S_IWGRP | stat.S_IWOTH
        if facts.st_uid not in (os.geteuid(), ROOT) and not chosen:
            return f"{each} belongs to {_user(facts.st_uid)}"
        if facts.st_mode & others:
            return f"others may write to {each} ({stat.filemode(facts.st_mode)}): chmod -R go-w {path}"
    return None


def _own_group(number: int) -> bool:
    """Whether a group is this user's alone: many systems make one of the same name for each user."""
    import grp

    try:
        return grp.getgrgid(number).gr_name == _user(os.geteuid())
    except KeyError:
        return False


def close_to_others(folder: Path) -> None:
    """Takes the permission to write from everybody but the owner of a folder and of all that is in it."""
    for each in (folder, *folder.rglob("*")):
        if (mode := each.lstat().st_mode) & 0o022 and not stat.S_ISLNK(mode):
            each.chmod(stat.S_IMODE(mode) & ~0o022)


def claim(file: Path) -> Path:
    """Creates a file whose name others can guess, unless it is there. Raises OSError if somebody else has put one there."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)  # a link could lead to any file of this user
    os.close(handle)
    if made_by_others(file):
        raise PermissionError(errno.EPERM, "somebody else has created this file", str(file))
    return file


def made_by_others(path: Path) -> bool:
    """Whether somebody else has put a file or folder, or a link, where everybody may."""
    return path.lstat().st_uid != os.geteuid() and bool(path.parent.stat().st_mode & stat.S_IWOTH)


def default_mode(folder: bool = False) -> int:
    """The permissions that the umask gives to a new file or folder."""
    return (0o777 if folder else 0o666) & ~_umask()


def _umask() -> int:
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"^Umask:\s*([0-7]+)$", status.read_text("utf-8"), re.MULTILINE)):
        return int(found[1], 8)
    # Elsewhere it can only be read by setting it. The strictest one does no harm to files of other threads.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def replace_file(file: Path, content: str | bytes) -> None:
    """Writes a file atomically, see `replacing_file`."""
    with replacing_file(file) as out:
        out.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def replacing_file(file: Path) -> Iterator[IO[bytes]]:
    """Writes a file atomically: a crash leaves either the old file or the new one, also if the machine loses power.

    Each call has a temporary file of its own, so processes and threads that write the same file do not disturb each other.
    """
    handle, name = tempfile.mkstemp(prefix=f"{ASIDE}{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, default_mode())  # temporary files are private
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to the same file, which need not exist yet."""
    return os.path.realpath(first) == os.path.realpath(second) or (
        first.exists() and second.exists() and first.samefile(second)
    )


COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Ends of the names of compressed files that are read."""


def split_encoding(name: str | Path) -> tuple[str, str | None]:
    """The path and the encoding of `old.tsv@cp1252`; no encoding if the name has none, or if a file has this whole name."""
    path, at, encoding = str(name).rpartition("@")
    if not (at and path and encoding) or "/" in encoding or os.path.exists(name):
        return str(name), None
    try:
        return path, codecs.lookup(encoding).name
    except LookupError:
        return str(name), None


def plain_name(name: str | Path) -> str:
    """The name of a file without its encoding and the suffix of its compression, by which its format is known."""
    path = split_encoding(name)[0]
    return next((path.removesuffix(suffix) for suffix in COMPRESSED if path.endswith(suffix)), path)


def is_pattern(name: str) -> bool:
    """Whether a name stands for several files, as in `corpus-*.tsv`. A file that has the name itself is meant otherwise."""
    return re.search(r"[*?\[]", name) is not None and not os.path.exists(split_encoding(name)[0])


def matching_files(pattern: str) -> list[str]:
    """The files that match a pattern, in the order of their names, each with the encoding behind the pattern."""
    path, encoding = split_encoding(pattern)
    return [f"{file}@{encoding}" if encoding else file for file in sorted(glob.glob(path)) if not os.path.isdir(file)]
