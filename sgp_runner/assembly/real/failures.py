"""Failures of a rank in a real run, and how the other ranks learn of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from sgp_runner.assembly.networks import RealNetwork
from sgp_runner.assembly.networks.gloo import Gloo
from sgp_runner.assembly.real.rank_backend import RankBackend
from sgp_runner.assembly.real.watchdog import (
    CAME,
    Watchdog,
    end_all,
    leave,
    noticing_a_lost_store,
    outlast,
    signal_for_all,
    watching,
)
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.membership import listed
from sgp_runner.config.run import Run
from sgp_runner.core.survivors import LossDetection
from sgp_runner.distributed.vote import LOST, Vote
from sgp_runner.distributed.world import World
from sgp_runner.recording.checkpoint import resume_hint
from sgp_runner.utils.descriptors import allow_many
from sgp_runner.utils.errors import (
    Aborted,
    CannotSave,
    ConfigError,
    Diverged,
    Evicted,
    LostConnection,
    MembershipChanged,
    RankFailed,
    RankLost,
    StallTimeout,
    Stopped,
)
from sgp_runner.utils.memory import keep_freed_memory
from sgp_runner.utils.user_code import format_error
from sgp_runner.utils.waits import left_behind

# Part of the message of every error of gloo, which raises plain RuntimeErrors. Errors of data
# parallelism and of broadcasts on a node name no rank.
GLOO = "third_party/gloo"


@contextmanager
def rank_backend(
    experiment: Experiment, world: World, exit_stack: ExitStack
) -> Iterator[RankBackend]:
    """Connect this process's rank and yield its backend; disconnect after the run.

    exit_stack: closed after the summary has been written

    An error in the body stops all other ranks.
    """
    keep_freed_memory()
    allow_many()  # gloo keeps every connection to its ports, also from strangers
    run, rank, alarm = experiment.run, world.process_rank, world.alarm
    network = run.network
    assert isinstance(network, RealNetwork)
    detection = network.loss_detection if isinstance(network, Gloo) else LossDetection()
    vote = Vote(alarm, rank, world.size, detection)
    alarm.add(CAME, 1)
    watch = Watchdog(world, vote, experiment, network.start_timeout_seconds)
    with leaving_last_after_errors(watch), watching(watch), noticing_a_lost_store(watch):
        try:
            with explaining_losses(experiment, vote):
                world.connect(run.nodes)
                yield RankBackend(experiment, watch, exit_stack)
                if (number := signal_for_all(world)) is not None:
                    end_all(watch, number)
                close(watch.world, run)
        except CannotSave as stop:
            end_all(watch, stop.number)
        except (Aborted, Evicted, StallTimeout, KeyboardInterrupt):
            raise  # the other ranks need no report, or have it
        except Stopped as stop:
            alarm.set("stopped", json.dumps([stop.number, stop.saved]))
            with suppress(LostConnection, MembershipChanged):
                watch.world.gather(None)  # a barrier before the process ends
            raise
        except ConfigError as error:  # the same on every rank
            alarm.set("setting", error.key)
            alarm.set("failed", error.sentence)
            raise
        except BaseException as error:
            # Only the first error is reported; others may be its consequences.
            if alarm.add("errors", 1) > 1:
                raise Aborted(f"rank {rank} stopped because another rank failed") from error
            if isinstance(error, Diverged):
                alarm.set("diverged", json.dumps([error.rank, error.step, error.what]))
                alarm.set("failed", str(error))
                raise
            sentence = (
                str(error)
                if isinstance(error, RankFailed)
                else f"rank {rank}: {format_error(error)}"
            )
            if isinstance(error, RankLost):
                alarm.set(LOST, "")
            alarm.set("failed", sentence)
            raise RankFailed(sentence) from error


@contextmanager
def explaining_losses(experiment: Experiment, vote: Vote) -> Iterator[None]:
    """Raise RankLost, or the error that explains it, after a loss without recovery."""
    try:
        yield
    except (LostConnection, MembershipChanged) as error:
        raise loss_error(experiment, vote, error) from error
    except RuntimeError as error:
        if GLOO not in str(error):
            raise
        lost = LostConnection(f"rank {vote.original_rank} lost a connection")
        raise loss_error(experiment, vote, lost) from error


def close(world: World, run: Run) -> None:
    """Close the connections. Unless on_failure=stop, ignore losses: rank 0 has the results."""
    if run.on_failure == "stop":
        world.close()
    elif not left_behind:  # otherwise the process ends without waiting for its threads
        with suppress(LostConnection, MembershipChanged):
            world.close()


@contextmanager
def leaving_last_after_errors(watch: Watchdog) -> Iterator[None]:
    """Keep the store alive after an error until the other ranks have read the reason."""
    try:
        yield
    except Exception:
        outlast(watch)
        raise
    finally:
        leave(watch)


def loss_error(experiment: Experiment, vote: Vote, error: Exception) -> Exception:
    """Return the error that ends the run after a lost connection."""
    if isinstance(error, LostConnection):
        vote.start(str(error))
    gone, why = vote.decide()
    if not gone:
        return RankLost(f"{why}. {resume_hint(experiment)}")
    return RankLost(
        f"{listed(gone)} lost: {why}, and it no longer answers. {resume_hint(experiment)}"
    )
