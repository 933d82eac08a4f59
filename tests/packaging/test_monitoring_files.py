"""The Grafana dashboard and the alert rules use only what the product exports, and every alert is explained."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hatdfed.deploy.coordinator.conduct import NOT_ITS_FAULT
from hatdfed.deploy.monitoring.metrics import COORDINATOR_METRICS, EDGE_METRICS, PROCESS_METRICS

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "packaging" / "prometheus"
DASHBOARD = json.loads((ROOT / "packaging" / "grafana" / "hatdfed.json").read_text(encoding="utf-8"))
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
METRICS = {**COORDINATOR_METRICS, **EDGE_METRICS, **PROCESS_METRICS}
JOBS = {
    "hatdfed-coordinator": {**COORDINATOR_METRICS, **PROCESS_METRICS},
    "hatdfed-edge": {**EDGE_METRICS, **PROCESS_METRICS},
}
BY_PROMETHEUS = {"job", "instance", "alertname", "alertstate"}
promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus), which checks these files"
)


def expressions():
    """All of the dashboard, with a name each."""
    found = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    return found + [(each["name"], each["expr"]) for each in DASHBOARD["annotations"]["list"]]


EXPRESSIONS = [*expressions(), *((rule["alert"], rule["expr"]) for rule in RULES)]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_only_metrics_and_labels_that_are_exported_are_used(where, expression):
    bare = re.sub(r'"[^"]*"', '""', expression)
    for name, selector in re.findall(r"\b((?:hatdfed|process)_\w+)(\{[^}]*\})?", bare):
        assert name in METRICS, f"{where} uses {name}, which nothing exports"
        assert set(re.findall(r"(\w+)\s*[=!]", selector)) <= {*METRICS[name].labels, *BY_PROMETHEUS}, where
    for name, job in re.findall(r'\b((?:hatdfed|process)_\w+)\{job="([\w-]+)"', expression):
        assert name in JOBS[job], f"{where} asks {job} for {name}"


@pytest.mark.parametrize("alert", ["HatdfedServerRefused", "HatdfedBadMessages"])
def test_what_is_the_networks_fault_alarms_nobody(alert):
    (expression,) = [rule["expr"] for rule in RULES if rule["alert"] == alert]
    (left_out,) = re.findall(r'reason!~"([^"]*)"', expression)
    assert set(left_out.split("|")) >= NOT_ITS_FAULT


def test_panels_have_a_place_and_a_number_each():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_what_is_counted_by_server_is_on_the_dashboard():
    shown = " ".join(expression for _, expression in expressions())
    by_server = [name for name, metric in METRICS.items() if "server" in metric.labels]
    assert [name for name in by_server if name not in shown] == ["hatdfed_server_drained", "hatdfed_server_links_total"]


def test_every_alert_has_a_section_that_says_what_to_do():
    section = PAGE[PAGE.index("## What each alarm means") :].partition("\n## ")[0]
    parts = re.split(r"^### ", section, flags=re.MULTILINE)[1:]
    titles = [part.partition("\n")[0] for part in parts]
    assert titles == [rule["alert"] for rule in RULES]
    for rule, part in zip(RULES, parts, strict=True):
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert part.partition("\n")[2].strip().startswith(f"*{rule['labels']['severity'].capitalize()}.*"), rule[
            "alert"
        ]
        assert "**Do:**" in part, rule["alert"]
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_every_alert_is_tried():
    tried = (PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8")
    assert [rule["alert"] for rule in RULES if f'"{rule["alert"]}"' not in tried] == []


def run_promtool(*words, cwd=PROMETHEUS):
    done = subprocess.run(["promtool", *words], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_prometheus_reads_its_settings_and_rules():
    run_promtool("check", "config", "prometheus.yml")
    run_promtool("check", "rules", "alerts.yml")


@promtool
def test_alerts_fire_where_they_should_and_nowhere_else():
    run_promtool("test", "rules", "alerts_test.yml")


@promtool
def test_prometheus_reads_every_expression_of_the_dashboard(tmp_path):
    filled = [(where, text.replace("$__rate_interval", "1m")) for where, text in expressions()]
    rules = [{"record": f"panel:{number}", "expr": text} for number, (_, text) in enumerate(filled)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    run_promtool("check", "rules", "rules.yml", cwd=tmp_path)
