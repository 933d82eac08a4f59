"""Settings of a run folder whose values do not suit their tags."""

import pytest

from hatdfed.errors import RunFolderError
from hatdfed.runs.records.small_files import read_settings


@pytest.mark.parametrize("value", ["2024-13-45", "!!int x", '!!int ""', "!!bool x", "!!timestamp x", "[" * 3000])
def test_an_odd_value_is_refused(tmp_path, value):
    (tmp_path / "config.yaml").write_text(f"seed: {value}\n")
    with pytest.raises(RunFolderError, match="not plain YAML"):
        read_settings(tmp_path)
