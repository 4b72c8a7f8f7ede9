"""Backend of real processes that communicate over gloo, NCCL or MPI."""
