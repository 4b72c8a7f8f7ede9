"""Isolation of a run from the Python program that calls it.

During a run PyTorch has the defaults of a new process, so the run writes the same bytes as the
command. Afterwards the program's random state, default dtype and threads are restored.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from sgp_runner.config.plugins import loading as plugins
from sgp_runner.utils.errors import ConfigError, Stopped
from sgp_runner.utils.launchers import launched
from sgp_runner.utils.messages import showing_messages
from sgp_runner.utils.variables import SAFE_PATH, setting

ONE_AT_A_TIME = threading.RLock()  # Hydra, plug-ins and PyTorch's defaults are global


@contextmanager
def alone(verbose: bool) -> Iterator[None]:
    """Admit one thread at a time, and unload the plug-ins of earlier runs.

    verbose: true: show information and warnings; false: only warnings

    Python processes started in this context do not import modules from the current folder.
    """
    if launched() is not None:
        raise ConfigError(
            "sgp_runner.run",
            "a launcher has started this process; it cannot share a run with others from Python: "
            "start the command sgp-run with the launcher.",
        )
    with ONE_AT_A_TIME, setting(**SAFE_PATH), showing_messages(verbose):
        plugins.forget()
        try:
            yield
        finally:
            plugins.forget()


@contextmanager
def torch_as_usual() -> Iterator[None]:
    """Give PyTorch the defaults of a new process, and restore the program's defaults afterwards."""
    import torch

    dtype, threads, device = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_default_device(),
    )
    flushed = sys.float_info.min * 0.5 == 0.0
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.set_num_threads, threads)
        stack.callback(torch.set_flush_denormal, flushed)
        if device.type != "cpu":
            torch.set_default_device(None)
            stack.callback(torch.set_default_device, device)
        yield


@contextmanager
def saving_on_interrupt() -> Iterator[None]:
    """Save a training run on an interrupt: Ctrl-C, or an interrupt of a notebook's kernel.

    Raises KeyboardInterrupt once the run is saved. A second interrupt ends the run at once.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False
    before = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        stop = signal.getsignal(signal.SIGTERM)  # handler of the run, once it trains
        if asked or stop is before or not callable(stop):
            raise KeyboardInterrupt
        asked = True
        stop(signal.SIGTERM, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Stopped as error:
        if not asked and error.number != signal.SIGINT:
            raise
        _, _, saved = str(error).partition("; ")
        raise KeyboardInterrupt(saved.replace("the same command", "the same call")) from error
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
