"""Data sets, one file each, and the samplers that deal their samples to the workers."""
