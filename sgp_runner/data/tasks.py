"""Tasks, each with an evaluation and a loss that can be vectorised over workers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar

from sgp_runner.data.dataset import Batch, Split, read
from sgp_runner.utils.sums import sum_in_order

if TYPE_CHECKING:
    from torch import Tensor, nn

CHUNK = 512  #: samples per forward pass of an evaluation, which bounds its memory
SENTENCES = 64  #: sentences per forward pass when pieces are translated
EXAMPLES = 5  #: sentences of which a run records the translations
LOGITS = 2**23  #: logits per forward pass when a language model is evaluated


def chunks(module: nn.Module, split: Split, size: int = CHUNK) -> Iterator[Batch]:
    """Yield all samples in order, ``size`` at a time, on the device of ``module``."""
    import torch

    return on_device(module, split, torch.split(torch.arange(len(split)), size))


def on_device(module: nn.Module, split: Split, parts: Iterable[Tensor]) -> Iterator[Batch]:
    """Yield the samples of each part on the device of ``module``."""
    device = next(module.parameters()).device
    for inputs, targets in read(split, parts):
        yield tuple(t.to(device) for t in inputs), targets.to(device)


class Summed(ABC):
    """A task with metrics computed from sums over samples, which processes can divide."""

    @property
    def chunk(self) -> int:
        """Number of samples per forward pass."""
        return CHUNK

    @abstractmethod
    def sums(self, module: nn.Module, batch: Batch) -> tuple[float, ...]:
        """Return the contribution of a batch to each sum."""

    @abstractmethod
    def metrics(self, sums: Sequence[float], samples: int) -> dict[str, float]: ...

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        batches = chunks(module, split, self.chunk)
        return self.metrics(added(self.sums(module, batch) for batch in batches), len(split))


def added(parts: Iterable[Sequence[float]]) -> list[float]:
    """Add ``parts`` elementwise, in order."""
    return [sum_in_order(numbers) for numbers in zip(*parts, strict=True)]


def smoothed(log_p: Tensor, right: Tensor, smoothing: float) -> Tensor:
    """Return the label-smoothed cross-entropy [...].

    log_p: log-probabilities [..., V]; ``right`` [...] has those of the targets
    """
    return -(1 - smoothing) * right - smoothing * log_p.mean(-1) if smoothing else -right


@dataclass(frozen=True)
class Classification(Summed):
    """Cross-entropy. Outputs are logits [B, classes], targets int64 [B]."""

    label_smoothing: float = 0.0

    name: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def batched_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same as `loss`, up to rounding, using only operations with vmap rules.

        vmap would decompose `cross_entropy`, which imports sympy and is slower. The backward pass
        of a mask, unlike that of an index, is deterministic on a GPU.
        """
        import torch

        log_p = outputs.log_softmax(-1)
        classes = torch.arange(log_p.shape[-1], device=log_p.device)
        right = torch.where(targets.unsqueeze(-1) == classes, log_p, 0.0).sum(-1)
        return smoothed(log_p, right, self.label_smoothing).mean()

    def sums(self, module: nn.Module, batch: Batch) -> tuple[float, ...]:
        inputs, targets = batch
        logits = module(*inputs)
        correct = int((logits.argmax(1) == targets).sum())
        return float(self.loss(logits, targets)) * len(targets), correct

    def metrics(self, sums: Sequence[float], samples: int) -> dict[str, float]:
        loss, correct = sums
        return {"loss": loss / samples, "accuracy": correct / samples}


@dataclass(frozen=True)
class Regression:
    """Half the squared distance. Outputs and targets are [B, d]."""

    name: ClassVar[str] = "regression"
    metric: ClassVar[str] = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs - targets).square().sum(-1).mean()

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Return the mean loss over the split and the norm of its gradient."""
        import torch

        with torch.enable_grad():
            loss = torch.stack(
                [self.loss(module(*x), y) * len(y) for x, y in chunks(module, split)]
            ).sum() / len(split)
            parameters = list(module.parameters())
            # A parameter that the outputs do not depend on has a gradient of zero.
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
        return {
            "loss": float(loss),
            "gradient_norm": float(torch.cat([part.reshape(-1) for part in gradient]).norm()),
        }


@dataclass(frozen=True)
class Translation:
    """Label-smoothed cross-entropy per target token; padding does not count.

    Inputs are (source [B, S], target_in [B, T]); ``target_in`` starts with ``bos``. Targets are
    int64 [B, T], end with ``eos`` and are padded with ``pad``. Outputs are logits [B, T,
    vocabulary]. ``vocabulary`` lists the pieces in the order of their ids. A text is the
    concatenation of its pieces, with "▁" for a space. The loss is the mean over the tokens of the
    batch.
    """

    pad: int
    bos: int
    eos: int
    vocabulary: tuple[str, ...]
    label_smoothing: float = 0.1

    name: ClassVar[str] = "translation"
    metric: ClassVar[str] = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        total, tokens = self._loss_sum(outputs, targets)
        return total / tokens

    def count(self, targets: Tensor) -> Tensor:
        """Return the number of tokens in the loss, as a scalar tensor in double precision."""
        return (targets != self.pad).sum().double()

    def evaluate(self, module: nn.Module, split: Split) -> dict[str, float]:
        """Return "loss", share of exact greedy decodings ("accuracy") and sacreBLEU ("bleu")."""
        import torch
        from sacrebleu import corpus_bleu

        loss, tokens = 0.0, 0
        answers: list[str] = []
        references: list[str] = []
        longest = split.batch(torch.arange(1))[1].shape[1]
        for (source, target_in), targets in self.batches(module, split, longest):
            total, count = self._loss_sum(module(source, target_in), targets)
            loss, tokens = loss + float(total), tokens + int(count)
            ids = self.greedy(module, source, self.limit(source, longest))
            answers += [self.text(row) for row in ids.tolist()]
            references += [self.text(row) for row in targets.tolist()]
        exact = sum(a == r for a, r in zip(answers, references, strict=True)) / len(references)
        return {
            "loss": loss / tokens,
            "accuracy": exact,
            "bleu": corpus_bleu(answers, [references]).score,
        }

    def batches(self, module: nn.Module, split: Split, longest: int) -> Iterator[Batch]:
        """Yield all samples in order; ``longest`` is the number of tokens per target."""
        size = LOGITS // (len(self.vocabulary) * longest)
        return chunks(module, split, max(1, min(CHUNK, size)))

    def limit(self, source: Tensor, longest: int) -> int:
        """Return the maximum number of tokens in a translation of ``source`` [B, S]."""
        return longest

    def greedy(self, module: Any, source: Tensor, length: int) -> Tensor:
        """Return greedy decodings (int64 [B, length]), filled with ``pad`` after ``eos``.

        ``module`` has the methods of `sgp_runner.models.encoder_decoder`: ``encode(source)`` and
        ``decode(source, memory, target_in)``.
        """
        import torch

        memory = module.encode(source)
        ids = torch.full(
            (len(source), length + 1), self.pad, dtype=torch.int64, device=source.device
        )
        ids[:, 0] = self.bos
        rows = torch.arange(len(source), device=source.device)  # the sentences that have not ended
        for t in range(length):
            token = module.decode(source[rows], memory[rows], ids[rows, : t + 1])[:, -1].argmax(-1)
            ids[rows, t + 1] = token
            rows = rows[token != self.eos]
            if len(rows) == 0:
                break
        return ids[:, 1:]

    def examples(self, module: nn.Module, split: Split) -> list[dict[str, str]]:
        """Return greedy translations of a few samples of the split, with their references."""
        import torch

        part = torch.arange(0, len(split), -(-len(split) // EXAMPLES))
        [((source, _), targets)] = on_device(module, split, [part])
        ids = self.greedy(module, source, self.limit(source, targets.shape[1]))
        names = ("source", "reference", "translation")
        return [
            dict(zip(names, (self.source_text(row), *map(self.text, rows)), strict=True))
            for row, *rows in zip(source.tolist(), targets.tolist(), ids.tolist(), strict=True)
        ]

    def source_text(self, ids: list[int]) -> str:
        """Decode a source sentence, whose pieces are whole words."""
        return " ".join(self.pieces(ids))

    def text(self, ids: list[int]) -> str:
        """Decode a target sentence up to the first ``eos`` or ``pad``."""
        return "".join(self.pieces(ids)).replace("▁", " ").strip()

    def pieces(self, ids: list[int]) -> list[str]:
        end = (self.eos, self.pad)
        return [self.vocabulary[i] for i in takewhile(lambda i: i not in end, ids)]

    def _loss_sum(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the token count, without branches on data (for vmap)."""
        log_p = outputs.log_softmax(-1)
        right = log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        real = targets != self.pad
        return (smoothed(log_p, right, self.label_smoothing) * real).sum(), real.sum()


@dataclass(frozen=True)
class PieceTranslation(Translation):
    """Translation with byte-level pieces; each character of a piece stands for one byte.

    Sentences of very different lengths are evaluated in the order of their lengths.
    """

    def batches(self, module: nn.Module, split: Split, longest: int) -> Iterator[Batch]:
        import torch

        (source, _), _ = split.batch(torch.arange(len(split)))
        order = (source != self.pad).sum(1).argsort(stable=True)
        for (source, target_in), targets in on_device(module, split, torch.split(order, SENTENCES)):
            pieces, tokens = (int((t != self.pad).sum(1).max()) for t in (source, targets))
            yield (source[:, :pieces], target_in[:, :tokens]), targets[:, :tokens]

    def limit(self, source: Tensor, longest: int) -> int:
        return min(longest, 2 * source.shape[1] + 10)

    def text(self, ids: list[int]) -> str:
        joined = Translation.text(self, ids)
        return joined.encode("latin-1").decode(errors="replace")

    def source_text(self, ids: list[int]) -> str:
        return self.text(ids)


@dataclass(frozen=True)
class LanguageModelling(Summed):
    """Cross-entropy of the next token. Outputs are logits [B, T, V], targets int64 [B, T].

    vocabulary: number of distinct tokens, V; 256 for bytes
    block: tokens per sample, T
    floor: loss of the best possible predictor on the validation split, in nats per token, if known
    token_bytes: mean number of bytes per token of the validation split, if known
    """

    vocabulary: int
    block: int
    floor: float | None = None
    token_bytes: float | None = None

    name: ClassVar[str] = "language"
    metric: ClassVar[str] = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs.flatten(0, 1), targets.flatten())

    @property
    def chunk(self) -> int:
        return max(1, LOGITS // (self.vocabulary * self.block))

    def sums(self, module: nn.Module, batch: Batch) -> tuple[float, ...]:
        inputs, targets = batch
        return (float(self.loss(module(*inputs), targets)) * len(targets),)

    def metrics(self, sums: Sequence[float], samples: int) -> dict[str, float]:
        """Return the loss in nats per token, the bits per byte, and the loss above the floor."""
        loss = sums[0] / samples
        out = {"loss": loss}
        if self.vocabulary == 256 or self.token_bytes is not None:
            out["bits_per_byte"] = loss / math.log(2) / (self.token_bytes or 1)
        if self.floor is not None:
            out["excess_loss"] = loss - self.floor
        return out


@dataclass(frozen=True)
class SubwordModelling(LanguageModelling):
    """Cross-entropy of the next token, for text encoded by a tokenizer."""

    def metrics(self, sums: Sequence[float], samples: int) -> dict[str, float]:
        """Return the loss in nats per token, and its exponential."""
        import torch

        loss = sums[0] / samples
        return {"loss": loss, "perplexity": float(torch.tensor(loss).exp())}
