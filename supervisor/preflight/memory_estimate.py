"""GPU memory of a trainer and an engine by arithmetic, as an interval: from what must be there to what may be needed.

The low end is what is held for certain before the first token: weights, gradients, the optimizer's moments and the
CUDA context. The high end adds the activations of a full sequence, the logits, the layers that FSDP has gathered, and
what allocators lose. docs/preflight.md derives each term and compares both ends with measured runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from supervisor.preflight.models import ModelFacts, embedding_parameters

GIB = 1 << 30

CONTEXT_LOW = 0.4 * GIB
"""A CUDA context with the kernels of torch, without NCCL: about half a GiB on an A100 or H100."""
CONTEXT_HIGH = 1.0 * GIB
"""With the workspaces of cuBLAS and what is compiled."""
NCCL_HIGH = 1.0 * GIB
"""Buffers of NCCL between several GPUs."""
GRAPHS_HIGH = 2.0 * GIB
"""CUDA graphs of an engine without enforce_eager lie outside its utilization."""
OUTSIDE_HIGH = 0.5 * GIB
"""What else of an engine lies outside its utilization."""
SLACK = 1.06
"""Blocks that torch's allocator holds and cannot use, on what comes and goes (prime-rl sets expandable_segments).
So large that no peak of prime-rl's benchmarks lies above the high end (docs/preflight.md)."""
_CHUNK_VOCABULARY = 8192  # prime_rl/trainer/models/layers/lm_head.py: widest slice of logits of the fused output layer


@dataclass(frozen=True)
class Interval:
    """Bytes, from ``low`` to ``high``."""

    low: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __str__(self) -> str:
        return f"{gib(self.low)} to {gib(self.high)} GiB"


def gib(size: float) -> str:
    """ "28.4", and "0.4" for what is small."""
    return f"{size / GIB:.1f}"


@dataclass(frozen=True)
class Part:
    """One term of a sum, with its name for people."""

    name: str
    bytes: Interval


@dataclass(frozen=True)
class Estimate:
    """Terms and their sum, for one GPU."""

    parts: tuple[Part, ...]

    @property
    def total(self) -> Interval:
        total = Interval(0, 0)
        for part in self.parts:
            total += part.bytes
        return total

    def formula(self) -> str:
        """The terms that matter, largest first: "weights 28.4, logits 0.0 to 5.2"."""
        said = []
        for part in sorted(self.parts, key=lambda part: -part.bytes.high):
            low, high = gib(part.bytes.low), gib(part.bytes.high)
            if high != "0.0":
                said.append(f"{part.name} {low}" if low == high else f"{part.name} {low} to {high}")
        return ", ".join(said)


@dataclass(frozen=True)
class Lora:
    """Adapters. ``targets``: names of the modules that have one; ``whole``: "embed_tokens" and "lm_head", where they
    are trained whole."""

    rank: int
    targets: tuple[str, ...]
    whole: tuple[str, ...] = ()


@dataclass(frozen=True)
class TrainerSetup:
    """What the trainer was told."""

    gpus: int = 1
    """GPUs over which FSDP shards, without replicas."""
    tokens: int = 2048
    """Tokens of a micro batch on one GPU."""
    width: int = 4
    """Bytes of a weight that is held: 4 for float32 (prime-rl's default), 2 for bfloat16."""
    moments: int = 2
    """Numbers that the optimizer keeps for each trained parameter: 2 for AdamW."""
    lora: Lora | None = None
    checkpointing: bool = False
    every: int = 1
    """Each how-manieth layer is checkpointed."""
    offload_inputs: bool = False
    """Inputs of checkpointed layers go to the CPU."""
    fused_head: int = 0
    """Tokens of a chunk of the fused output layer; 0: all logits are made at once."""
    logit_bytes: float = 16.0
    """Bytes of all copies of one logit: counted for RL (rl/train.py); 18 for the cross entropy of SFT, by the slope of
    prime-rl's own benchmarks over the sequence length."""
    fsdp_cpu_offload: bool = False
    optim_cpu_offload: bool = False
    full_offload: bool = False


def lora_parameters(facts: ModelFacts, lora: Lora) -> int:
    """Parameters of the adapters: rank x (inputs + outputs) for each module that has one."""
    h, queries, keys = facts.hidden, facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    shapes = {"q_proj": (h, queries), "k_proj": (h, keys), "v_proj": (h, keys), "o_proj": (queries, h)}
    dense = {"gate_proj": (h, facts.intermediate), "up_proj": (h, facts.intermediate),
             "down_proj": (facts.intermediate, h)}  # fmt: skip
    inner = facts.expert_intermediate
    sparse_layers = facts.layers - facts.dense_layers if facts.experts else 0
    total = 0
    for target in lora.targets:
        if target in shapes:
            total += facts.layers * sum(shapes[target])
        if target in dense:
            total += (facts.layers - sparse_layers) * sum(dense[target])
            total += sparse_layers * facts.shared_experts * (h + inner)
        if target == "experts":
            total += sparse_layers * facts.experts * 3 * (h + inner)
    return total * lora.rank


def trained_parameters(facts: ModelFacts, lora: Lora | None) -> int:
    """Parameters that get gradients and moments."""
    if lora is None:
        return facts.parameters
    ends = {"embed_tokens"} if facts.tied else {"embed_tokens", "lm_head"}
    whole = len(ends & set(lora.whole)) or int(facts.tied and "lm_head" in lora.whole)
    return lora_parameters(facts, lora) + whole * embedding_parameters(facts)


def layer_parameters(facts: ModelFacts) -> float:
    """Parameters of one layer, on the average."""
    ends = embedding_parameters(facts) * (1 if facts.tied else 2)
    return max(facts.parameters - ends, 0) / max(facts.layers, 1)


def activation_bytes(facts: ModelFacts, *, lora: bool) -> float:
    """What the backward pass of one layer needs of one token, without checkpointing. Counted off the layer's forward
    pass in transformers: each norm keeps its input in float32 (and, where its weight is trained, its output once
    more), each projection its input, attention q, k, v and its output, the MLP the gate, its activation, the other
    branch and their product, all in bfloat16."""
    queries, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    norms = 2 * (4 if lora else 6) * facts.hidden
    inputs = 2 * 2 * facts.hidden
    attention = 2 * (2 * queries + 2 * keys)
    if facts.model_type in ("qwen3", "qwen3_moe"):
        attention += (4 if lora else 6) * (queries + keys)  # norms of q and k
    mlp = 8.0 * facts.intermediate
    if facts.experts:
        # A routed token is copied, sorted, padded, multiplied with its score in float32, and put back: 12 bytes for
        # each number of its hidden state (prime_rl/trainer/models/layers/moe.py).
        mlp = facts.experts_per_token * (8.0 * facts.expert_intermediate + 12.0 * facts.hidden)
        mlp += facts.shared_experts * 8.0 * facts.expert_intermediate
    return float(norms + inputs + attention + mlp)


def gradient_bytes(facts: ModelFacts) -> float:
    """What the backward pass of a layer has of one token beside that: the gradients of the MLP's three branches, and of
    a routed token what its way through the experts took."""
    queries = facts.heads * facts.head_dim
    if not facts.experts:
        return 3.0 * 2 * max(facts.intermediate, queries)
    wide = facts.experts_per_token * facts.expert_intermediate
    return 3.0 * 2 * max(wide, queries) + 12.0 * facts.experts_per_token * facts.hidden


def trainer(facts: ModelFacts, setup: TrainerSetup) -> Estimate:
    """Memory of one trainer GPU. ``facts`` must have a parameter count and a shape."""
    shards = max(setup.gpus, 1)
    adapters = lora_parameters(facts, setup.lora) if setup.lora else 0
    trained = trained_parameters(facts, setup.lora)
    on_gpu = not setup.fsdp_cpu_offload
    width = 2 if setup.full_offload else setup.width
    weights = (facts.parameters + adapters) * width / shards * on_gpu
    # Gradients have the dtype of the weights. Moments that are offloaded come back for the optimizer's step
    # (prime_rl/trainer/optim/state_offload.py), so they must still fit beside the gradients.
    gradients = trained * width / shards * (on_gpu and not setup.full_offload)
    moments = trained * setup.width * setup.moments / shards * (on_gpu and not setup.full_offload)

    embedding = 2.0 * embedding_parameters(facts)
    layer = 2.0 * layer_parameters(facts)
    gathered = Interval(
        max(embedding, layer), (2 * layer + embedding) * SLACK
    )  # one layer is fetched while one is used
    if shards > 1:  # what has arrived from the others, before it is copied to where it is used
        gathered += Interval(0, max(embedding, layer) * SLACK)
    # A gradient in bfloat16, and once more in float32 on its way to the others.
    leaving = 0.0 if setup.lora else 3 * max(layer, embedding)
    passing = _estimate_passing_bytes(facts, setup, leaving) * SLACK
    if setup.optim_cpu_offload:
        passing = max(0.0, passing - moments)  # they are gone when the moments come back: the larger of the two counts
    nccl = NCCL_HIGH if shards > 1 else 0.0
    return Estimate(
        (
            Part("weights", Interval(weights, weights)),
            Part("gradients", Interval(gradients, gradients)),
            Part("optimizer", Interval(moments, moments)),
            Part("gathered layers", gathered),
            Part("activations and logits", Interval(0, passing)),
            Part("CUDA and NCCL", Interval(CONTEXT_LOW, CONTEXT_HIGH + nccl)),
        )
    )


def _estimate_passing_bytes(facts: ModelFacts, setup: TrainerSetup, leaving: float) -> float:
    """Most bytes of activations, logits and gradients that leave, at once, for a micro batch that is full."""
    layer = setup.tokens * activation_bytes(facts, lora=setup.lora is not None)
    gradients = setup.tokens * gradient_bytes(facts)
    logits = _logits(facts, setup)
    # When the backward pass has come to the layers, the logits are still there, before and after the temperature.
    left = 0.0 if setup.fused_head else logits / 2
    if not setup.checkpointing:
        return layer * facts.layers + max(logits, left + gradients + leaving)
    saved = -(-facts.layers // max(setup.every, 1))
    kept = min(saved, 5) if setup.offload_inputs else saved  # ac_offloading.max_inflight_activations is 5 in all eras
    inputs = kept * setup.tokens * 2.0 * facts.hidden
    return inputs + layer * (facts.layers - saved) + max(logits, left + layer + gradients + leaving)


def _logits(facts: ModelFacts, setup: TrainerSetup) -> float:
    """Most bytes of logits: in float32, once divided by the temperature, and the gradient of each."""
    if setup.fused_head:
        return setup.logit_bytes * min(setup.tokens, setup.fused_head) * min(facts.vocabulary, _CHUNK_VOCABULARY)
    return setup.logit_bytes * setup.tokens * facts.vocabulary


# ---------------------------------------------------------------- the engine


@dataclass(frozen=True)
class EngineSetup:
    """What the engine was told."""

    gpus: int = 1
    """Tensor parallel size: GPUs over which one copy of the weights lies."""
    utilization: float = 0.9
    max_model_len: int = 0
    eager: bool = False
    weight_width: float = 2.0
    kv_width: int = 2


def engine_weights(facts: ModelFacts, setup: EngineSetup) -> float:
    """Bytes of weights on one GPU, at least: as their files where those are known."""
    if facts.quantization:
        # 4-bit weights with an 8-bit scale for 32 of them are the smallest that are served.
        whole = facts.weight_bytes or facts.parameters * 0.53
    else:
        whole = facts.parameters * setup.weight_width
    return whole / max(setup.gpus, 1)


def kv_bytes_per_token(facts: ModelFacts, setup: EngineSetup) -> float:
    """Keys and values of one token on one GPU (a head is not split over GPUs)."""
    heads = max(facts.kv_heads / max(setup.gpus, 1), 1)
    return 2.0 * facts.layers * heads * facts.head_dim * setup.kv_width


def engine_need(facts: ModelFacts, setup: EngineSetup) -> float:
    """The least that an engine needs on one GPU: its weights and one sequence of its longest context. vLLM refuses to
    start with less. Layers with a sliding window are counted with the window only; half of the layers may have one."""
    tokens = setup.max_model_len if facts.plain else 0
    per_token = kv_bytes_per_token(facts, setup)
    if facts.sliding_window and tokens > facts.sliding_window:
        cache = per_token * facts.sliding_window
    else:
        cache = per_token * tokens
    return engine_weights(facts, setup) + cache + CONTEXT_LOW


def engine(total_bytes: float, setup: EngineSetup) -> Estimate:
    """What an engine takes of a GPU with ``total_bytes``: vLLM fills its utilization with the KV cache."""
    taken = total_bytes * setup.utilization
    graphs = 0.0 if setup.eager else GRAPHS_HIGH
    return Estimate(
        (
            Part("utilization", Interval(taken, taken)),
            Part("outside of it", Interval(0, graphs + OUTSIDE_HIGH)),
        )
    )


Fit = Literal["no", "unsure", "yes"]


def fits(need: Interval, there: float) -> Fit:
    """ "no" when not even the low end fits, "unsure" when the high end does not."""
    return "no" if need.low > there else "unsure" if need.high > there else "yes"
