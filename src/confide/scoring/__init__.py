"""Gold and predicted documents -> counts -> scores. No torch.

>>> from confide.scoring import count_entities, scores
>>> from confide.text.document import Document, Entity
>>> document = Document("d", "fever", (Entity("1", "Sign", ((0, 5),)),))
>>> scores(count_entities([document], [document]))["strict"]["f1"]
1.0
"""

from __future__ import annotations

from confide.scoring.counts import Count as Count
from confide.scoring.counts import EntityCounts as EntityCounts
from confide.scoring.counts import ErrorCase as ErrorCase
from confide.scoring.counts import count_confusions as count_confusions
from confide.scoring.counts import count_entities as count_entities
from confide.scoring.counts import f1 as f1
from confide.scoring.counts import micro as micro
from confide.scoring.counts import precision as precision
from confide.scoring.counts import recall as recall
from confide.scoring.counts import right_sentences as right_sentences
from confide.scoring.counts import scores as scores
from confide.scoring.counts import sum_counts as sum_counts
from confide.scoring.counts import worst_errors as worst_errors
from confide.scoring.intervals import bootstrap_interval as bootstrap_interval
from confide.scoring.intervals import paired_bootstrap as paired_bootstrap
from confide.scoring.intervals import sentence_counts as sentence_counts
from confide.scoring.relations import BagCounts as BagCounts
from confide.scoring.relations import RelationCounts as RelationCounts
from confide.scoring.relations import count_ranked as count_ranked
from confide.scoring.relations import count_relations as count_relations
from confide.scoring.relations import directed_scores as directed_scores
from confide.scoring.relations import ranked_scores as ranked_scores
from confide.scoring.relations import relation_scores as relation_scores
from confide.scoring.relations import sum_bag_counts as sum_bag_counts
from confide.scoring.relations import sum_relation_counts as sum_relation_counts
