"""The list of findings of a cluster: severity, code, subject, sentence and remedy of each."""

from __future__ import annotations

from typing import Any

from isthmus.node.services.findings import DOCUMENTS, REMEDIES, Code, findings_document
from tests.support.cluster_answers import (
    NOW_MS,
    cluster_answer,
    fullsync_answer,
    health_answer,
    lag_answer,
    sinks_answer,
)


def answers_of(cluster: str, **changed: Any) -> dict[str, Any]:
    """The documents of a healthy cluster. `changed`: documents by name."""
    return {
        "cluster": cluster_answer(cluster),
        "health": health_answer(cluster),
        "lag": lag_answer(cluster),
        "sinks": sinks_answer(cluster),
        "fullsync": fullsync_answer(cluster),
        "gaps": {"gaps": [], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS},
        **changed,
    }


def test_a_healthy_cluster_has_no_finding() -> None:
    """The list is empty and the state is ok when every document is there and fine."""
    assert answers_of("east").keys() == DOCUMENTS.keys()
    assert findings_document(answers_of("east"), {}) == {"state": "ok", "findings": []}


def test_a_finding_has_all_that_a_reader_shows() -> None:
    """Code and subject for programs, severity, sentence and remedy for people; the worst comes first."""
    late = lag_answer("east")
    late["lag"][0] |= {"seconds": 400.0, "objects": 15}
    found = findings_document(answers_of("east", lag=late, sinks=sinks_answer("east", state="failing")), {})
    assert found["state"] == "critical"
    assert found["findings"][0] == {
        "code": "lag",
        "severity": "critical",
        "subject": "queue to-west",
        "sentence": "queue to-west, bucket type default: 6.7 min behind, keys that wait: 15",
        "remedy": REMEDIES[Code.LAG],
    }
    assert [row["code"] for row in found["findings"][1:]] == ["links-fail"]


def test_what_was_not_answered_is_a_finding() -> None:
    """A document without an answer is named with the reason, and so is a cluster that does not answer at all."""
    answers = answers_of("east")
    del answers["gaps"]
    found = findings_document(answers, {"gaps": "timed out"})
    assert [(row["code"], row["severity"], row["sentence"]) for row in found["findings"]] == [
        ("not-known", "unknown", "gaps: timed out")
    ]
    assert found["state"] == "unknown"
    assert findings_document({}, {"cluster": "no node answers"})["findings"][0]["sentence"] == "no node answers"


def test_every_code_has_a_remedy() -> None:
    """No finding is shown without what to do next."""
    assert REMEDIES.keys() == set(Code)
    assert all(REMEDIES.values())


def test_an_unforeseen_exception_is_a_finding_of_its_node() -> None:
    """A defect that ended something within the last day is a warning, with what to do."""
    answers = answers_of("east")
    node = next(iter(answers["health"]["nodes"]))
    healthy, words = answers["health"]["nodes"][node], "a defect of this program ended push.bug once, in a.py:3: 'x'"
    answers["health"]["nodes"][node] = {**healthy, "defects": [words]}
    (finding,) = findings_document(answers, {})["findings"]
    assert finding["sentence"] == f"node {node}: {words}"
    assert (finding["severity"], finding["code"]) == ("warning", "defect")
    assert "support-bundle" in finding["remedy"]
