"""Reasons why a file or folder cannot be used (it is missing, permissions forbid it); files that are replaced atomically."""

import codecs
import errno
import fcntl
import glob
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

NO_FILE = "there is no such file"

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""Raised by code that takes plain data apart, as JSON has it, if the data has another form than the code expects."""

ROOT = 0
"""The number of the system's own user, who can write everywhere."""

ASIDE = ".tmp-"
"""Prefix of files that are still being written. After a crash such a file may remain, until it is written again."""


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
    if default_mode() & 0o600 != 0o600:
        return f"permission denied: your umask ({_umask():03o}) takes your own permissions from new files; set umask 022"
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


def own_cache() -> Path | None:
    """weft's folder in the cache of the user; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"
    except RuntimeError:
        return None


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
    """Writes a file atomically: a crash leaves either the old file or the new one, also if the machine loses power."""
    with naming(file), unfinished(file) as aside:
        with open(aside, "xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, file)
        sync(file.parent)


@contextmanager
def unfinished(target: Path, *, sweep: bool = False) -> Iterator[Path]:
    """Yields a new path beside `target`, for a file or folder that is to replace it; afterwards nothing has this path.

    Each call has a path of its own, so processes and threads with the same target do not disturb each other. What killed
    processes have left of this target is removed first, or with `sweep`, of any target in the folder.
    """
    left = rf"{re.escape(ASIDE)}(old-)?{re.escape(short_name(target))}(\.\w{{8}}(\..*)?)?"
    aside = temporary_name(target)
    with _writing(target.parent, re.escape(ASIDE) + ".*" if sweep else left):
        try:
            yield aside
        finally:
            _remove(aside)


@contextmanager
def sole_writer(file: Path, output: Path | str) -> Iterator[None]:
    """Holds a lock on a file that becomes `output`, and creates it if it is not there.

    Raises OSError if another process has it. Where files cannot be locked, nothing is held.
    """
    while True:
        handle = os.open(claim(file), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _try_to_lock(handle, output)
            if file.exists() and os.path.samestat(os.fstat(handle), file.stat()):  # otherwise it has just got its final name
                yield
                return
        finally:
            os.close(handle)


def _try_to_lock(handle: int, output: Path | str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another process is writing it; wait for it, or choose another name", str(output)) from None
    except OSError:  # not every file system has locks
        pass


def temporary_name(target: Path, kind: str = "") -> Path:
    """A new path beside `target` that the next writer of this target removes, if it is still there."""
    return target.with_name(f"{ASIDE}{kind}{short_name(target)}.{os.urandom(4).hex()}")


def remove_unfinished(folder: Path) -> None:
    """Removes what killed processes have left half written in a folder. If a living one writes there, nothing is removed."""
    with _writing(folder, re.escape(ASIDE) + ".*"):
        pass


@contextmanager
def _writing(folder: Path, left: str) -> Iterator[None]:
    """Holds a shared lock on a folder. If nobody else has one, entries whose names match `left` are removed before.

    Where folders cannot be locked, as on some network file systems, nothing is removed.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # if the folder cannot be opened, writing there says why
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for entry in os.listdir(handle):
                    if re.fullmatch(left, entry):
                        _remove(folder / entry)
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield


def _remove(path: Path) -> None:
    """Removes a file or folder, if it is there and as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def make_folder(folder: Path) -> None:
    """Makes a folder with its parents, unless it is there, and syncs their names to disk."""
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync(each.parent)


def sync_all(path: Path) -> None:
    """Syncs a file, or a folder with everything in it, to disk."""
    for folder, _, files in os.walk(path):
        for each in (*(os.path.join(folder, name) for name in files), folder):
            if not os.path.islink(each):
                sync(Path(each))
    if not path.is_dir():
        sync(path)


def short_name(file: Path) -> str:
    """The name of a file, shortened if there is no room for a prefix and a suffix: a name has at most 255 bytes."""
    name = os.fsencode(file.name)
    return file.name if len(name) <= 200 else f"{file.name[:40]}-{hashlib.blake2b(name, digest_size=8).hexdigest()}"


def sync(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk."""
    with naming(path):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Makes errors in writing a file name it. Those of the system name a temporary path, or nothing if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None or ASIDE in str(error.filename):
            raise OSError(error.errno, error.strerror or str(error), str(file)) from error
        raise


@contextmanager
def appending(file: Path) -> Iterator[IO[str]]:
    """A text file that is added to."""
    with naming(file), open(file, "a", encoding="utf-8") as out:
        yield out


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
