"""The environment of an algorithm: worker, communication, scheduler, parameters, optimizer."""
