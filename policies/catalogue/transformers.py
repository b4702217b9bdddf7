"""Transformers, with one unit per block. Attention counts all pairs of positions, without the half that a mask saves."""

from dataclasses import replace

from policies.catalogue.architecture import Cost, Unit, Units, dense, in_a_row


def _norm(width: int) -> Cost:
    return Cost(2 * width)


def _attention_pairs(width: int, positions: int) -> Cost:
    """Queries times keys, and weights times values."""
    return Cost(0, 2 * positions * positions * width)


def _block(width: int, positions: int) -> Unit:
    """Self-attention and a feed-forward layer of four times the width, with biases and two layer norms."""
    cost = dense(width, 3 * width, positions=positions) + dense(width, width, positions=positions)
    cost += dense(width, 4 * width, positions=positions) + dense(4 * width, width, positions=positions)
    cost += _attention_pairs(width, positions) + _norm(width) + _norm(width)
    return Unit("block", cost, width * positions, _reduced(width, positions))


def _stacked(embedding: Cost, block: Unit, blocks: int, last: Unit) -> Units:
    """An embedding with outputs like those of a block, equal blocks, and a last unit."""
    numbered = [replace(block, name=f"block{i}") for i in range(blocks)]
    return in_a_row([Unit("embed", embedding, block.outputs), *numbered, last])


def _reduced(width: int, positions: int) -> int:
    """A tensor-parallel block all-reduces its output after attention and feed-forward, in both passes (arXiv 1909.08053)."""
    return 4 * width * positions


def _gpt2(width: int, blocks: int) -> Units:
    positions, words = 1024, 50257
    embedding = Cost((words + positions) * width)
    # The head shares the embedding's weights: it computes with them but adds none.
    head = _norm(width) + Cost(0, width * words * positions)
    return _stacked(embedding, _block(width, positions), blocks, Unit("head", head, words * positions))


def gpt2_medium() -> Units:
    """GPT-2 of 24 blocks of width 1,024; 1,024 tokens."""
    return _gpt2(1024, 24)


def gpt2_xl() -> Units:
    """GPT-2 of 48 blocks of width 1,600; 1,024 tokens."""
    return _gpt2(1600, 48)


def bert_large() -> Units:
    """BERT-large, uncased (arXiv 1810.04805), encoder and pooler without a task's head; 512 tokens."""
    width, positions, words = 1024, 512, 30522
    embedding = Cost((words + positions + 2) * width) + _norm(width)
    return _stacked(embedding, _block(width, positions), 24, Unit("pooler", dense(width, width), width))


def vit_l16() -> Units:
    """ViT-L/16 (arXiv 2010.11929); 224 x 224 images, so 196 patches and a class token."""
    width, patches = 1024, 14 * 14
    positions = patches + 1
    embedding = dense(3 * 16 * 16, width, positions=patches) + Cost(width + positions * width)
    return _stacked(embedding, _block(width, positions), 24, Unit("head", _norm(width) + dense(width, 1000), 1000))


def moe_mixtral_8x7b() -> Units:
    """Mixtral 8x7B (arXiv 2401.04088), a mixture of experts: each token visits 2 of 8; 4,096 tokens."""
    width, positions, words = 4096, 4096, 32000
    head = Cost(width) + dense(width, words, positions=positions, bias=False)
    return _stacked(Cost(words * width), _expert_block(width, positions), 32, Unit("head", head, words * positions))


def _expert_block(width: int, positions: int) -> Unit:
    """Grouped-query attention (8 key-value heads of 128) and 8 gated experts of 14,336; one weight per channel in norms."""
    keys, hidden, experts, visited = 8 * 128, 14336, 8, 2
    cost = dense(width, 2 * width + 2 * keys, positions=positions, bias=False) + _attention_pairs(width, positions)
    cost += dense(width, experts, positions=positions, bias=False) + Cost(2 * width)
    expert = dense(width, 3 * hidden, positions=positions, bias=False)
    cost += Cost(experts * expert.parameters, visited * expert.macs)
    return Unit("block", cost, width * positions, _reduced(width, positions))
