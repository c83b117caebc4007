"""The route of the diagnosis: docs/api.md."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from rangewatch_server import rules
from rangewatch_server.alerts.evaluator import Evaluator, thresholds_of
from rangewatch_server.routes.dependencies import RunId, Step, answer, reading, reading_run
from rangewatch_server.rules import presets
from rangewatch_server.rules.diagnosis import diagnose

router = APIRouter()


@router.get("/api/v1/rules")
def list_rules(request: Request) -> Response:
    """The rules there are, with their thresholds, and other tools' sets of these."""
    with reading(request):
        return answer({"rules": [_rule(each) for each in rules.ALL], "presets": presets.ALL})


def _rule(rule: rules.Rule) -> dict[str, object]:
    return {
        "name": rule.name, "title": rule.title, "severity": rule.severity, "explanation": rule.explanation,
        "thresholds": [
            {"name": each.name, "default": each.default, "unit": each.unit, "help": each.help}
            for each in rule.thresholds
        ],
    }  # fmt: skip


def _finding(finding: rules.Finding) -> dict[str, object]:
    return {"label": rules.label(finding)} | msgspec.structs.asdict(finding)


@router.get("/api/v1/runs/{run_id}/diagnosis")
def show_diagnosis(run_id: RunId, request: Request, stop: Step = None) -> Response:
    """What is wrong with the run, most important first, by the thresholds in force for it; with `stop` as it was before
    that step.
    """
    evaluator: Evaluator = request.app.state.alerts
    with reading_run(request, run_id) as run:
        given = thresholds_of(run, evaluator.config)
        diagnosis = diagnose(run, stop, given)
        return answer(
            {
                "run": run.name,
                "start": diagnosis.start,
                "stop": diagnosis.stop,
                "findings": [_finding(each) for each in diagnosis.findings],
                "failed": diagnosis.failed,
                "thresholds": given,
            }
        )
