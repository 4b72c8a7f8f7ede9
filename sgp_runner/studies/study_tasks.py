"""Named tasks of studies: a model, its data and its schedule.

An update uses the same total number of samples for any number of nodes, so that runs differ only in
the averaging. Times are simulated for ResNet-50 on the SGP paper's Ethernet cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

HOLDOUT = 0.2  # share of the training set that searches validate on
CLOCK = (
    "cluster=sgp_ethernet",
    "timed_as.model=resnet50",
    "timed_as.num_parameters=25557032",
    "timed_as.batch_size=256",
)
SELDOM = "log_every=100"  # an archive has all records of a hundred runs
NODES = 8
PIECES = 2000  # size of the vocabulary of the real texts


@dataclass(frozen=True)
class StudyTask:
    """A model, its data and its schedule.

    overrides: settings of model, data and optimizer. epochs: length of the schedule. update: number
    of samples per update over all nodes. rates: the first learning rates of a search, which then
    tries half and double the best rate.
    """

    name: str
    overrides: tuple[str, ...]
    epochs: int
    update: int
    rates: tuple[float, ...]

    @property
    def all_overrides(self) -> tuple[str, ...]:
        """The settings that the arms of a study share, on `NODES` nodes."""
        return (
            *self.overrides,
            f"nodes={NODES}",
            f"batch_size={self.update // NODES}",
            f"epochs={self.epochs}",
        )


# 250 steps per epoch. The warm-up takes 125 steps and begins at the learning rate for 8 samples.
IMAGES = StudyTask(
    name="images",
    overrides=(
        "model=mlp",
        "optim.lr_reference_batch=256",
        "optim.schedule.reference_batch=8",
        "optim.schedule.warmup_epochs=0.5",
        "data=shapes",
        "data.image_size=16",
        "data.train_size=64000",
        "data.valid_size=10000",
        "data.noise=0.15",
        *CLOCK,
    ),
    epochs=5,
    update=256,
    rates=(0.05, 0.2),
)
# 1,024 steps of text that never repeats. A tenth of the steps are warm-up.
GRAMMAR = StudyTask(
    name="grammar",
    overrides=(
        "model=gpt",
        "model.layers=1",
        "model.width=32",
        "model.heads=2",
        "data=grammar",
        "data.block=32",
        "data.train_size=65536",
        "data.valid_size=10240",
        "optim.schedule.warmup=0.1",
        *CLOCK,
    ),
    epochs=1,
    update=64,
    rates=(0.01, 0.04),
)
# 468 steps per epoch of the complete Fashion-MNIST; half an epoch is warm-up.
FASHION = StudyTask(
    name="fashion",
    overrides=(
        "model=conv",
        "optim.lr_reference_batch=128",
        "optim.schedule=cosine",
        "optim.schedule.warmup_epochs=0.5",
        "data=fashion_mnist",
        *CLOCK,
        SELDOM,
    ),
    epochs=4,
    update=128,
    rates=(0.025, 0.1),
)
# One pass through eighteen books; a tenth of the steps are warm-up.
BOOKS = StudyTask(
    name="books",
    overrides=(
        "model=gpt",
        "data=gutenberg",
        f"data.pieces={PIECES}",
        "optim.schedule.warmup=0.1",
        *CLOCK,
        SELDOM,
    ),
    epochs=1,
    update=64,
    rates=(0.005, 0.02),
)
# Sentences of at most ten words; 32 pieces leave out two in a hundred of them.
TRANSLATION = StudyTask(
    name="translation",
    overrides=(
        "model=transformer",
        "data=help_en_de",
        "data.max_words=10",
        "data.max_pieces=32",
        f"data.pieces={PIECES}",
        *CLOCK,
        SELDOM,
    ),
    epochs=6,
    update=64,
    rates=(0.0025, 0.01),
)
TASKS = {task.name: task for task in (IMAGES, GRAMMAR, FASHION, BOOKS, TRANSLATION)}
