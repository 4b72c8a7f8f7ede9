"""The modelled machines of a run: compute times, network and faults."""
