"""The notebook of the examples, run by nbclient as a reader runs it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.processes
def test_the_notebook_of_the_examples_trains_and_predicts(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = [cell.outputs[-1] for cell in notebook.cells if cell.get("outputs")]
    assert "<TrainingResult of runs/notebook: 32,000 samples" in shown[1].data["text/plain"]
    words = shown[2].text.split()
    assert words[0::2] == ["clicks:", "others:"]
    assert float(words[1]) > float(words[3])
    assert shown[3].data["text/plain"] == "torch.Size([1000, 8])"
