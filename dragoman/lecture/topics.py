"""All topics in the order of a course. A new figure is one entry in the table of its topic."""

from __future__ import annotations

from dragoman.lecture import topics_classical, topics_neural, topics_transformers

TOPICS = {
    topic.name: topic
    for topic in (
        topics_classical.EDIT_DISTANCE,
        topics_classical.N_GRAMS,
        topics_classical.HIDDEN_STATES,
        topics_neural.RECURRENT,
        topics_neural.ATTENTION_TOPIC,
        topics_neural.SEARCH,
        topics_neural.CTC,
        topics_transformers.TRANSFORMER,
        topics_transformers.PRE_TRAINING,
        topics_transformers.MEDIA,
        topics_classical.BIAS,
    )
}
