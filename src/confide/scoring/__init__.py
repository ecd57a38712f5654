"""Gold and predicted documents -> counts -> scores. No torch.

>>> from confide.scoring import count_entities, scores
>>> from confide.text.document import Document, Entity
>>> document = Document("d", "fever", (Entity("1", "Sign", ((0, 5),)),))
>>> scores(count_entities([document], [document]))["strict"]["f1"]
1.0
"""

from __future__ import annotations

from confide.scoring.bags import BagCounts, bag_scores, count_bags, sum_bag_counts
from confide.scoring.bootstrap import (
    Comparison,
    Interval,
    bootstrap_interval,
    paired_bootstrap,
    sentence_counts,
)
from confide.scoring.counts import Count, EntityCounts, count_entities, sum_counts
from confide.scoring.mistakes import Confusion, ErrorCase, confusion, right_sentences, worst_errors
from confide.scoring.relations import (
    RelationCounts,
    count_relations,
    directed_scores,
    relation_scores,
    relation_table,
    sum_relation_counts,
)
from confide.scoring.scores import f1, micro, precision, recall, scores

__all__ = [
    "BagCounts",
    "Comparison",
    "Confusion",
    "Count",
    "EntityCounts",
    "ErrorCase",
    "Interval",
    "RelationCounts",
    "bag_scores",
    "bootstrap_interval",
    "confusion",
    "count_bags",
    "count_entities",
    "count_relations",
    "directed_scores",
    "f1",
    "micro",
    "paired_bootstrap",
    "precision",
    "recall",
    "relation_scores",
    "relation_table",
    "right_sentences",
    "scores",
    "sentence_counts",
    "sum_bag_counts",
    "sum_counts",
    "sum_relation_counts",
    "worst_errors",
]
