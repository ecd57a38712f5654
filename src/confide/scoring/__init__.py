"""Gold and predicted documents -> counts -> scores. No torch.

>>> from confide.scoring import count_entities, scores
>>> from confide.text.document import Document, Entity
>>> document = Document("d", "fever", (Entity("1", "Sign", ((0, 5),)),))
>>> scores(count_entities([document], [document]))["strict"]["f1"]
1.0
"""

from __future__ import annotations

from confide.scoring.counts import (
    Confusion,
    Count,
    EntityCounts,
    ErrorCase,
    count_confusions,
    count_entities,
    f1,
    micro,
    precision,
    recall,
    right_sentences,
    scores,
    sum_counts,
    worst_errors,
)
from confide.scoring.intervals import (
    Comparison,
    Interval,
    bootstrap_interval,
    paired_bootstrap,
    sentence_counts,
)
from confide.scoring.relations import (
    BagCounts,
    RelationCounts,
    count_ranked,
    count_relations,
    directed_scores,
    ranked_scores,
    relation_scores,
    relation_table,
    sum_bag_counts,
    sum_relation_counts,
)

__all__ = [
    "BagCounts",
    "Comparison",
    "Confusion",
    "Count",
    "EntityCounts",
    "ErrorCase",
    "Interval",
    "RelationCounts",
    "bootstrap_interval",
    "count_confusions",
    "count_entities",
    "count_ranked",
    "count_relations",
    "directed_scores",
    "f1",
    "micro",
    "paired_bootstrap",
    "precision",
    "ranked_scores",
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
