"""A server with a translation memory: what the answers say, and whose languages it is read in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.serving import running
from tests.helpers.tiny import Shell
from weft.errors import ConfigError, DataError
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models

TMX = """<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>a b c</seg></tuv><tuv xml:lang="de"><seg>{0}</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>a b c d e f</seg></tuv><tuv xml:lang="de"><seg>not used</seg></tuv></tu>
</body></tmx>"""


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    (tmp_path / "memory.tmx").write_text(TMX.format("x y z"), encoding="utf-8")
    return tmp_path / "memory.tmx"


def location(run: Path, source: str = "en", target: str = "de") -> ModelLocation:
    return ModelLocation((str(run),), (source, target))


def test_answers_say_what_comes_from_the_memory(reverse_run: Path, memory: Path) -> None:
    models = Models([location(reverse_run)], device="cpu", memories=[str(memory)])
    with running(models) as served:
        for _ in range(2):  # the second answers come from the cache
            exact, fuzzy, none, blank = served.translate(["a b c", "a b c d e h", "b", ""])
            assert (exact["text"], exact["memory"]) == ("x y z", "exact") and "match" not in exact
            assert (fuzzy["text"], fuzzy["memory"]) == ("h e d c b a", "fuzzy")
            assert fuzzy["match"] == {"score": 0.8333, "source": "a b c d e f", "target": "not used"}
            assert none["text"] == "b" and "memory" not in none and blank["text"] == ""
        assert served.translate("a b c", prefix="c")[0]["text"] == "c b a"
        assert served.translate("<p>a b c</p><p>b</p>", format="html")[0]["text"] == "<p>x y z</p><p>b</p>"
        assert served.post("/translate", q="a b c", source="en", target="de")["translatedText"] == "x y z"


def test_reloading_reads_the_memory_again(reverse_run: Path, memory: Path) -> None:
    models = Models([location(reverse_run)], device="cpu", memories=[str(memory)])
    memory.write_text(TMX.format("newer"), encoding="utf-8")
    models.reload()
    (model,) = models.served
    assert model.memory is not None and (match := model.memory.find("a b c")) and match.target == "newer"


def test_each_model_has_the_pairs_of_its_languages(reverse_run: Path, memory: Path, tmp_path: Path) -> None:
    both = [location(reverse_run), location(reverse_run, "de", "en")]
    first, second = Models(both, device="cpu", memories=[str(memory)]).served
    assert first.memory is not None and (match := first.memory.find("a b c")) and match.target == "x y z"
    assert second.memory is not None and (match := second.memory.find("x y z")) and match.target == "a b c"
    with pytest.raises(DataError, match="no unit has texts in both en and fr"):
        Models([location(reverse_run, "en", "fr")], device="cpu", memories=[str(memory)])
    (tmp_path / "memory.tsv").write_text("a\tb\n", encoding="utf-8")
    for name in (tmp_path / "memory.tsv", f"{memory}#en,de"):
        with pytest.raises(ConfigError, match=r"each of which takes the pairs of its languages from a \.tmx"):
            Models(both, device="cpu", memories=[str(name)])


def test_the_command_opens_the_memory(weft: Shell, reverse_run: Path, tmp_path: Path) -> None:
    weft.fails("serve", f"en-de={reverse_run}", "--port", "0", "--memory", tmp_path / "no.tmx", says=["no.tmx"])
