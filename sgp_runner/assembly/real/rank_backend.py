"""Backend of a real rank: one of several processes, any of which may be lost."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from sgp_runner.assembly.build import build_problem, build_worker, divide_problem
from sgp_runner.assembly.dry_run import verify_calls
from sgp_runner.assembly.real.node_results import evaluated, throughput_of
from sgp_runner.assembly.real.part_listener import PartListener, evaluate_with_others
from sgp_runner.assembly.real.saving import RankSaver, check_fits, serve
from sgp_runner.assembly.real.trace_recorder import TraceRecorder
from sgp_runner.assembly.real.watchdog import BUILT, Watchdog
from sgp_runner.assembly.resizing import continued, read_all_ranks
from sgp_runner.config.experiment import Experiment
from sgp_runner.config.membership import Membership, common_epoch, membership_of
from sgp_runner.console.estimate import Work
from sgp_runner.core.budget import Budget, OwnBudget
from sgp_runner.core.problem import Problem
from sgp_runner.core.state import State
from sgp_runner.core.step_hooks import StepListener
from sgp_runner.core.survivors import step_snapshot, take_over, vectors_of
from sgp_runner.distributed.gloo_transport import GlooTransport
from sgp_runner.distributed.gradients import Gradients
from sgp_runner.distributed.rank import Rank, ServerBudget, SharedBudget
from sgp_runner.distributed.torch_collectives import named
from sgp_runner.distributed.torch_world import TorchWorld
from sgp_runner.distributed.world import World, check_agreement, checksum
from sgp_runner.recording.checkpoint import (
    Candidates,
    Found,
    UnusableCheckpoint,
    origin_at,
    read,
    using,
    verify,
)
from sgp_runner.recording.chrome_trace import traced
from sgp_runner.recording.observer import Observer, position_in
from sgp_runner.recording.pretrained import pretrain
from sgp_runner.recording.recorder import START, Position, num_whole_lines, record_gpus
from sgp_runner.recording.throughput import Throughput
from sgp_runner.utils import waits
from sgp_runner.utils.errors import (
    ConfigError,
    Evicted,
    LostConnection,
    MembershipChanged,
    RankFailed,
)
from sgp_runner.utils.provenance import code_version, gpu
from sgp_runner.utils.shard import Shard

MAX_IDLE_VOTES = 3


class RankBackend:
    """One process rank of ``watch.world``.

    exit_stack: closed after the summary has been written
    """

    def __init__(self, experiment: Experiment, watch: Watchdog, exit_stack: ExitStack) -> None:
        self.experiment, self.watch, self.exit_stack = experiment, watch, exit_stack
        # State of the worker at the start of its last step without a loss.
        self.snapshot: State | None = None
        self.steps_at_vote = -1  # steps of the worker at the latest vote
        self.idle_votes = 0  # latest votes that missed no rank, without a step between them
        self.abandoned: list[GlooTransport] = []  # that survivors may still wait for
        self.record: TraceRecorder | None = None
        # Process rank 0 proposes them; each process verifies the file that it reads.
        self.candidates = Candidates(experiment, files=["rank0.pt"])
        self.built = False
        self.throughput: Throughput | None = None

    @property
    def world(self) -> World:
        return self.watch.world

    @property
    def original_rank(self) -> int | None:
        """Return the original rank on a node's first device, which records; None elsewhere."""
        layout = self.world.layout
        return None if layout.device else self.membership.original_ranks[layout.node_rank]

    def open(self) -> Found | None:
        world = self.world
        check_agreement(world, "configuration", self.experiment.digest[:16])
        check_agreement(world, "cut of the state (network.shard)", str(world.cut))
        check_agreement(world, "code version", code_version())
        candidate = self.candidates.next("rank0.pt") if world.process_rank == 0 else None
        newest = (
            None if candidate is None else (str(candidate[0].path), candidate[0].original_ranks)
        )
        starts = world.gather((newest, gpu(world.compute.device)))
        if world.process_rank == 0:
            record_gpus(self.experiment.directory, [facts for _, facts in starts])
        name, names = starts[0][0] or ("", [])
        if name and self.experiment.run.record:
            raise ConfigError(
                "record",
                f"this run was interrupted and would resume from {Path(name).name}, but its "
                "beginning was not recorded: use record=false, or resume=never to start over.",
            )
        if not name:
            return None
        origin = origin_at(Path(name), self.experiment)
        ranks = range(self.experiment.run.ranks if origin is None else 0)
        return Found(Path(name), names, [rank for rank in ranks if rank not in names], origin)

    def refuse(self, error: UnusableCheckpoint) -> None:
        if self.world.process_rank == 0:
            self.candidates.refuse(error)

    def build(
        self, membership: Membership, checkpoint: Found | None, listener: StepListener
    ) -> Position | None:
        self.membership, self.checkpoint = membership, checkpoint
        world, run, layout = self.world, membership.run, self.world.layout
        follows = world.cut is not None and layout.device > 0
        followed = PartListener(run, listener) if follows else listener
        self.listener = traced(self.experiment, followed, world.process_rank)
        if not self.built:
            self.make_problem()
        self.built = True
        self.saved = None if checkpoint is None else self.load(checkpoint)
        if world.leader_mode and layout.device:
            gradients = Gradients(self.problem, world)
            if self.saved is not None:
                gradients.load_state_dict(self.saved["devices"])
            with closing(self.problem):
                serve(self.experiment, gradients, self.watch, self.exit_stack)
            world.gather(None)
            return None
        if run.record:
            self.record = TraceRecorder(self.experiment, self.problem, world)
        self.make_worker()
        if world.process_rank == 0:
            world.alarm.set(BUILT, "")
        if checkpoint is None or self.saved is None or layout.device:
            return START
        if checkpoint.origin is not None:
            states = self.saved["workers"]
            self.snapshot, self.epoch = continued(states, membership.run, self.problem)
            return START
        if world.process_rank in checkpoint.back:
            return Position(num_whole_lines(self.experiment.directory, world.process_rank))
        return position_in(self.saved["observer"])

    def make_problem(self) -> None:
        world, layout = self.world, self.world.layout
        problem = build_problem(self.membership.run, world.compute)
        pretrain(problem, self.experiment)
        self.problem: Problem = problem.on_device(Shard(layout.device, layout.devices))
        if not layout.is_server:
            self.problem.warm_up(layout.node_rank)
            self.throughput = throughput_of(self.problem, layout)
        check_agreement(world, "checksum of the initial parameters", checksum(self.problem.start()))

    def load(self, checkpoint: Found) -> State:
        """Return this process's part of a checkpoint, or the part of its leading device.

        A process that rejoins the run gets the part of rank 0. Raises UnusableCheckpoint on all
        processes if any part is damaged or does not fit.
        """
        saved: State = {}
        misfit = None
        try:
            with using(checkpoint.path):
                saved = self.read(checkpoint)
                check_fits(saved, self.problem, self.membership.run.optim, self.world)
                if not self.world.layout.device:
                    position_in(saved["observer"])
        except UnusableCheckpoint as error:
            misfit = error.reason, error.damaged
        for reason, damaged in filter(None, self.world.gather(misfit)):
            raise UnusableCheckpoint(checkpoint.path, reason, damaged)
        return saved

    def read(self, checkpoint: Found) -> State:
        """Read this process's file, and its node's shared state from the first device."""
        world, layout, compute = self.world, self.world.layout, self.problem.compute
        if checkpoint.origin is not None:
            return read_all_ranks(checkpoint, checkpoint.origin, compute.device)
        device = 0 if world.leader_mode else layout.device
        source = world.process_rank - layout.device + device
        number = 0 if source in checkpoint.back else checkpoint.original_ranks.index(source)
        if number:  # `open` has verified the file of rank 0
            verify(checkpoint.path, self.experiment.digest, f"rank{number}.pt")
        mapped = compute.device != "cpu"  # the worker copies each tensor to its own
        saved = read(checkpoint.path / f"rank{number}.pt", mapped=mapped)
        if "push_sum" not in saved["worker"] and number:
            first = read(checkpoint.path / f"rank{number - device}.pt", mapped=mapped)
            saved["worker"] = first["worker"] | saved["worker"]
        return saved

    def make_worker(self) -> None:
        """Build the runtime and worker of this rank for the current membership."""
        run, world, problem = self.membership.run, self.world, self.problem
        survives = self.experiment.run.on_failure == "continue"
        unshared = OwnBudget(run.total_steps(problem))
        self.total = unshared.total
        shared = run.algo.asynchronous and world.layout.node_rank < run.nodes
        budget: Budget = unshared
        if shared and self.record is not None:
            budget = SharedBudget(world.store, unshared.total, self.record.step)
        elif shared:
            budget = SharedBudget(world.store, unshared.total)
        elif run.algo.asynchronous:
            budget = ServerBudget(unshared.total, store=world.store)
        self.runtime = Rank(
            problem,
            world,
            run.faults,
            None if self.record is None else self.record.clock,
            survives=survives,
            listener=self.listener,
        )
        runtime, parts = self.runtime, self.runtime.gradients.parts
        if self.throughput is not None:
            self.throughput.waited = runtime.clock.meter.seconds
        self.worker = build_worker(
            run,
            problem,
            world.layout.node_rank,
            runtime.comm,
            budget,
            runtime,
            runtime.gradients.buffers,
            None if parts is None else parts.shapes,
        )
        self.watch.follow(runtime.clock)
        self.watch.begun = lambda: runtime.paused > 0

    def restore(self, observer: Observer | None) -> None:
        assert self.checkpoint is not None and self.saved is not None
        self.runtime.clock.start = time.monotonic() - self.saved["now"]
        if self.checkpoint.origin is not None:
            assert self.snapshot is not None
            self.take_over(self.snapshot, self.snapshot["num_bytes_sent"], self.epoch)
            if observer is not None:
                records, saved = self.original_rank == 0, self.saved["observer"]
                observer.resize(self.checkpoint, saved, self.now(), self.epoch, records)
            return
        if not self.checkpoint.back:
            self.worker.load_state_dict(self.saved["worker"])
            self.runtime.gradients.load_state_dict(self.saved["devices"])
        if observer is not None:
            observer.load_state_dict(self.saved["observer"])
        if observer is not None and self.checkpoint.back:
            epoch = self.rejoin(self.checkpoint, vectors_of(self.saved["worker"]))
            records = self.original_rank == 0
            observer.follow(self.membership, self.problem, self.now(), epoch, records)

    def rejoin(self, checkpoint: Found, snapshot: State) -> float:
        """Continue with all ranks from a checkpoint with fewer ranks; return the epoch."""
        before = membership_of(self.experiment.run, checkpoint.original_ranks, verify_calls).run
        per_epoch = divide_problem(self.problem, before).sampler.steps_per_epoch
        if before.algo.asynchronous:
            per_epoch *= before.nodes
        epochs = snapshot["taken"] / per_epoch
        epoch = self.common_epoch((epochs, epochs, 0.0))
        is_back = self.world.process_rank in checkpoint.back
        self.take_over(snapshot, 0 if is_back else snapshot["num_bytes_sent"], epoch)
        return epoch

    def make_saver(self, observer: Observer | None) -> RankSaver | None:
        if self.record is not None:  # a replay needs the whole run, so nothing is saved
            return None
        saver = RankSaver(self.experiment, self.world, self.runtime, self.worker, observer)
        self.watch.follow(self.runtime.clock, saver.on_tick)
        return saver

    def run(self) -> None:
        while self.abandoned:  # by all survivors, since all have connected again
            self.abandoned.pop().release()
        algorithm = self.membership.run.algo.run(self.worker)
        with self.record.recording(self.worker) if self.record is not None else nullcontext():
            self.runtime.run(self.worker, algorithm)

    def shrink(self, loss: Exception) -> tuple[Membership, float]:
        self.leave_behind()
        before = self.membership
        self.membership = self.agree(loss)
        return self.membership, self.start_over(before)

    def leave_behind(self) -> None:
        """Stop computing and sending in the old membership; pending waits keep their threads."""
        transport = self.runtime.comm.transport
        assert isinstance(transport, GlooTransport)
        waits.left_behind.append("waits for lost ranks")
        self.runtime.thread.shutdown()
        transport.abandon()
        self.abandoned.append(transport)
        self.snapshot = self.runtime.step_snapshot or self.snapshot or step_snapshot(self.worker)

    def agree(self, loss: Exception) -> Membership:
        """Return the remaining membership, which is the same on all its ranks."""
        vote = self.watch.vote
        if isinstance(loss, LostConnection):
            vote.start(str(loss))
        gone, why = vote.decide()
        rank_here = vote.original_rank
        if rank_here in gone:
            raise Evicted(f"rank {rank_here} was slow to answer, and the others continue: {why}.")
        idle = self.worker.steps_taken == self.steps_at_vote
        self.idle_votes = self.idle_votes + 1 if idle and not gone else 0
        self.steps_at_vote = self.worker.steps_taken
        if self.idle_votes == MAX_IDLE_VOTES:
            raise RankFailed(why)  # all ranks live, but their connections do not hold
        before = self.membership.original_ranks
        return self.membership.without(
            [before.index(rank) for rank in gone if rank in before], verify_calls
        )

    def start_over(self, before: Membership) -> float:
        """Move this rank into the smaller run; return the epoch at which that run continues."""
        assert isinstance(self.world, TorchWorld) and self.snapshot is not None
        run, snapshot = self.membership.run, self.snapshot
        old, old_runtime = self.worker, self.runtime
        dropped = old.steps_taken - snapshot["steps_taken"]
        world = self.watch.world = self.world.subset(
            [before.original_ranks.index(name) for name in self.membership.original_ranks]
        )
        with named("lost a connection while the remaining ranks connected"):
            world.connect(run.nodes)
        epochs = (
            snapshot["taken"] / old.steps_per_epoch,
            old.budget.taken / old.steps_per_epoch,
            dropped / old.steps_per_epoch,
        )
        epoch = self.common_epoch(epochs)
        self.problem = divide_problem(self.problem, run)
        self.make_worker()
        self.runtime.clock.start = old_runtime.clock.start
        self.take_over(snapshot, old.comm.num_bytes_sent, epoch)
        return epoch

    def common_epoch(self, epochs_here: tuple[float, float, float]) -> float:
        """Return the epoch from which all ranks continue.

        epochs_here: epochs that this rank had completed between steps, epochs that its budget has
            issued, and epochs of its dropped steps
        """
        epochs = self.world.gather(epochs_here)
        shared = max(begun for _, begun, _ in epochs) - sum(dropped for *_, dropped in epochs)
        return common_epoch(self.membership.run, [at_rest for at_rest, *_ in epochs], shared)

    def take_over(self, snapshot: State, num_bytes_sent: int, epoch: float) -> None:
        """Advance the new worker to ``epoch``, with the server's model if there is a server."""
        take_over(self.worker, snapshot, num_bytes_sent, epoch)
        self.snapshot = step_snapshot(self.worker)  # before another rank can be lost
        if self.membership.run.algo.servers:
            assert isinstance(self.world, TorchWorld)
            self.world.broadcast(self.worker.params, self.world.size - 1)
            self.snapshot = step_snapshot(self.worker)

    def work(self) -> Work:
        """Return the steps begun by this rank; asynchronous ranks count all gradients."""
        begun, asynchronous = self.worker.step + 1, self.experiment.run.algo.asynchronous
        return Work(begun, self.total, "gradient" if asynchronous else "step")

    def now(self) -> float:
        return self.runtime.now()

    def settle(self) -> None:
        self.runtime.settle()

    @property
    def concluded(self) -> bool:
        return self.watch.vote.concluded

    def conclude(self, observer: Observer | None) -> dict[str, object] | None:
        results = self.evaluate(observer)
        if self.experiment.run.on_failure == "continue":
            if self.original_rank == 0:
                self.watch.vote.conclude()
            try:
                self.world.gather(None)  # the others stay until rank 0 has the results
            except (LostConnection, MembershipChanged):
                if not self.concluded:
                    raise
        return results

    def evaluate(self, observer: Observer | None) -> dict[str, object] | None:
        """Evaluate every rank's model and their average (or the server's)."""
        if observer is None:
            evaluate_with_others(self.worker, self.world)
            return None
        return evaluated(observer, self.worker, self.world, self.membership)
