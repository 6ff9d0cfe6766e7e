"""Builds the source distribution and the wheel twice, compares their bytes, and tries the wheel in an empty environment.

    python deploy/release.py [--out dist] [--packages PYTHON]

The sources are those of the last commit, unpacked into a temporary folder, so nothing that lies around gets in. Archives have
the time of that commit, no owners and sorted names, so the same commit gives the same bytes. The environment for the smoke test
is outside the checkout. --packages: borrow the packages of another environment instead of installing them, which takes minutes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

BUILD = "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"

SMOKE = """
import sys, weft, weft_contract, weft_studies
from pathlib import Path
here = Path(sys.prefix).resolve()
assert all(here in Path(each.__file__).resolve().parents for each in (weft, weft_contract, weft_studies)), weft.__file__
assert here not in Path.cwd().resolve().parents
sets = {"train.steps": 2, "train.batch_tokens": 256, "train.device": "cpu", "train.tensorboard": False, "data.vocabulary": 300}
data = "generated:reverse?count=200&split="
weft.train("transformer-tiny", data=data + "train", valid=data + "valid", out="run", set=sets)
print(weft.__version__, repr(weft.load("run", device="cpu").translate("a b").text))
"""


def run(command: Sequence[str | Path], **options: object) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def build(folder: Path, epoch: str) -> dict[str, bytes]:
    """Both archives of the last commit, by name."""
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    sources, out = folder / "sources", folder / "out"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(sources, filter="data")
    out.mkdir()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "TZ": "UTC"}
    for kind in ("build_sdist", "build_wheel"):
        run([sys.executable, "-c", BUILD, kind, out], cwd=sources, env=environment)
    found = {file.name: file.read_bytes() for file in sorted(out.iterdir())}
    return {name: normalized(data, int(epoch)) if name.endswith(".tar.gz") else data for name, data in found.items()}


def normalized(archive: bytes, epoch: int) -> bytes:
    """A source distribution with sorted names, one time, and no owners."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch, filename="") as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname, member.pax_headers = epoch, 0, 0, "", "", {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def smoke_test(wheel: Path, packages: str | None) -> str:
    """Installs the wheel in an empty environment, then trains and translates in an empty folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "venv", with_pip=packages is None)
        python, work = folder / "venv" / "bin" / "python", folder / "work"
        work.mkdir()
        if packages is None:
            run([python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel], cwd=work)
        else:
            sites = run(
                [packages, "-c", "import sys; print(*(each for each in sys.path if 'site-packages' in each), sep='\\n')"]
            )
            inner = Path(run([python, "-c", "import site; print(site.getsitepackages()[0])"]).strip())
            run([packages, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", inner, wheel], cwd=work)
            (inner / "borrowed.pth").write_text(sites)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment |= {"XDG_CACHE_HOME": str(folder / "cache")}
        said = run([python, "-c", SMOKE], cwd=work, env=environment)
        run([python, "-m", "weft", "list", "attentions"], cwd=work, env=environment)
        return said.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--packages", help="the Python of an environment whose packages the smoke test borrows")
    options = parser.parse_args()
    epoch = run(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()
    builds = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as temporary:
            builds.append(build(Path(temporary), epoch))
    if builds[0] != builds[1]:
        differing = [name for name in builds[0] if builds[0][name] != builds[1].get(name)]
        raise SystemExit(f"two builds of the same commit differ: {', '.join(differing)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in builds[0].items():
        (options.out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {name}  {len(content) / 1e6:.1f} MB, the same in two builds")
    (wheel,) = (options.out / name for name in builds[0] if name.endswith(".whl"))
    print(f"in an empty environment: weft {smoke_test(wheel, options.packages)}")


if __name__ == "__main__":
    main()
