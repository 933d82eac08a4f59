"""YAML that is odd, hostile or careless ends in one sentence, in files and in --set."""

import pytest

from hatdfed.errors import ConfigError
from hatdfed.setup.layers import resolve
from hatdfed.setup.plain_yaml import parse_assignment, read_yaml

_ODD_VALUES = {
    "a date that does not exist": "2024-13-45",
    "too many digits": "9" * 6000,
    "too many hexadecimal digits": "0x" + "f" * 6000,
    "no integer": "!!int x",
    "an empty integer": '!!int ""',
    "no number": "!!float x",
    "no truth value": "!!bool x",
    "no point in time": "!!timestamp x",
    "nested too deeply": "[" * 3000,
}


@pytest.fixture(params=_ODD_VALUES.values(), ids=_ODD_VALUES.keys())
def odd(request):
    return request.param


def test_an_odd_value_in_a_file_is_refused(odd, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(f"seed: {odd}\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml is not valid YAML") as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_an_odd_value_in_an_assignment_is_refused(odd):
    with pytest.raises(ConfigError, match="--set seed cannot take") as caught:
        parse_assignment(f"seed={odd}")
    assert len(str(caught.value)) < 200


def test_a_long_value_is_cut_in_a_sentence():
    with pytest.raises(ConfigError, match="rounds is 'xxx") as caught:
        resolve({"rounds": "x" * 6000})
    assert len(str(caught.value)) < 300


def test_aliases_are_refused_before_they_multiply(tmp_path):
    file = tmp_path / "mine.yaml"
    doubled = "\n".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]" for i in range(1, 12))
    file.write_text(f"k0: &k0 [x]\n{doubled}\n")
    with pytest.raises(ConfigError, match=r"has the alias \*k0 at line 2"):
        read_yaml(file)
    file.write_text("policy: &p {name: ring, x: *p}\n")
    with pytest.raises(ConfigError, match=r"has the alias \*p at line 1"):
        read_yaml(file)
    with pytest.raises(ConfigError, match=r"--set policy has the alias \*p"):
        parse_assignment("policy=&p {name: ring, x: *p}")


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("servers: 3\nrounds: 4\nservers: 5\n")
    with pytest.raises(ConfigError, match="has 'servers' twice at line 3"):
        read_yaml(file)
    file.write_text("policy:\n  name: ring\n  name: rnd\n")
    with pytest.raises(ConfigError, match="has 'name' twice at line 3"):
        read_yaml(file)
    with pytest.raises(ConfigError, match="--set policy has 'name' twice"):
        parse_assignment("policy={name: ring, name: rnd}")


def test_text_that_is_no_yaml_stays_text_in_an_assignment():
    assert parse_assignment("network=@mine") == {"network": "@mine"}
    assert parse_assignment("network=a: b: c") == {"network": "a: b: c"}
