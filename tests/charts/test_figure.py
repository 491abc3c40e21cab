"""The files that figures are saved to."""

from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from dovetail.charts import save_figure
from dovetail.charts.figure import axes_in_inches, new_figure, write_title
from dovetail.charts.style import write
from dovetail.errors import DovetailError


def make_figure(words: str = "a word on it", title: str = "Costs $1 or $2") -> Figure:
    figure = new_figure(4, 3)
    write(axes_in_inches(figure, left=0.5, bottom=0.5, width=3, height=1.5), 0.1, 0.5, words)
    write_title(figure, title, "and a line below", left=0.3)
    return figure


@pytest.mark.parametrize(
    ("name", "first_bytes"),
    [
        ("chart.png", b"\x89PNG\r\n\x1a\n"),
        ("chart.svg", b"<?xml"),
        ("chart.html", b"<!DOCTYPE html>"),
        ("CHART.SVG", b"<?xml"),
    ],
)
def test_the_ending_says_what_is_written(tmp_path: Path, name: str, first_bytes: bytes):
    save_figure(make_figure(), tmp_path / name)

    assert (tmp_path / name).read_bytes().startswith(first_bytes)


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "chart.svg.bak"])
def test_another_ending_is_refused_with_a_hint(tmp_path: Path, name: str):
    with pytest.raises(DovetailError, match=name.replace(".", r"\.")) as refusal:
        save_figure(make_figure(), tmp_path / name)

    assert refusal.value.hint == "end the name in .png, .svg or .html"
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(DovetailError, match=r"there is no folder .*nowhere") as refusal:
        save_figure(make_figure(), tmp_path / "nowhere" / "chart.png")

    assert "make the folder" in refusal.value.hint


def test_a_place_that_cannot_be_written_is_refused_with_a_hint(tmp_path: Path):
    (tmp_path / "chart.png").mkdir()

    with pytest.raises(DovetailError, match="cannot write") as refusal:
        save_figure(make_figure(), tmp_path / "chart.png")

    assert refusal.value.hint


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_the_same_picture_gives_the_same_bytes(tmp_path: Path, ending: str):
    for name in ("one", "two"):
        save_figure(make_figure(), tmp_path / f"{name}.{ending}")

    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()


def test_saving_leaves_the_settings_of_matplotlib_as_they_were(tmp_path: Path):
    before = dict(mpl.rcParams)

    save_figure(make_figure(), tmp_path / "chart.svg")

    assert dict(mpl.rcParams) == before


def test_words_stay_words_in_svg_dollars_and_angles_included(tmp_path: Path):
    save_figure(make_figure("$5 < $6 & more"), tmp_path / "chart.svg")

    svg = (tmp_path / "chart.svg").read_text()
    assert ">$5 &lt; $6 &amp; more</text>" in svg
    assert ">Costs $1 or $2</text>" in svg


def test_letters_that_the_font_lacks_stay_themselves_in_svg(tmp_path: Path):
    save_figure(make_figure("嵌入"), tmp_path / "chart.svg")

    assert "嵌入" in (tmp_path / "chart.svg").read_text(encoding="utf-8")
