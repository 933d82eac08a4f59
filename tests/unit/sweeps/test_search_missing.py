"""Without Optuna everything else works, and a search says what to install."""

import pytest
from tests.unit.sweeps.small import SMALL

import hatdfed
from hatdfed.errors import MissingDependencyError


def test_a_search_without_optuna_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("hatdfed.sweeps.search.find_spec", lambda name: None)
    search = {"base": SMALL, "search": {"parameters": {"link_share": {"low": 0.1, "high": 0.5}}}}
    with pytest.raises(MissingDependencyError, match=r"pip install 'hatdfed\[search\]'"):
        hatdfed.sweep(search, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()
