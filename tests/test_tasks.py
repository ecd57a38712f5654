"""What the tasks have in common, and what differs by task."""

from __future__ import annotations

from pathlib import Path

from cases import each
from confide.scoring import RelationCounts, count_relations
from confide.tasks import TASKS, task_of_scores


@each("name", sorted(TASKS))
def test_scores_say_of_which_task_they_are(name: str) -> None:
    task = TASKS[name]
    found = task.scores(task.sum([task.nothing, task.nothing]))
    assert task_of_scores(found) is task
    assert found[task.unit] == 0
    assert task.values(found) == dict.fromkeys(task.kinds, 0)


def test_nothing_known_is_scored_as_entities_were_before() -> None:
    assert task_of_scores({}) is TASKS["ner"]


def test_of_a_text_a_task_needs_what_its_models_learn() -> None:
    assert {name: task.learns for name, task in TASKS.items()} == {
        "ner": "entities", "re": "relations", "bags": "relations",
    }  # fmt: skip
    assert [name for name, task in TASKS.items() if task.bags] == ["bags"]
    assert not TASKS["ner"].pairs and TASKS["re"].pairs


def test_every_kind_of_model_answers_a_task_that_there_is() -> None:
    from confide.kinds import KINDS

    for kind in KINDS.values():
        assert TASKS[kind.task].kind in (kind.name, "")
    assert {kind.task for kind in KINDS.values()} == set(TASKS)


@each("name", sorted(TASKS))
def test_a_page_says_what_the_scores_of_each_task_mean(name: str) -> None:
    from confide.report import page

    means = Path(page.__file__).parent / "templates" / f"means_{name}.html.j2"
    assert means.read_text().count("<dt>") >= 3


def test_counts_of_relations_add_up() -> None:
    task = TASKS["re"]
    one = count_relations(["a"], ["a"])
    assert task.sum([one, RelationCounts(), one]).examples == 2
    assert task.values(task.scores(one)) == {"micro": 1, "macro": 1}
