"""The backend of real processes, which talk over gloo, NCCL or MPI."""
