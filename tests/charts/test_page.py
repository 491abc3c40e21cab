"""The HTML page of a chart."""

from pathlib import Path

from dovetail.charts import FactTable, save_figure
from dovetail.charts.style import INK, PAPER
from tests.charts.test_figure import make_figure


def test_a_page_needs_no_other_file(tmp_path: Path):
    save_figure(make_figure(), tmp_path / "chart.html")

    page = (tmp_path / "chart.html").read_text()
    assert "<svg" in page
    assert "<title>Costs $1 or $2</title>" in page
    for outside in ("<script", "<link", "<img", "@import", "url(http", 'src="', 'href="http', "<!DOCTYPE svg"):
        assert outside not in page


def test_a_page_changes_its_colours_in_the_dark(tmp_path: Path):
    save_figure(make_figure(), tmp_path / "chart.html")

    page = (tmp_path / "chart.html").read_text()
    picture = page[page.index("<svg") : page.index("</svg>")]
    assert "prefers-color-scheme: dark" in page
    assert "var(--ink)" in picture
    assert INK not in picture
    assert PAPER not in picture


def test_a_page_has_the_facts_as_a_table(tmp_path: Path):
    table = FactTable(caption="What <it> costs", columns=("plan", "cost"), rows=(("a & b", "$3.00"),))

    save_figure(make_figure(), tmp_path / "chart.html", table=table)

    page = (tmp_path / "chart.html").read_text()
    assert "<caption>What &lt;it&gt; costs</caption>" in page
    assert "<tr><td>a &amp; b</td><td>$3.00</td></tr>" in page
