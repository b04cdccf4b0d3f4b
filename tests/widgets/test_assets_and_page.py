"""The joined JavaScript and the one-file page."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest
from widget_samples import SampleRun

import rlinf_lab.widgets as widgets
from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets.assets import DASHBOARD, STATIC, TIMELINE, module, stylesheet

MODULES = [
    (*TIMELINE, "timeline_widget.js"),
    DASHBOARD,
    (*TIMELINE, "page.js"),
]


@pytest.mark.parametrize("names", MODULES)
def test_a_joined_module_imports_nothing_and_names_nothing_twice(names: tuple[str, ...]) -> None:
    text = module(*names)
    assert not re.search(r"^import ", text, re.MULTILINE)
    assert len(re.findall(r"^export ", text, re.MULTILINE)) == text.count("export default")
    defined = re.findall(r"^(?:async )?(?:function|class) (\w+)", text, re.MULTILINE)
    for line in re.findall(r"^(?:const|let) (.*)", text, re.MULTILINE):
        defined += re.findall(r"(?:^|, )(\w+) = ", re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", line))
    assert [n for n, times in collections.Counter(defined).items() if times > 1] == []


@pytest.mark.parametrize("names", MODULES)
def test_what_a_file_imports_is_exported_by_a_file_before_it(names: tuple[str, ...]) -> None:
    exported: set[str] = set()
    for name in names:
        text = (STATIC / name).read_text(encoding="utf-8")
        for wanted in re.findall(r"^import \{([^}]*)\}", text, re.MULTILINE):
            assert {w.strip() for w in wanted.split(",")} <= exported, name
        for line in re.findall(r"^export (?:async )?(?:function|class|const|let) (.*)", text, re.MULTILINE):
            exported |= set(re.findall(r"(?:^|, )(\w+)(?= =|\(| \{|$| extends)", line))


def test_nothing_is_fetched_from_anywhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in STATIC.iterdir()) + stylesheet()
    text = text.replace('"http://www.w3.org/2000/svg"', "")  # the name of a namespace: nobody goes there
    assert not re.search(r"https?://|fetch\(|@import|url\(", text)


def test_the_page_is_one_file(tmp_path: Path) -> None:
    sample = SampleRun(steps=2)
    sample.step()
    text = widgets.timeline_html(sample.timeline, tmp_path / "t.html", "<run>").read_text(encoding="utf-8")
    assert "<title>&lt;run&gt;</title>" in text and text.count("</script>") == 2
    assert not re.search(r"(?:src|href)=", text)


def test_the_page_of_an_empty_timeline(tmp_path: Path) -> None:
    assert widgets.timeline_html(Timeline(["cpu:0"]), tmp_path / "t.html").stat().st_size > 1000


def test_an_unknown_name_of_the_room() -> None:
    with pytest.raises(AttributeError, match="no_such"):
        widgets.no_such  # noqa: B018
