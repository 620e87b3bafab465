"""Encoder sizes by their usual names; positions, token types and constants are the published ones."""

import dataclasses

from spanjax.nn.config import EncoderConfig

BASE = EncoderConfig()
"""BERT base: 12 layers of 768."""

LARGE = dataclasses.replace(BASE, hidden_size=1024, layers=24, heads=16, intermediate_size=4096)
"""BERT large: 24 layers of 1024."""

SMALL = dataclasses.replace(BASE, hidden_size=512, layers=4, heads=8, intermediate_size=2048)
"""BERT small of the compact models (Turc et al., 2019): 4 layers of 512."""

ROBERTA_BASE = dataclasses.replace(BASE, position_offset=2, types=1, norm_epsilon=1e-5)
"""RoBERTa base: 514 rows of positions, of which two are never used, and one token type."""

ROBERTA_LARGE = dataclasses.replace(LARGE, position_offset=2, types=1, norm_epsilon=1e-5)
"""RoBERTa large."""

ALBERT_BASE = dataclasses.replace(BASE, embedding_size=128, num_layer_groups=1, activation="gelu_tanh")
"""ALBERT base: embeddings of 128, one set of parameters for all 12 layers."""

ALBERT_LARGE = dataclasses.replace(LARGE, embedding_size=128, num_layer_groups=1, activation="gelu_tanh")
"""ALBERT large."""

ALBERT_XLARGE = dataclasses.replace(ALBERT_LARGE, hidden_size=2048, heads=16, intermediate_size=8192)
"""ALBERT xlarge: 24 layers of 2048."""

ALBERT_XXLARGE = dataclasses.replace(
    ALBERT_LARGE,
    hidden_size=4096,
    layers=12,
    heads=64,
    intermediate_size=16_384,
    dropout=0.0,
    attention_dropout=0.0,
)
"""ALBERT xxlarge: 12 layers of 4096, without dropout."""

ELECTRA_SMALL = dataclasses.replace(BASE, hidden_size=256, heads=4, intermediate_size=1024, embedding_size=128)
"""ELECTRA small: 12 layers of 256, embeddings of 128."""

ELECTRA_BASE, ELECTRA_LARGE = BASE, LARGE
"""ELECTRA base and large have the sizes of BERT's."""

MODERN = dataclasses.replace(
    BASE,
    positions=1024,
    types=0,
    norm_first=True,
    rope_theta=160_000.0,
    gated_mlp=True,
    biases=False,
    intermediate_size=2048,
    dropout=0.0,
    attention_dropout=0.0,
    norm_epsilon=1e-5,
)
"""BERT base with what came after it: LayerNorms first, rotary positions, gated feed-forward parts as large as before (two thirds
of the width), no biases, no token types, rows of up to 1,024 tokens; ModernBERT's layout with every layer global."""

XLNET_BASE, XLNET_LARGE, XLNET_SMALL = (
    dataclasses.replace(size, relative_attention=True) for size in (BASE, LARGE, SMALL)
)
"""XLNet: the sizes of BERT's, with attention by distances."""

DEBERTA_BASE = dataclasses.replace(
    BASE,
    types=0,
    disentangled_attention="both",
    max_distance=512,
    distance_buckets=256,
    distance_norm=True,
    shared_projections=True,
    norm_epsilon=1e-7,
)
"""DeBERTa-v3 base: the sizes of BERT's, with disentangled attention over 512 buckets of distances, no positions and no types."""
