"""Real ranks that go on without others: the protocol of `sgp_runner.crew` between processes.

Rank 0 cannot be missed: it records, and prints for all. The smaller crew is saved as a whole one is; where it is cut off, the same command
goes on with it alone, and the processes of those that were lost before end at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgp_runner import waits
from sgp_runner.comm.distributed import GlooTransport, named
from sgp_runner.crew import common_epoch, listed, step_snapshot, take_over
from sgp_runner.errors import GivenUp, LostConnection, RankFailed, RollCalled
from sgp_runner.real import Rank, SharedBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from sgp_runner.comm.groups import DistributedWorld
    from sgp_runner.crew import Crew
    from sgp_runner.observer import Observer
    from sgp_runner.roll_call import RollCall
    from sgp_runner.worker import Worker
    from sgp_runner.world import World


class Survivor:
    """This rank, in a crew that may become smaller and smaller. go: runs a worker to the end of its algorithm."""

    def __init__(
        self,
        world: DistributedWorld,
        runtime: Rank,
        worker: Worker,
        observer: Observer,
        roll_call: RollCall,
        go: Callable[[World, Rank, Worker], None],
    ) -> None:
        self.world, self.runtime, self.worker, self.observer = world, runtime, worker, observer
        self.roll_call, self.go = roll_call, go
        self.snapshot = runtime.step_snapshot or step_snapshot(worker)

    def go_on(self, error: Exception) -> None:
        """To the end of the algorithm, however many others are lost on the way. Raises RankFailed when that is impossible."""
        while True:
            crew = self.agree(error)
            try:
                self.start_anew(crew)
                self.go(self.world, self.runtime, self.worker)
                return
            except (LostConnection, RollCalled) as another:
                error = another

    def agree(self, error: Exception) -> Crew:
        """Who is left, as everybody sees it."""
        self.leave_behind()
        if isinstance(error, LostConnection):
            self.roll_call.call(str(error))
        gone, why = self.roll_call.verdict()
        waits.interrupt(None)
        own = self.roll_call.rank
        if own in gone:
            raise GivenUp(f"rank {own} was slow to answer, and the others go on without it: {why}.")
        if not gone:
            raise RankFailed(why)
        if 0 in gone:
            raise RankFailed(f"{listed(gone)} gone for good: {why}. Nobody can go on without rank 0, which keeps the records of the run.")
        names = self.observer.crew.names
        return self.observer.crew.without([names.index(name) for name in gone if name in names])

    def leave_behind(self) -> None:
        """Nothing of the old crew computes or sends any more; what it waits for stays on its threads."""
        transport = self.runtime.comm.transport
        assert isinstance(transport, GlooTransport)
        waits.left_behind.append("waits for ranks that are gone")
        self.runtime.thread.shutdown()
        transport.abandon()
        self.snapshot = self.runtime.step_snapshot or self.snapshot

    def start_anew(self, crew: Crew) -> None:
        """Bring this rank to where the new crew begins."""
        run, old, before = crew.run, self.worker, self.observer.crew
        dropped = old.steps_taken - self.snapshot["steps_taken"]
        world = self.world.among([before.names.index(name) for name in crew.names])
        with named("lost a connection while those that are left came together"):
            world.connect(run.nodes)
        own = (self.snapshot["taken"] / old.steps_per_epoch, old.budget.taken / old.steps_per_epoch, dropped / old.steps_per_epoch)
        each = world.gather(own)
        shared = max(taken for _, taken, _ in each) - sum(dropped for *_, dropped in each)
        epoch = common_epoch(run, [at_rest for at_rest, *_ in each], shared)

        problem = run.share(self.observer.problem)
        runtime = Rank(problem, world, run.faults, survives=True, listener=self.runtime.listener)
        runtime.clock.start = self.runtime.clock.start
        total = run.budget(problem)
        mine = SharedBudget(world.store, total.total) if run.algo.asynchronous and world.rank < run.nodes else total
        worker = run.make_worker(problem, world.rank, runtime.comm, mine, runtime, runtime.gradients.buffers)
        take_over(worker, self.snapshot, old.comm.num_bytes_sent, epoch)
        if run.algo.servers:
            world.broadcast(worker.params, world.size - 1)
        self.world, self.runtime, self.worker = world, runtime, worker
        self.snapshot = step_snapshot(worker)
        self.observer.follow(crew, problem, runtime.clock.now, epoch, records=world.rank == 0)
