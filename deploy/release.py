"""Builds the source distribution and the wheels twice, compares their bytes, and tries the wheels in an empty environment.

    python deploy/release.py [--out dist] [--url https://HOST/OWNER/NAME] [--packages PYTHON]

The sources are those of the last commit, unpacked into a temporary folder, so nothing that lies around gets in. Archives have
the time of that commit, no owners and sorted names, so the same commit gives the same bytes. The environment for the smoke
test is outside the checkout. Beside the pure wheel there is one with compiled kernels for x86-64, and one for ARM if its
compiler is installed (apt install g++-aarch64-linux-gnu); the one for this machine is tried without a compiler. --url: the
public address of the repository; the archives get [project.urls], and the links of their README lead there. --packages: borrow
the packages of another environment instead of installing them, which takes minutes.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

BUILD = "from setuptools import build_meta as b; import sys; print(getattr(b, sys.argv[1])(sys.argv[2]))"

SMOKE = """
import os, sys, weft, weft_contract, weft_studies
from pathlib import Path
here = Path(sys.prefix).resolve()
assert all(here in Path(each.__file__).resolve().parents for each in (weft, weft_contract, weft_studies)), weft.__file__
assert here not in Path.cwd().resolve().parents
sets = {"train.steps": 2, "train.batch_tokens": 256, "train.device": "cpu", "train.tensorboard": False, "data.vocabulary": 300}
data = "generated:reverse?count=200&split="
weft.train("transformer-tiny", data=data + "train", valid=data + "valid", out="run", set=sets)
translator = weft.load("run", device="cpu")
from importlib.metadata import metadata
print(weft.__version__, repr(text := translator.translate("a b").text))
print(*metadata("weft-seq2seq").get_all("Project-URL", ()), sep="; ")
if "KERNELS" in os.environ:
    from weft.layers.kernels.cpp.compiled_library import PREBUILT, library
    assert Path(library()._name).parent == PREBUILT
    assert translator.translate("a b", compile=True).text == text
"""

ARCHITECTURES = {
    "x86_64": ("x86_64-linux-gnu-g++", ("AVX2", "AVX512-VNNI")),
    "aarch64": ("aarch64-linux-gnu-g++", ("NEON",)),
}
"""The compiler for each architecture, and the instruction sets among which the kernels choose when they are loaded."""

PLATFORM = "manylinux_2_28"
"""The oldest system on which torch's own wheels run."""

NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (8, 0), "GOMP": (4, 5), "OMP": (4, 5)}
"""The newest versions of symbols that such systems have."""

LIBRARIES = r"lib(stdc\+\+\.so\.6|m\.so\.6|gomp\.so\.1|gcc_s\.so\.1|c\.so\.6)|ld-linux-(x86-64\.so\.2|aarch64\.so\.1)"
"""Libraries that the kernels may need. libgomp is no part of such systems, but of torch, which is imported before."""

FOLDER = "weft/layers/kernels/cpp/prebuilt"

ADDRESS = re.compile(r"https://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:\d+)?(/[\w.~-]+)+")
"""The address of a repository on a host such as GitHub: no password, no query."""

LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)")
"""The beginning of a Markdown link or picture whose target is a path."""

PREBUILD = """
import sys
from pathlib import Path
from weft.layers.kernels.cpp.compiled_library import prebuild
for name in sys.argv[3:]:
    prebuild(name, sys.argv[1], Path(sys.argv[2]))
"""


def run(command: Sequence[str | Path], **options: object) -> str:
    """Standard output of a command, which must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def public_address(text: str) -> str:
    """The address of the repository, without `/` or `.git` at its end. Raises ArgumentTypeError if it is none."""
    address = text.removesuffix("/").removesuffix(".git")
    if not ADDRESS.fullmatch(address):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no public address of a repository, such as https://example.org/owner/weft"
        )
    return address


def project_urls(address: str, version: str) -> dict[str, str]:
    """The addresses that package indexes show beside a release, laid out as on GitHub and GitLab."""
    files = f"{address}/blob/v{version}"
    return {
        "Homepage": address,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Source": f"{address}/tree/v{version}",
    }


def write_addresses(sources: Path, address: str) -> None:
    """Puts [project.urls] into the sources, and makes the links of README.md absolute: an index shows it without the files."""
    (version,) = re.findall(r'^VERSION = "(.+)"$', (sources / "weft/version.py").read_text("utf-8"), re.MULTILINE)
    with (sources / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write("\n[project.urls]\n")
        project.writelines(f'{name} = "{url}"\n' for name, url in project_urls(address, version).items())
    readme = (sources / "README.md").read_text("utf-8")
    places = {"": "blob", "!": "raw"}
    linked = LINK.sub(lambda found: f"{found[0]}{address}/{places[found[1]]}/v{version}/", readme)
    (sources / "README.md").write_text(linked, "utf-8")


def build(folder: Path, epoch: str, url: str | None) -> dict[str, bytes]:
    """The archives of the last commit, by name. url: the public address of the repository."""
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    sources, out = folder / "sources", folder / "out"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(sources, filter="data")
    if url:
        write_addresses(sources, url)
    out.mkdir()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "TZ": "UTC"}
    for kind in ("build_sdist", "build_wheel"):
        run([sys.executable, "-c", BUILD, kind, out], cwd=sources, env=environment)
    found = {file.name: file.read_bytes() for file in sorted(out.iterdir())}
    (pure,) = (name for name in found if name.endswith(".whl"))
    found |= platform_wheels(pure, found[pure], sources)
    return {name: normalized(data, int(epoch)) if name.endswith(".tar.gz") else data for name, data in found.items()}


def platform_wheels(pure: str, content: bytes, sources: Path) -> dict[str, bytes]:
    """The wheels by name. pure, content: the pure wheel · sources: the unpacked commit."""
    wheels = {}
    for architecture, (compiler, instructions) in ARCHITECTURES.items():
        if shutil.which(compiler) is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            run([sys.executable, "-c", PREBUILD, compiler, folder, *instructions], cwd=sources)
            files = sorted(Path(folder).iterdir())
            made = {file.name: file.read_bytes() for file in files}
            for file in files:
                if problem := unfitting(run(["readelf", "-dVW", file])):
                    raise SystemExit(f"{file.name} does not fit {PLATFORM}: {problem}")
        tag = f"py3-none-{PLATFORM}_{architecture}"
        wheels[pure.replace("py3-none-any", tag)] = with_libraries(content, tag, made)
    return wheels


def unfitting(described: str) -> str:
    """The symbols and libraries that not every system of the platform has. described: by `readelf -dV`."""
    found = [(name, tuple(map(int, version.split(".")))) for name, version in re.findall(r"Name: ([A-Z]+)_([\d.]+)", described)]
    problems = [f"{name}_{'.'.join(map(str, version))}" for name, version in found if version > NEWEST.get(name, ())]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", described)
    return ", ".join(problems + [library for library in needed if not re.fullmatch(LIBRARIES, library)])


def with_libraries(pure: bytes, tag: str, libraries: dict[str, bytes]) -> bytes:
    """A wheel for a platform: the pure wheel and libraries. The same inputs give the same bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(pure)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        entries = [(info, old.read(info)) for info in old.infolist()]
        (last,) = (info for info, _ in entries if info.filename.endswith(".dist-info/RECORD"))
        for name, content in libraries.items():
            info = zipfile.ZipInfo(f"{FOLDER}/{name}", last.date_time)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            entries.append((info, content))
        rows = []
        for info, content in sorted(entries, key=lambda entry: entry[0].filename):
            if info is last:
                continue
            if info.filename.endswith(".dist-info/WHEEL"):
                content = content.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
                content = content.replace(b"Tag: py3-none-any", f"Tag: {tag}".encode())
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{info.filename},sha256={digest},{len(content)}\n")
            new.writestr(info, content)
        new.writestr(last, "".join([*rows, f"{last.filename},,\n"]))
    return packed.getvalue()


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
        if not wheel.name.endswith("-any.whl"):
            environment |= {"PATH": str(python.parent), "KERNELS": "installed"}  # there is no compiler
        said = run([python, "-c", SMOKE], cwd=work, env=environment)
        run([python, "-m", "weft", "list", "attentions"], cwd=work, env=environment)
        return said.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--url", type=public_address, help="the public address of the repository, for [project.urls]")
    parser.add_argument("--packages", help="the Python of an environment whose packages the smoke test borrows")
    options = parser.parse_args()
    epoch = run(["git", "log", "-1", "--format=%ct"], cwd=ROOT).strip()
    builds = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as temporary:
            builds.append(build(Path(temporary), epoch, options.url))
    if builds[0] != builds[1]:
        differing = [name for name in builds[0] if builds[0][name] != builds[1].get(name)]
        raise SystemExit(f"two builds of the same commit differ: {', '.join(differing)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for name, content in builds[0].items():
        (options.out / name).write_bytes(content)
        print(f"{hashlib.sha256(content).hexdigest()}  {name}  {len(content) / 1e6:.1f} MB, the same in two builds")
    if options.url:
        print(f"[project.urls] and the links of README.md lead to {options.url}")
    else:
        print(
            "no [project.urls], and relative links in README.md, since no address was given: make release URL=https://HOST/OWNER/NAME"
        )
    for name in builds[0]:
        if name.endswith(("-any.whl", f"{platform.machine()}.whl")):
            print(f"{name} in an empty environment: weft {smoke_test(options.out / name, options.packages)}")


if __name__ == "__main__":
    main()
