"""What a word on the command line means: a run file, a model of ours, or one of a user's."""

from __future__ import annotations

import pytest

from dovetail.errors import DovetailError
from dovetail.orchestrate.run_files import model_run


def test_a_run_file_in_the_place_of_a_model_is_told_what_to_do_with_it(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('model = { name = "ctr-dnn" }\n')

    with pytest.raises(DovetailError, match=r"run\.toml` is a file, expected a model") as caught:
        model_run(str(file), model_options={}, data="clicks", data_options={}, samples=10, batch=2, seed=0)

    assert f"dovetail train {file}" in caught.value.hint
